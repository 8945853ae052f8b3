"""Proxy actions for steps that have none, and how far to trust them."""

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
from ssorl.utils.errors import DataError
from ssorl.utils.identity import revision_of

PROXIES = "actions are proxies from an inverse dynamics model"  # as the notes of filled trajectories say


class Mixture(NamedTuple):
    """Mean and deviation of the members' equal mixture, actions in [-1, 1]."""

    mean: np.ndarray  # [N, A]
    std: np.ndarray  # [N, A]


class Validation(NamedTuple):
    """What the held-out labelled steps say of a fitted model; errors are of actions in [-1, 1]."""

    trajectories: int
    steps: int
    mse: np.ndarray  # [A]
    worst: float  # share of the squared error that the worst 5 % of these steps carry


class Taught(NamedTuple):
    """What a model was fitted to: trajectories with a true action, steps, and the span of the returns."""

    trajectories: int
    steps: int
    lowest: float | None  # None: these trajectories have no rewards
    highest: float | None
    variance: tuple[float, ...]  # of the true actions in [-1, 1], by dimension: what guessing their mean is off by

    @property
    def moving(self) -> np.ndarray:
        """The dimensions whose uncertainty can be judged, all that vary if any do: a constant is no feat to predict."""
        moves = np.array(self.variance) > CONSTANT_TOL**2
        return np.flatnonzero(moves if moves.any() else ~moves)


@dataclass(frozen=True)
class Labeller:
    """A fitted model and all that labelling other data with it needs."""

    idm: FittedIdm
    meta: Meta  # of the data it was fitted to: proxies lie in that action range
    taught: Taught
    known: Span  # what its labelled steps span
    validation: Validation | None  # None where no held-out step has a true action (possible after self-training)
    calibration: Calibration | None  # likewise
    revision: int = 0  # of the code that fitted it
    limits: Limits | None = None  # how predictions near the limits become actions; None: they are clipped

    def actions(self, mean: np.ndarray) -> np.ndarray:
        """Return actions in [-1, 1] for predictions, both [N, A]."""
        return np.clip(mean, -1, 1) if self.limits is None else self.limits(mean)


class Labels(NamedTuple):
    """Actions for every step, in the environment's range: the true one where it is known, else the proxy."""

    act: np.ndarray  # [S, A]
    std: np.ndarray  # [S, A], calibrated; 0 where the action was known
    proxy: np.ndarray  # [S] bool
    unseen: np.ndarray  # [S] bool: a proxy whose states lie outside what the labelled steps span


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
    # In float64, for the reason given in `fit._moves`.
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
    """The share of the squared error [N, A] that the worst 5 % of the steps (at least one) carry."""
    each = np.sort((error**2).sum(1, dtype=np.float64))
    total = each.sum()
    return float(each[-max(1, round(worst * len(each))) :].sum() / total) if total > 0 else 0.0


def label(
    ready: Labeller, eps: Episodes, block: int | None = None, progress: Callable[[int], None] | None = None
) -> Labels:
    """Fill every missing action with the mixture's mean; true actions stay as they are, to the bit.

    Besides the result no array of the data's size is made. `progress` hears of the steps done since its last call.
    """
    check_fit(ready, eps)
    meta, (low, high, _) = ready.meta, _range(ready, eps.meta, eps.n_act)
    act = eps.act.copy() if eps.n_act else np.full((eps.n_steps, len(low)), np.nan, np.float32)
    out = Labels(act, np.zeros_like(act), ~eps.labelled, np.zeros(eps.n_steps, bool))
    factor = (np.array(ready.calibration.scale, np.float32) if ready.calibration else 1.0) * (meta.high - meta.low) / 2
    for steps, mean, std in ready.idm.predict(eps, np.flatnonzero(out.proxy), block):
        # Scaling back may leave the range by a rounding error, so the proxies are clipped once more behind it.
        out.act[steps] = np.clip(unscale(ready.actions(mean), meta), low, high)
        out.std[steps] = std * factor
        out.unseen[steps] = outside(ready.known, eps, steps)
        if progress:
            progress(len(steps))
    return out


