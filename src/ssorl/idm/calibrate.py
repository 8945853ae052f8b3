"""Whether an uncertainty means what it says: coverage of intervals, the one factor that mends it, and known ground."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes

LEVELS = (0.5, 0.8, 0.95)  # of the central intervals whose coverage is told
NORMAL = (0.6744898, 1.2815516, 1.9599640)  # half-widths of those intervals in standard deviations
OFF = 0.03  # a coverage this far from its level is worth recalibrating
SCALES = np.concatenate([[1.0], np.geomspace(0.01, 100, 801)])  # tried; the first wins a tie
CHUNK = 1 << 16  # steps looked at together: bounds memory
MARGIN = 0.05  # how far, as a share of its range, a state may leave what was labelled before it is flagged


@dataclass(frozen=True)
class Calibration:
    """Coverage of the central intervals on held-out steps, and the one factor that mends it."""

    levels: tuple[float, ...]
    before: tuple[float, ...]  # share of held-out actions inside, with the deviations as predicted
    after: tuple[float, ...]  # with the deviations times `scale`
    scale: float  # 1 where the coverage was right already


def coverage(error: np.ndarray, std: np.ndarray) -> tuple[float, ...]:
    """The share of errors inside each interval of `LEVELS`, over all values alike."""
    return tuple((inside(error, std) / error.size).tolist())


def inside(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """How many errors lie inside each interval of `LEVELS`: the coverage of data that comes in parts."""
    ratios = np.abs(error) / np.maximum(std, 1e-12)
    return np.array([np.count_nonzero(ratios <= np.float64(w)) for w in NORMAL], np.int64)


def calibrate(error: np.ndarray, std: np.ndarray) -> Calibration:
    """From the errors of predictions at steps no weights were fitted to, and the deviations predicted there.

    The factor is the one that brings the worst of the three coverages nearest to its level, 1 being among those tried.
    Errors of exactly 0 do not choose it: they are of predictions cut at a limit where the action was that limit, lie
    inside at any width, and if many would have all others' deviations shrunk to nothing.
    """
    ratios = _ratios(error, std)
    telling, scale = ratios[np.searchsorted(ratios, 0.0, side="right") :], 1.0
    if len(telling) and _gap(_inside(telling, 1.0)) > OFF:
        scale = float(min(SCALES, key=lambda s: _gap(_inside(telling, s))))
    return Calibration(LEVELS, _inside(ratios, 1.0), _inside(ratios, scale), scale)


def _ratios(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    return np.sort((np.abs(error) / np.maximum(std, 1e-12)).reshape(-1))


def _inside(ratios: np.ndarray, scale: float) -> tuple[float, ...]:
    return tuple(float(np.searchsorted(ratios, w * scale, side="right") / len(ratios)) for w in NORMAL)


def _gap(found: tuple[float, ...]) -> float:
    return max(abs(f - level) for f, level in zip(found, LEVELS, strict=True))


class Span(NamedTuple):
    """The box that holds every labelled s_t and every labelled s_{t+1} - s_t."""

    low: np.ndarray  # [2, O]
    high: np.ndarray  # [2, O]


def span(eps: Episodes) -> Span:
    """What the labelled steps span."""
    low, high = np.full((2, eps.n_obs), np.inf, np.float32), np.full((2, eps.n_obs), -np.inf, np.float32)
    steps = np.flatnonzero(eps.labelled)
    for a in range(0, len(steps), CHUNK):
        for i, values in enumerate(_moves(eps, steps[a : a + CHUNK])):
            low[i], high[i] = np.minimum(low[i], values.min(0)), np.maximum(high[i], values.max(0))
    return Span(low, high)


def outside(known: Span, eps: Episodes, steps: np.ndarray, margin: float = MARGIN) -> np.ndarray:
    """Which steps leave the box in any dimension by over `margin` of its width, [N] bool."""
    slack = margin * (known.high - known.low)
    out = np.zeros(len(steps), bool)
    for values, low, high in zip(_moves(eps, steps), known.low - slack, known.high + slack, strict=True):
        out |= ((values < low) | (values > high)).any(1)
    return out


def _moves(eps: Episodes, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """s_t and s_{t+1} - s_t of these steps."""
    row = steps + np.searchsorted(eps.start, steps, side="right") - 1
    state = eps.obs[row]
    return state, eps.obs[row + 1] - state
