"""Fill in missing actions: fit or reuse a model, label, and report the quality of the labels."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.formats.base import Format
from ssorl.data.stream import Stream
from ssorl.idm import IDMS, serialise
from ssorl.idm.base import FittedIdm, IdmSpec
from ssorl.idm.forecast import Forecast
from ssorl.idm.label import Labeller, Labels, filled, label, labeller, nothing_missing, nothing_to_learn
from ssorl.idm.model import MAX_SIZE
from ssorl.idm.outlook import assess
from ssorl.idm.quality import report, report_rounds
from ssorl.idm.selftrain import Round, self_train_many
from ssorl.idm.stream import StreamLabelling, fill_stream
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.machine import PRESETS, resolve_preset
from ssorl.utils.registry import TrustedName
from ssorl.utils.validation import check_seed

MODEL_PRESETS = PRESETS


@dataclass(frozen=True)
class LabelledData:
    """Trajectories with an action at every step, their labels, and the model that made the labels."""

    eps: Episodes
    labels: Labels
    ready: Labeller  # the model, which can be saved
    report: dict  # see `ssorl.idm.quality.report`
    forecast: Forecast | None = None  # forecast of the label error; None: too few labels, or a saved model
    more: dict[str, np.ndarray] = field(default_factory=dict)  # further arrays to write, with a row for each step

    def __repr__(self) -> str:
        return short_repr("LabelledData", self._facts())

    def _repr_html_(self) -> str:
        return html_table("LabelledData", self._facts())

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"source": self.eps.meta.source, "trajectories": self.eps.n_episodes}
        facts |= {"steps": self.eps.n_steps, "proxy_steps": int(self.labels.proxy.sum())}
        facts |= {"model": type(self.ready.idm).__name__, "expected_std": self.report["proxies"]["std"]}
        return facts | ({"mse": self.report["truth"]["mse"]} if self.report["truth"] else {})

    @property
    def extras(self) -> dict[str, np.ndarray]:
        """The arrays to write beside the actions: which are proxy actions, their std, and which are extrapolated."""
        labels = self.labels
        return {"proxy": labels.proxy, "act_std": labels.std, "unseen": labels.unseen, **self.more}

    def write(self, path: Path, format: Format) -> None:
        """Write the trajectories and the extra arrays.

        Args:
            path: a temporary path.
            format: the format to write.
        """
        format.save(self.eps, path, self.extras)


def resolve(
    name: str | IdmSpec | Labeller,
    preset: str | None = None,
    steps: int | None = None,
    members: int | None = None,
    rounds: int | None = None,
    past: int | None = None,
    future: int | None = None,
    soft_limits: bool | None = None,
) -> IdmSpec | Labeller:
    """Return the model configuration that the user chose, with changes, or the fitted model.

    Args:
        name: a built-in, registered or installed model, `module:NAME`, or the folder of a saved one; or a configuration
            or a fitted model itself.
        preset: `quick` takes NAME-quick if there is one, `paper` and None take NAME, and `auto` is `paper` with an
            accelerator and `quick` without one.
        steps: updates; None: as the configuration says, here and below.
        members: networks in the ensemble.
        rounds: rounds of self-training, which a fitted model cannot do.
        past: states before s_t in the window.
        future: states after s_{t+1}.
        soft_limits: whether proxy actions are kept away from the limits of their range.

    Raises:
        SsorlError: no model has this name, or an option does not apply to it.
    """
    if preset is not None and preset not in MODEL_PRESETS:
        raise SsorlError(f"{preset!r} is no preset of inverse dynamics models; {nearest(preset, MODEL_PRESETS)}")
    for flag, value in (("--steps", steps), ("--members", members), ("--self-train", rounds)):
        if value is not None and value < 1:
            raise SsorlError(f"{flag} is {value}; give a whole number from 1 up")
    if preset is not None:
        preset = resolve_preset(preset)
    changes = {"past": past, "future": future, "soft_limits": soft_limits}
    if isinstance(name, IdmSpec):
        if type(name) not in map(type, IDMS.values()):
            IDMS.adopt(name)
        return _changed(name.resized(steps, members), changes)
    if isinstance(name, str) and IDMS.known(name):
        quick = f"{name}-quick" if preset == "quick" and not name.endswith("-quick") else name
        return _changed(IDMS.find(quick if IDMS.known(quick) else name).resized(steps, members), changes)
    if isinstance(name, Labeller) or Path(name).exists():
        if any(x is not None for x in (preset, steps, members, rounds, *changes.values())):
            source = name if isinstance(name, str) else "the model"
            raise SsorlError(
                f"{source} is fitted already, so --preset, --steps, --members, --self-train, --past, --future and "
                "--soft-limits have no effect; leave them out"
            )
        return name if isinstance(name, Labeller) else serialise.load(name)
    if ":" in name:
        return _changed(IDMS.find(TrustedName(name)).resized(steps, members), changes)
    near = difflib.get_close_matches(name, IDMS.names(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(IDMS.names())}, or the folder of a saved one"
    raise SsorlError(f"--idm {name}: no inverse dynamics model or folder has that name; {hint}")


def _changed(spec: IdmSpec, changes: dict[str, Any]) -> IdmSpec:
    """Return a configuration with those settings that are not None.

    Raises:
        SsorlError: the family has no such setting, or the value is invalid.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if not hasattr(spec, name):
            raise SsorlError(f"{flag} has no effect on this inverse dynamics model; leave it out")
        if name != "soft_limits" and (type(value) is not int or not 0 <= value <= MAX_SIZE):
            raise SsorlError(f"{flag} is {value}; give a whole number from 0 to {MAX_SIZE}")
    return replace(spec, **given) if given else spec  # type: ignore[type-var]


