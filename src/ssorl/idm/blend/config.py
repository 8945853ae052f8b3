"""The configuration of the blend: members of different families, weighted by their error on held-out trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ssorl.data.episodes import Episodes
from ssorl.idm.base import ArrayReader, FitProgress, IdmSpec, ReadParts
from ssorl.idm.model import MAX_SIZE, IdmConfig

if TYPE_CHECKING:
    from ssorl.idm.blend.model import Blend


@dataclass(frozen=True)
class BlendConfig(IdmSpec):
    """A weighted mean of boosted trees, networks and least squares over windows s_{t-past} … s_{t+1+future}.

    The members are fitted without a holdout of labelled trajectories, weighted by non-negative least squares on the
    holdout, and fitted again to all labelled trajectories. docs/idm.md has measurements of each choice.
    """

    FAMILY: ClassVar[str] = "blend"
    passes: ClassVar[int] = 2
    forecast: ClassVar[bool] = True  # whether the error of its labels is forecast: see `idm.forecast`
    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    past: int | None = None  # states before s_t in the window; None: chosen from the data
    future: int | None = None  # states after s_{t+1}; None: chosen from the data
    rounds: int = 400  # trees for each target
    members: int = 2  # number of networks
    hidden: tuple[int, ...] = (256, 256)  # widths of their hidden layers
    steps: int = 5000  # updates of each network
    batch: int = 256  # steps in an update
    lr: float = 1e-3  # learning rate of Adam, with a cosine schedule
    validation: float = 0.3  # share of the labelled trajectories in the holdout, which determines the weights
    early: float = 0.4  # length of the fits without the holdout, relative to the final ones
    worst: float = 1.5  # members with more than this times the smallest holdout error get no weight
    equal: float = 0.3  # share of equal weights in the final weights
    soft_limits: bool = True  # keep proxy actions away from the limits: see `idm.limits`

    @property
    def work(self) -> int:
        """The number of updates of all networks and of rounds of trees, in both fits."""
        return sum(self.members * steps + 2 * rounds for steps, rounds in (self.length(False), self.length(True)))

    def length(self, early: bool) -> tuple[int, int]:
        """Return the updates of a network and the rounds of trees.

        Args:
            early: of the fit without the holdout; otherwise of the final fit.
        """
        share = self.early if early else 1.0
        return max(1, round(share * self.steps)), max(1, round(share * self.rounds))

    def network(self, past: int, future: int, early: bool) -> IdmConfig:
        """Return the configuration of one network.

        Args:
            past: states before s_t in the window.
            future: states after s_{t+1}.
            early: for the fit without the holdout; otherwise for the final fit.
        """
        steps, _ = self.length(early)
        return IdmConfig(
            past=past,
            future=future,
            hidden=self.hidden,
            differences=True,
            ranks=True,
            beta=0.5,
            members=1,
            steps=steps,
            batch=self.batch,
            lr=self.lr,
            schedule="cosine",
            dropout=0.0,
            validate_every=max(1, min(250, steps)),
            select="mse",
        )

    def fit(self, eps: Episodes, seed: int = 0, progress: FitProgress | None = None, statistics: Any = None) -> Blend:
        """Fit a blend to the labelled steps of `eps`; see `IdmSpec.fit`."""
        from ssorl.idm.blend.fit import fit

        return fit(eps, self, seed, progress, statistics)

    def measure(self, read: ReadParts, n_states: int) -> Any:
        """Return the statistics of all states that the networks need."""
        from ssorl.idm.statistics import measure

        return measure(read, n_states, True)

    def restore(self, n_obs: int, n_act: int, read: ArrayReader, about: Mapping[str, Any]) -> Blend:
        """Rebuild a saved blend; see `IdmSpec.restore`."""
        from ssorl.idm.blend.model import restore

        return restore(self, n_obs, n_act, read, about)

    def resized(self, updates: int | None = None, members: int | None = None) -> BlendConfig:
        """Return the configuration with another number of updates or networks; fewer updates also mean fewer trees."""
        changed = super().resized(updates, members)
        if updates is None or updates >= self.steps:
            return changed
        return replace(changed, rounds=max(10, round(self.rounds * updates / self.steps)))

    def check(self) -> None:
        """Raise ValueError if a setting is out of bounds."""
        for name in ("past", "future"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 0 <= value <= MAX_SIZE):
                raise ValueError(f"{name} is {value}")
        for name, high in (("rounds", 10_000), ("members", MAX_SIZE), ("steps", 10**8), ("batch", 10**6)):
            if not 1 <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}")
        for name in ("validation", "early", "equal"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}")
