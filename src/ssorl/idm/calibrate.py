"""Calibrate predicted standard deviations, and flag steps outside the range of the labelled ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes

LEVELS = (0.5, 0.8, 0.95)  # nominal coverage of the central intervals
NORMAL = (0.6744898, 1.2815516, 1.9599640)  # half-widths of those intervals in standard deviations
TOLERANCE = 0.03  # a coverage within this distance of its level needs no calibration
SCALES = np.concatenate([[1.0], np.geomspace(0.01, 100, 801)])  # candidate factors; the first one wins a tie
MIN_STEPS = 200  # held-out steps that an action dimension needs for a factor of its own
CHUNK = 1 << 16  # steps processed together; bounds memory
MARGIN = 0.05  # share of the labelled range by which a state may leave that range without a flag


@dataclass(frozen=True)
class Calibration:
    """Coverage of the central intervals on held-out steps, before and after scaling the predicted std."""

    levels: tuple[float, ...]
    before: tuple[float, ...]  # share of held-out actions inside each interval, with the std as predicted
    after: tuple[float, ...]  # the same with the std times `scale`
    scale: tuple[float, ...]  # [A], factor of the std of each action dimension


def coverage(error: np.ndarray, std: np.ndarray) -> tuple[float, ...]:
    """Return the share of errors inside each interval of `LEVELS`.

    Args:
        error: errors of any shape.
        std: predicted standard deviations of the same shape.
    """
    return tuple((count_inside(error, std) / error.size).tolist())


def count_inside(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return the number of errors inside each interval of `LEVELS`, [3]; counts of several parts can be added up."""
    ratios = np.abs(error) / np.maximum(std, 1e-12)
    return np.array([np.count_nonzero(ratios <= np.float64(w)) for w in NORMAL], np.int64)


def calibrate(error: np.ndarray, std: np.ndarray, moving: np.ndarray | None = None) -> Calibration:
    """Fit the factors by which predicted standard deviations are multiplied.

    A gripper is harder to predict than a joint, so each action dimension has a factor of its own. With fewer than
    `MIN_STEPS` steps all dimensions share one factor.

    Args:
        error: errors [N, A] at held-out steps.
        std: standard deviations [N, A] predicted there.
        moving: indices of the action dimensions that vary; by default all. The others keep the factor 1 and do not
            count in the coverage.
    """
    moving, scale = np.arange(error.shape[1]) if moving is None else moving, np.ones(error.shape[1])
    ratios = np.abs(error) / np.maximum(std, 1e-12)
    for dims in moving[:, None] if len(error) >= MIN_STEPS else [moving]:
        scale[dims] = _factor(ratios[:, dims])
    before, after = (_coverage(r[:, moving]) for r in (ratios, ratios / scale))
    return Calibration(LEVELS, before, after, tuple(scale.tolist()))


def _factor(ratios: np.ndarray) -> float:
    """Return the factor of `SCALES` that brings the worst of the three coverages nearest to its level.

    Errors of exactly 0 are ignored: the prediction was clipped at a limit and the action was that limit. They lie
    inside an interval of any width, and many of them would shrink the std of all other predictions to nothing.
    """
    ratios = ratios[ratios > 0]
    if not len(ratios) or _gap(_coverage(ratios)) <= TOLERANCE:
        return 1.0
    ordered = np.sort(ratios)

    def gap(scale: float) -> float:
        return _gap(tuple(np.searchsorted(ordered, w * scale, side="right") / len(ordered) for w in NORMAL))

    return float(min(SCALES, key=gap))


def format_factors(scale: Sequence[float]) -> str:
    """Return the range of a calibration's factors, such as 0.94 or 0.94–1.20; empty if all are 1."""
    ends = dict.fromkeys(f"{x:.2f}" for x in (min(scale), max(scale)))
    return "–".join(ends) if any(x != 1 for x in scale) else ""


def _coverage(ratios: np.ndarray) -> tuple[float, ...]:
    """Return the share of ratios |error| / std inside each interval."""
    return tuple(float(np.mean(ratios <= w)) for w in NORMAL)


def _gap(shares: tuple[float, ...]) -> float:
    """Return the largest distance of a coverage from its level."""
    return max(abs(share - level) for share, level in zip(shares, LEVELS, strict=True))


class Span(NamedTuple):
    """The box that holds every labelled s_t and every labelled s_{t+1} - s_t."""

    low: np.ndarray  # [2, O]
    high: np.ndarray  # [2, O]


def span(eps: Episodes) -> Span:
    """Return the box that holds the labelled steps of `eps`."""
    low, high = np.full((2, eps.n_obs), np.inf, np.float32), np.full((2, eps.n_obs), -np.inf, np.float32)
    steps = np.flatnonzero(eps.labelled)
    for a in range(0, len(steps), CHUNK):
        for i, values in enumerate(_states_and_changes(eps, steps[a : a + CHUNK])):
            low[i], high[i] = np.minimum(low[i], values.min(0)), np.maximum(high[i], values.max(0))
    return Span(low, high)


def outside(known: Span, eps: Episodes, steps: np.ndarray, margin: float = MARGIN) -> np.ndarray:
    """Mark the steps [N] bool that leave the box in any dimension by over `margin` of its width.

    Args:
        known: the box of the labelled steps.
        eps: trajectories.
        steps: [N] step numbers.
        margin: share of the width of the box.
    """
    slack = margin * (known.high - known.low)
    out = np.zeros(len(steps), bool)
    for values, low, high in zip(_states_and_changes(eps, steps), known.low - slack, known.high + slack, strict=True):
        out |= ((values < low) | (values > high)).any(1)
    return out


def _states_and_changes(eps: Episodes, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return s_t and s_{t+1} - s_t of these steps, both [N, O]."""
    row = steps + np.searchsorted(eps.start, steps, side="right") - 1
    state = eps.obs[row]
    return state, eps.obs[row + 1] - state
