"""Label steps without an action with a proxy action and a calibrated standard deviation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import CONSTANT_TOL, Episodes, Meta, scale, unscale
from ssorl.idm.base import FittedIdm, HeldOut
from ssorl.idm.calibrate import Calibration, Span, calibrate, outside, span
from ssorl.idm.holdout import held_out
from ssorl.idm.limits import Limits, find_limits
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import DataError
from ssorl.utils.identity import revision_of

PROXIES = "actions are proxies from an inverse dynamics model"  # part of the notes of filled trajectories


class Mixture(NamedTuple):
    """Mean and standard deviation of the equal mixture of the members; actions are scaled to [-1, 1]."""

    mean: np.ndarray  # [N, A]
    std: np.ndarray  # [N, A]


class Validation(NamedTuple):
    """Errors of a fitted model on held-out labelled steps; actions are scaled to [-1, 1]."""

    trajectories: int
    steps: int
    mse: np.ndarray  # [A]
    worst: float  # share of the squared error that the worst 5 % of these steps carry


class Taught(NamedTuple):
    """The labelled data that a model was fitted to."""

    trajectories: int  # trajectories with a true action
    steps: int  # steps with a true action
    lowest: float | None  # return of these trajectories; None: they have no rewards
    highest: float | None
    variance: tuple[float, ...]  # [A], of the true actions: the squared error of a constant prediction

    @property
    def moving(self) -> np.ndarray:
        """Indices of the action dimensions that vary, which calibration uses; all dimensions if none varies."""
        moves = np.array(self.variance) > CONSTANT_TOL**2
        return np.flatnonzero(moves if moves.any() else ~moves)


@dataclass(frozen=True)
class Labeller:
    """A fitted model and everything needed to label other data with it."""

    idm: FittedIdm
    meta: Meta  # metadata of the data that it was fitted to; proxy actions lie in the action range of this data
    taught: Taught
    known: Span  # the box of its labelled steps
    validation: Validation | None  # None: no held-out step has a true action (possible after self-training)
    calibration: Calibration | None  # likewise
    revision: int = 0  # revision of the code that fitted it
    limits: Limits | None = None  # maps predictions near the limits to actions; None: predictions are clipped

    def __repr__(self) -> str:
        return short_repr("Labeller", self._facts())

    def _repr_html_(self) -> str:
        return html_table("Labeller", self._facts())

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"model": type(self.idm).__name__, "fitted_to": self.meta.source}
        facts |= {"labelled_trajectories": self.taught.trajectories, "labelled_steps": self.taught.steps}
        facts |= {"observation_size": self.idm.n_obs, "action_size": self.idm.n_act}
        if self.validation:
            facts["held_out_mse"] = float(self.validation.mse.mean())
        return facts

    def actions(self, mean: np.ndarray) -> np.ndarray:
        """Return actions in [-1, 1] for predictions, both [N, A]."""
        return np.clip(mean, -1, 1) if self.limits is None else self.limits(mean)


class Labels(NamedTuple):
    """Actions of all steps in the range of the environment: the true action where it is known, else a proxy action."""

    act: np.ndarray  # [S, A]
    std: np.ndarray  # [S, A], calibrated; 0 where the action was known
    proxy: np.ndarray  # [S] bool
    unseen: np.ndarray  # [S] bool, whether a step is a proxy step outside the range of the labelled steps

    def __repr__(self) -> str:
        return short_repr("Labels", self._facts())

    def _repr_html_(self) -> str:
        return html_table("Labels", self._facts())

    def _facts(self) -> dict[str, object]:
        n = int(self.proxy.sum())
        facts: dict[str, object] = {"steps": len(self.act), "action_size": self.act.shape[1], "proxy_steps": n}
        return facts | ({"mean_std": float(self.std[self.proxy].mean())} if n else {})


def labeller(idm: FittedIdm, eps: Episodes, soft_limits: bool | None = None) -> Labeller:
    """Make a model ready to label: measure and calibrate it on labelled steps that it was not fitted to.

    Args:
        idm: the fitted model.
        eps: the trajectories that it was fitted to.
        soft_limits: keep proxy actions off the limits of their range (see `idm.limits`); None: as the model's
            configuration says.
    """
    returns = eps.returns[(eps.labelled_share > 0) & eps.rewarded]
    lowest, highest = (float(returns.min()), float(returns.max())) if len(returns) else (None, None)
    # In float64, for the reason given in `statistics.difference_scale`.
    variance = scale(eps.act[eps.labelled], eps.meta).var(0, np.float64).tolist()
    n_taught = int((eps.labelled_share > 0).sum())
    taught = Taught(n_taught, int(eps.labelled.sum()), lowest, highest, tuple(variance))
    soft = getattr(idm.config, "soft_limits", False) if soft_limits is None else soft_limits
    ready = Labeller(idm, eps.meta, taught, span(eps), None, None, revision_of(idm.config))
    ready = replace(ready, limits=find_limits(idm, eps)) if soft else ready
    checked = idm.held_out_predictions()
    if checked is None:
        steps = held_out(idm, eps)
        checked = HeldOut(steps, *predict(idm, eps, steps))
    if not len(checked.steps):
        return ready
    error = ready.actions(checked.mean) - scale(eps.act[checked.steps], eps.meta)
    n = len(np.unique(np.searchsorted(eps.start, checked.steps, side="right")))
    mse = (error**2).mean(0, np.float64).astype(np.float32)
    validation = Validation(n, len(checked.steps), mse, worst_share(error))
    return replace(ready, validation=validation, calibration=calibrate(error, checked.std, taught.moving))


def worst_share(error: np.ndarray, worst: float = 0.05) -> float:
    """Return the share of the squared error that the worst steps carry.

    Args:
        error: errors [N, A].
        worst: share of the steps that count as the worst; at least one step does.
    """
    each = np.sort((error**2).sum(1, dtype=np.float64))
    total = each.sum()
    return float(each[-max(1, round(worst * len(each))) :].sum() / total) if total > 0 else 0.0


def label(
    ready: Labeller, eps: Episodes, block: int | None = None, progress: Callable[[int], None] | None = None
) -> Labels:
    """Label all steps without an action. Known actions stay the same, bit for bit.

    Only the result has the size of the data; everything else is computed block by block.

    Args:
        ready: the model.
        eps: trajectories of the same robot.
        block: steps predicted together; None chooses a size that bounds memory.
        progress: called with the number of steps labelled since the last call.

    Raises:
        DataError: the data has other state or action sizes, or another action range, than the model.
    """
    check_fit(ready, eps)
    meta, (low, high, _) = ready.meta, _range(ready, eps.meta, eps.n_act)
    act = eps.act.copy() if eps.n_act else np.full((eps.n_steps, len(low)), np.nan, np.float32)
    out = Labels(act, np.zeros_like(act), ~eps.labelled, np.zeros(eps.n_steps, bool))
    factor = (np.array(ready.calibration.scale, np.float32) if ready.calibration else 1.0) * (meta.high - meta.low) / 2
    for steps, mean, std in ready.idm.predict(eps, np.flatnonzero(out.proxy), block):
        # Unscaling can leave the range by a rounding error, so the proxy actions are clipped again.
        out.act[steps] = np.clip(unscale(ready.actions(mean), meta), low, high)
        out.std[steps] = std * factor
        out.unseen[steps] = outside(ready.known, eps, steps)
        if progress:
            progress(len(steps))
    return out


def filled(eps: Episodes, labels: Labels, ready: Labeller) -> Episodes:
    """Return the trajectories with the labels as actions.

    The action range contains all labels, and a note counts the proxy actions.
    """
    meta = filled_meta(ready, eps.meta, eps.n_act, eps.n_steps, int(labels.proxy.sum()))
    return replace(eps, act=labels.act, meta=meta)


def proxies_in(meta: Meta) -> list[str]:
    """Return the notes which say that some actions of a dataset are proxy actions. They do not say which actions."""
    return [note for note in meta.notes if PROXIES in note]


def counted_as_true(meta: Meta) -> list[str]:
    """Return a note for the user about each note on proxy actions that will be used as if they were true actions."""
    return [f"{note}; as far as they are used here, they count as true actions" for note in proxies_in(meta)]


def ignored(meta: Meta) -> Meta:
    """Return the metadata without the notes on proxy actions, for data whose actions are not used."""
    return replace(meta, notes=tuple(note for note in meta.notes if PROXIES not in note))


def filled_meta(ready: Labeller, meta: Meta, n_act: int, n_steps: int, n_proxies: int) -> Meta:
    """Return the metadata of labelled trajectories.

    Args:
        ready: the model that labels them.
        meta: their metadata before.
        n_act: numbers in an action; 0 if the data has no actions.
        n_steps: all steps.
        n_proxies: the steps that get a proxy action.
    """
    low, high, kind = _range(ready, meta, n_act)
    if kind != "declared" and n_proxies < n_steps:
        low, high = np.minimum(low, meta.low), np.maximum(high, meta.high)
    bounds = {"act_low": tuple(map(float, low)), "act_high": tuple(map(float, high)), "act_range": kind}
    note = f"{n_proxies} of {n_steps} {PROXIES}"
    return replace(meta, **bounds).with_notes(note)


def _range(ready: Labeller, meta: Meta, n_act: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the range of proxy actions: the range that the data declares, else the range of the model's data."""
    source = meta if meta.act_range == "declared" and n_act else ready.meta
    return source.low, source.high, source.act_range


