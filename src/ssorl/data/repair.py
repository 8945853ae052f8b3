"""Repairs of action columns: shift, flip, permute, scale, or forget the actions of trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ssorl.data.episodes import RANGE_TOL, Episodes, Meta, action_range
from ssorl.utils.errors import DataError


def action_centre(meta: Meta) -> np.ndarray:
    """Return the action about which `flip` and `scale` work, [A] float64: the middle of the range, or 0.

    It is 0 where the range is not declared and contains 0.
    """
    low, high = meta.low.astype(np.float64), meta.high.astype(np.float64)
    return np.where((meta.act_range == "declared") | (low >= 0) | (high <= 0), (low + high) / 2, 0.0)


def shift_actions(eps: Episodes, steps: int, trajectories: Sequence[int] | None = None) -> Episodes:
    """Return trajectories whose actions are moved by some steps; actions without a successor are missing.

    Args:
        eps: the trajectories.
        steps: the action at t moves to t + steps. -k repairs a lag of k.
        trajectories: the trajectories to change; all by default.

    Raises:
        DataError: there is no such trajectory.
    """
    act = eps.act.copy()
    for e in _numbers(eps, trajectories):
        own = eps.act[eps.start[e] : eps.start[e + 1]]
        moved = np.full_like(own, np.nan)
        if abs(steps) < len(own):
            moved[max(steps, 0) : len(own) + min(steps, 0)] = own[max(-steps, 0) : len(own) - max(steps, 0)]
        act[eps.start[e] : eps.start[e + 1]] = moved
    return _with(eps, act)


def flip(eps: Episodes, dimensions: Sequence[int], trajectories: Sequence[int] | None = None) -> Episodes:
    """Return trajectories with the sign of some action dimensions reversed.

    Args:
        eps: the trajectories.
        dimensions: the dimensions to reverse, about the middle of a declared range or 0.
        trajectories: the trajectories to change; all by default.

    Raises:
        DataError: there is no such trajectory or dimension.
    """
    factors = np.ones(eps.n_act)
    factors[_dimensions(eps, dimensions)] = -1
    return scale(eps, factors.tolist(), trajectories)


def permute(eps: Episodes, order: Sequence[int], trajectories: Sequence[int] | None = None) -> Episodes:
    """Return trajectories with the action dimensions in another order.

    Args:
        eps: the trajectories.
        order: for each dimension, the present dimension that belongs there.
        trajectories: the trajectories to change; all by default.

    Raises:
        DataError: `order` does not name each dimension once, or there is no such trajectory.
    """
    if sorted(order) != list(range(eps.n_act)):
        raise DataError(
            f"{eps.meta.source}: the order {','.join(map(str, order))} does not name each of the {eps.n_act} action "
            "dimensions once"
        )
    act, steps = eps.act.copy(), _steps(eps, trajectories)
    act[steps] = act[steps][:, list(order)]
    return _with(eps, act)


def scale(eps: Episodes, factors: Sequence[float], trajectories: Sequence[int] | None = None) -> Episodes:
    """Return trajectories with actions multiplied about the middle of a declared range or 0.

    Args:
        eps: the trajectories.
        factors: one factor for all dimensions, or one for each.
        trajectories: the trajectories to change; all by default.

    Raises:
        DataError: the factors do not fit, an action leaves its declared range, or there is no such trajectory.
    """
    values = np.array(factors if len(factors) != 1 else [factors[0]] * eps.n_act, np.float64)
    if len(values) != eps.n_act or not np.isfinite(values).all() or (values == 0).any():
        raise DataError(f"{eps.meta.source}: give one factor other than 0 or {eps.n_act}, not {list(factors)}")
    act, steps, centre = eps.act.astype(np.float64), _steps(eps, trajectories), action_centre(eps.meta)
    act[steps] = centre + values * (act[steps] - centre)
    return _with(eps, act.astype(np.float32))


def forget_actions(eps: Episodes, trajectories: Sequence[int] | None = None) -> Episodes:
    """Return trajectories without the actions of some of them, which become unlabelled.

    Args:
        eps: the trajectories.
        trajectories: the trajectories to change; all by default.

    Raises:
        DataError: there is no such trajectory.
    """
    act = eps.act.copy()
    act[_steps(eps, trajectories)] = np.nan
    return replace(eps, act=act)


def leave_out(eps: Episodes, trajectories: Sequence[int]) -> Episodes:
    """Return the trajectories except some.

    Args:
        eps: the trajectories.
        trajectories: the trajectories to leave out.

    Raises:
        DataError: there is no such trajectory, or none would be left.
    """
    rest = np.setdiff1d(np.arange(len(eps)), _numbers(eps, trajectories))
    if not len(rest):
        raise DataError(f"{eps.meta.source}: no trajectory would be left; leave out fewer")
    return eps.take(rest)


def leave_out_state(eps: Episodes, dimensions: Sequence[int]) -> Episodes:
    """Return trajectories without some dimensions of the state.

    Args:
        eps: the trajectories.
        dimensions: the dimensions to leave out.

    Raises:
        DataError: there is no such dimension, or none would be left.
    """
    rest = np.setdiff1d(np.arange(eps.n_obs), dimensions)
    if len(rest) != eps.n_obs - len(set(dimensions)) or not len(rest):
        raise DataError(
            f"{eps.meta.source}: has the state dimensions 0 to {eps.n_obs - 1}, and at least one must remain; "
            f"cannot leave out {','.join(map(str, dimensions))}"
        )
    names = tuple(eps.meta.state_names[d] for d in rest) if len(eps.meta.state_names) == eps.n_obs else ()
    return replace(eps, obs=eps.obs[:, rest]).with_meta(state_names=names, state_parts=())


def _numbers(eps: Episodes, trajectories: Sequence[int] | None) -> np.ndarray:
    numbers = np.arange(len(eps)) if trajectories is None else np.unique(np.asarray(trajectories, np.int64))
    if len(numbers) and (numbers[0] < 0 or numbers[-1] >= len(eps)):
        wrong = numbers[0] if numbers[0] < 0 else numbers[-1]
        raise DataError(f"{eps.meta.source}: has no trajectory {wrong}; they are numbered 0 to {len(eps) - 1}")
    return numbers


def _steps(eps: Episodes, trajectories: Sequence[int] | None) -> np.ndarray:
    chosen = np.zeros(len(eps), bool)
    chosen[_numbers(eps, trajectories)] = True
    return np.repeat(chosen, eps.lengths)


def _dimensions(eps: Episodes, dimensions: Sequence[int]) -> list[int]:
    for d in dimensions:
        if not 0 <= d < eps.n_act:
            raise DataError(f"{eps.meta.source}: has no action dimension {d}; they are numbered 0 to {eps.n_act - 1}")
    return list(dimensions)


def _with(eps: Episodes, act: np.ndarray) -> Episodes:
    """Return the trajectories with new actions and, unless it is declared, a new range."""
    if eps.meta.act_range != "declared":
        return replace(eps, act=act).with_meta(**action_range(act))
    low, high = eps.meta.low, eps.meta.high
    slack = RANGE_TOL * np.maximum(high - low, 1e-6)
    outside = (act < low - slack) | (act > high + slack)
    if outside.any():
        step, d = np.argwhere(outside)[0]
        raise DataError(
            f"{eps.meta.source}: trajectory {eps.episode_of_step[step]} would have the action {act[step, d]:g} in "
            f"dimension {d}, outside its declared range [{low[d]:g}, {high[d]:g}]; declare another with --action-range"
        )
    return replace(eps, act=np.clip(act, low, high))