Fitted = FittedIdm | Labeller | Sequence[Round]  # a fitted model, a calibrated one, or the rounds of self-training
Progress = Callable[[str, int, str], None]  # called with the stage, the units of work since the last call, and a note


def fit_models(
    model: IdmSpec | Labeller,
    datasets: Sequence[tuple[Episodes, int]],
    rounds: int = 0,
    progress: Progress | None = None,
) -> Sequence[Fitted]:
    """Fit one model to each dataset, or return a model that is fitted already for each of them.

    Args:
        model: a configuration, or a fitted model.
        datasets: pairs of trajectories and seed.
        rounds: rounds of self-training (Algorithm 2 of the paper); above 0, all rounds are returned for each dataset.
        progress: called with "fitting" and the units of work done.

    Raises:
        DataError: a dataset has too few actions, or a fit diverged.
    """
    if isinstance(model, Labeller):
        return [model] * len(datasets)
    for eps, _ in datasets:
        if not eps.labelled.any():
            raise nothing_to_learn(eps.meta.source)

    def report(number: int, _: object) -> None:
        if progress:
            progress("fitting", len(datasets) * model.work, f"round {number} of {rounds}")

    if rounds:
        return self_train_many(datasets, model, None, rounds, report)
    return model.fit_many(datasets, progress and partial(progress, "fitting"))


@overload
def fill(
    data: Episodes,
    model: IdmSpec | Fitted,
    seed: int = 0,
    rounds: int = 0,
    learn_from: Episodes | None = None,
    truth: np.ndarray | None = None,
    progress: Progress | None = None,
) -> LabelledData: ...


@overload
def fill(
    data: Stream,
    model: IdmSpec | Labeller,
    seed: int = 0,
    *,
    first: int = 0,
    progress: Progress | None = None,
) -> StreamLabelling: ...


def fill(
    data: Episodes | Stream,
    model: IdmSpec | Fitted,
    seed: int = 0,
    rounds: int = 0,
    learn_from: Episodes | None = None,
    truth: np.ndarray | None = None,
    progress: Progress | None = None,
    first: int = 0,
) -> LabelledData | StreamLabelling:
    """Label each step without an action. Every command and function that labels data calls this function.

    Args:
        data: the trajectories, or a stream of trajectories that do not fit into memory.
        model: a configuration, which is fitted to the known actions, or a model that was fitted before.
        seed: seed of the fit.
        rounds: rounds of self-training; not for a stream.
        learn_from: trajectories to fit the model to, if they are not among `data`; not for a stream.
        truth: true actions [S, A], used for the report only; a stream brings its own.
        progress: called as `progress(stage, n, note)` with "fitting" and updates, or "labelling" and steps.
        first: number of the first trajectory of a stream to label; the model is fitted to those before it, too.

    Returns:
        The labelled trajectories. A stream is labelled part by part while `write` writes it.

    Raises:
        DataError: no action is missing, or none is known and `model` is a configuration.
    """
    check_seed(seed, "--seed")
    if isinstance(data, Stream):
        if not isinstance(model, IdmSpec | Labeller):
            raise TypeError("a stream is labelled by an IdmSpec or a Labeller")
        return fill_stream(data, model, seed, first, progress)
    if data.labelled.all():
        raise nothing_missing(data.meta.source)
    learn_from = data if learn_from is None else learn_from
    if isinstance(model, IdmSpec):
        (model,) = fit_models(model, [(learn_from, seed)], rounds, progress)
    history = [] if isinstance(model, FittedIdm | Labeller) else model
    # Self-training learns from proxy actions, so only steps with true actions measure the quality.
    idm = history[-1].idm if history else model
    ready = idm if isinstance(idm, Labeller) else labeller(cast(FittedIdm, idm), learn_from)
    labels = label(ready, data, progress=progress and (lambda n: progress("labelling", n, "")))
    expected = assess(learn_from, ready, seed, data)
    by_round = {"rounds": report_rounds(list(history), learn_from, truth)} if history else {}
    about = report(data, labels, ready, truth) | expected.as_json() | by_round
    return LabelledData(filled(data, labels, ready), labels, ready, about, expected.forecast)