def filled(eps: Episodes, labels: Labels, ready: Labeller) -> Episodes:
    """The same trajectories with these actions, in a range that holds them, and a note of how many are proxies."""
    meta = filled_meta(ready, eps.meta, eps.n_act, eps.n_steps, int(labels.proxy.sum()))
    return replace(eps, act=labels.act, meta=meta)


def proxies_in(meta: Meta) -> list[str]:
    """The notes by which some actions of these trajectories are proxies; which, a reader does not tell."""
    return [note for note in meta.notes if PROXIES in note]


def counted_as_true(meta: Meta) -> list[str]:
    """What to say of those before they are used."""
    return [f"{note}; as far as they are used here, they count as true actions" for note in proxies_in(meta)]


def ignored(meta: Meta) -> Meta:
    """The metadata once nobody looks at the actions: whether they are proxies no longer matters."""
    return replace(meta, notes=tuple(note for note in meta.notes if PROXIES not in note))


def filled_meta(ready: Labeller, meta: Meta, n_act: int, n_steps: int, n_proxies: int) -> Meta:
    """The metadata of trajectories of so many steps once so many proxies are among them."""
    low, high, kind = _range(ready, meta, n_act)
    if kind != "declared" and n_proxies < n_steps:
        low, high = np.minimum(low, meta.low), np.maximum(high, meta.high)
    bounds = {"act_low": tuple(map(float, low)), "act_high": tuple(map(float, high)), "act_range": kind}
    note = f"{n_proxies} of {n_steps} {PROXIES}"
    return replace(meta, **bounds).with_notes(note)


def _range(ready: Labeller, meta: Meta, n_act: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Where proxies may lie: what the data declares itself, else the range the model was fitted in."""
    found = meta if meta.act_range == "declared" and n_act else ready.meta
    return found.low, found.high, found.act_range


def check_fit(ready: Labeller, eps: Episodes) -> None:
    """Refuse data of another robot than the model's."""
    meta, want = eps.meta, ready.meta
    n_obs, n_act = ready.idm.n_obs, len(want.act_low)
    for what, got, due in (("state", eps.n_obs, n_obs), ("action", eps.n_act or n_act, n_act)):
        if got != due:
            raise DataError(
                f"{meta.source}: {what}s of size {got} do not fit an inverse dynamics model of {want.source}, whose "
                f"{what}s have size {due}; fit one on data of this robot"
            )
    if eps.n_act and _other_range(eps, want):
        kind = "declared action range" if meta.act_range == "declared" else "actions' range"
        raise DataError(
            f"{meta.source}: the {kind} {meta.act_low}…{meta.act_high} is not that of the inverse "
            f"dynamics model, {want.act_low}…{want.act_high}; fit one on data of this robot"
        )


def _other_range(eps: Episodes, want: Meta) -> bool:
    """Whether actions are told in other units. A range that was only seen in data may be some narrower or wider."""
    meta = eps.meta
    if (meta.act_low, meta.act_high) == (want.act_low, want.act_high):
        return False
    if meta.act_range == want.act_range == "declared":
        return True
    width = meta.high - meta.low
    if meta.act_range == "assumed":  # which tells that no action leaves it; there may be none at all
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
    """Return the error of data in which no action is missing."""
    return DataError(
        f"{source}: every step has an action already, so nothing is to be filled in; to measure labels against the "
        "truth hide some actions with --fraction and --quality"
    )


def nothing_to_learn(source: str) -> DataError:
    """Return the error of data in which no action is known."""
    return DataError(
        f"{source}: no step has an action, so nothing can teach an inverse dynamics model; add labelled trajectories "
        "(--labelled) or name a model that was saved (--idm FOLDER)"
    )
