"""The interface of inverse dynamics models (IDMs): `IdmSpec`, a configuration that can be fitted, and `FittedIdm`.

A family of models is one subclass of each. Everything else (labelling, calibration, reports, files, self-training,
streams, studies) uses these two classes only. The network of version 0.1 is `model.IdmConfig` with `network.Idm`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import SsorlError

NETWORK = "network"  # the family of models in files and cells that name none, such as those of version 0.1

FitProgress = Callable[[int, str], None]  # called with the units of work done since the last call, and a note
ReadParts = Callable[[], Iterator[Episodes]]  # each call reads all trajectories once more, in order, part by part


class Prediction(NamedTuple):
    """The predicted actions of one block of steps, scaled to [-1, 1]."""

    steps: np.ndarray  # [N]
    mean: np.ndarray  # [N, A]
    std: np.ndarray  # [N, A], before calibration


class HeldOut(NamedTuple):
    """Predictions at labelled steps by a model that was not fitted to their trajectories."""

    steps: np.ndarray  # [N]
    mean: np.ndarray  # [N, A], scaled to [-1, 1]
    std: np.ndarray  # [N, A], before calibration


class ArrayReader(Protocol):
    """Read the arrays of a saved model by name."""

    @property
    def names(self) -> list[str]:
        """The names of the arrays in the file."""
        ...

    def __call__(
        self, name: str, shape: Sequence[int | None], dtype: Any = np.float32, finite: bool = True
    ) -> np.ndarray:
        """Return one array; raise ValueError if it does not match.

        Args:
            name: as in `FittedIdm.arrays`.
            shape: the expected length of each axis, None where any length is valid.
            dtype: the expected type, None if any type is valid.
            finite: whether NaN and infinities are errors.
        """
        ...


class IdmSpec(ABC):
    """The configuration of an inverse dynamics model, and how to fit it. Entries of `ssorl.idm.IDMS` are instances.

    Subclasses are frozen dataclasses. Each field has a default of the same type as its values (bool, int, float, str or
    a tuple of one of these; None stands for any scalar), because saved models and study cells store the fields as
    JSON. No field may be called `family`.
    """

    FAMILY: ClassVar[str]  # identifies the subclass in files; unique in the registry
    revision: ClassVar[int] = 0  # raised when a change of the family alters results at unchanged settings
    validation: float  # share of the labelled trajectories that `holdout.hold_out` keeps out of the fit

    @property
    @abstractmethod
    def work(self) -> int:
        """The units of work (updates, trees, …) of one fit, for progress bars."""

    @abstractmethod
    def fit(
        self, eps: Episodes, seed: int = 0, progress: FitProgress | None = None, statistics: Any = None
    ) -> FittedIdm:
        """Fit a model to the labelled steps of `eps`.

        Args:
            eps: trajectories; a step without an action has NaN there.
            seed: decides every random choice.
            progress: called with the units of work done since the last call, `work` in total, and a note.
            statistics: what `measure` returned, if `eps` is only the labelled part of the data.

        Raises:
            DataError: too few labelled steps, or the fit diverged.
        """

    def fit_many(
        self, tasks: Sequence[tuple[Episodes, int]], progress: FitProgress | None = None
    ) -> Sequence[FittedIdm]:
        """Return `fit(eps, seed)` of each task. Override it if one program fits several models faster."""
        return [self.fit(eps, seed, progress) for eps, seed in tasks]

    @abstractmethod
    def restore(self, n_obs: int, n_act: int, read: ArrayReader, about: Mapping[str, Any]) -> FittedIdm:
        """Rebuild a saved model; the inverse of `FittedIdm.arrays` and `FittedIdm.about`.

        Args:
            n_obs: numbers in a state.
            n_act: numbers in an action.
            read: returns the arrays.
            about: what `FittedIdm.about` returned; it comes from a file, so check every value.

        Raises:
            ValueError: an array or a value does not fit the configuration.
        """

    passes = 0  # how often `measure` reads the data

    def measure(self, read: ReadParts, n_states: int) -> Any:
        """Return the statistics that `fit` needs of all states, for data too large for memory; None if it needs none.

        Args:
            read: reads the data once; call it `passes` times.
            n_states: rows of `obs` in all parts together.
        """
        return None

    def flops(self, n_obs: int, n_act: int) -> float:
        """Estimate the floating-point operations of one unit of work; 0 if unknown."""
        return 0.0

    def check(self) -> None:  # noqa: B027  most families need no checks
        """Raise SsorlError or ValueError if a field has an invalid value."""

    def resized(self, updates: int | None = None, members: int | None = None) -> Self:
        """Return the configuration with another number of updates or ensemble members; None keeps the number.

        The default changes the fields `steps` and `members`; it raises SsorlError if the family has no such field.
        """
        asked = {"steps": updates, "members": members}
        known = {field.name for field in fields(self)}  # type: ignore[arg-type]
        for name, value in asked.items():
            if value is not None and name not in known:
                quantity = "updates" if name == "steps" else name
                raise SsorlError(f"this inverse dynamics model has no number of {quantity}; leave that option out")
        return replace(self, **{k: v for k, v in asked.items() if v is not None})  # type: ignore[type-var]


class FittedIdm(ABC):
    """A fitted inverse dynamics model. Subclasses are frozen dataclasses with at least these two fields.

    With `dataclass(repr=False)` they inherit the short repr of this class.
    """

    config: IdmSpec
    validation: np.ndarray  # the numbers of the trajectories held out of the fit

    def __repr__(self) -> str:
        return short_repr(type(self).__name__, self._facts())

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self._facts())

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"observation_size": self.n_obs, "action_size": self.n_act}
        return facts | {"held_out": len(self.validation)} | self.facts() | {"config": self.config}

    @property
    @abstractmethod
    def n_obs(self) -> int:
        """Numbers in a state."""

    @property
    @abstractmethod
    def n_act(self) -> int:
        """Numbers in an action."""

    @abstractmethod
    def predict(self, eps: Episodes, steps: np.ndarray, block: int | None = None) -> Iterator[Prediction]:
        """Yield the actions at `steps`, in their order, block by block.

        The result at a step must not depend on the other steps, nor on `block`.

        Args:
            eps: trajectories; their actions are not used.
            steps: [N] step numbers.
            block: steps predicted together; None chooses a size that bounds memory.
        """

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays that `IdmSpec.restore` needs, by name; no object arrays."""

    def about(self) -> dict[str, Any]:
        """Return what else `IdmSpec.restore` needs, as JSON values."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return entries for the section `model` of a label report, as JSON values."""
        return {}

    def validation_errors(self) -> list[float]:
        """Return the best validation error of each ensemble member; empty if the family has none."""
        return []

    def held_out_predictions(self) -> HeldOut | None:
        """Return the predictions at the held-out steps that were made during the fit.

        None means that `predict` can be used, because the final model was not fitted to these steps either.
        """
        return None

    def digest(self) -> str:
        """Return a hash of the fitted weights."""
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays().items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()