def check_fit(ready: Labeller, eps: Episodes) -> None:
    """Raise DataError if the sizes or the action range of the data differ from those of the model's data."""
    meta, want = eps.meta, ready.meta
    n_obs, n_act = ready.idm.n_obs, len(want.act_low)
    for kind, size, expected in (("state", eps.n_obs, n_obs), ("action", eps.n_act or n_act, n_act)):
        if size != expected:
            raise DataError(
                f"{meta.source}: {kind}s of size {size} do not fit the inverse dynamics model of {want.source}, whose "
                f"{kind}s have size {expected}; fit a model to data of this robot"
            )
    if eps.n_act and _other_range(eps, want):
        kind = "declared action range" if meta.act_range == "declared" else "actions' range"
        raise DataError(
            f"{meta.source}: the {kind} {meta.act_low}…{meta.act_high} is not that of the inverse dynamics "
            f"model, {want.act_low}…{want.act_high}; fit a model to data of this robot"
        )


def _other_range(eps: Episodes, want: Meta) -> bool:
    """Return whether the actions have other units. Ranges that were inferred from data may differ by a factor of 2."""
    meta = eps.meta
    if (meta.act_low, meta.act_high) == (want.act_low, want.act_high):
        return False
    if meta.act_range == want.act_range == "declared":
        return True
    width = meta.high - meta.low
    if meta.act_range == "assumed":  # [-1, 1] contains all actions, but they may be much smaller
        width = 2 * np.abs(eps.act[eps.labelled]).max(0, initial=0)
    ratio = width / np.maximum(want.high - want.low, 1e-12)
    return bool((ratio > 2).any() or (meta.act_range == "declared" and (ratio < 0.5).any()))


def predict(idm: FittedIdm, eps: Episodes, steps: np.ndarray, block: int | None = None) -> Mixture:
    """Return the predictions at these steps.

    Args:
        idm: a fitted model.
        eps: trajectories of the same robot.
        steps: [N] step numbers.
        block: steps predicted together; None chooses a size that bounds memory.
    """
    out = Mixture(*(np.empty((len(steps), idm.n_act), np.float32) for _ in range(2)))
    done = 0
    for chosen, mean, std in idm.predict(eps, steps, block):
        out.mean[done : done + len(chosen)], out.std[done : done + len(chosen)] = mean, std
        done += len(chosen)
    return out


def nothing_missing(source: str) -> DataError:
    """Return the error for data in which no action is missing."""
    return DataError(
        f"{source}: every step has an action already, so there is nothing to label; to measure labels against true "
        "actions, hide some of them with --fraction and --quality"
    )


def nothing_to_learn(source: str) -> DataError:
    """Return the error for data in which no action is known."""
    return DataError(
        f"{source}: no step has an action, so no inverse dynamics model can be fitted; add labelled trajectories "
        "(--labelled) or name a saved model (--idm FOLDER)"
    )
