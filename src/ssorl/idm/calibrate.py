"""Whether an uncertainty means what it says: coverage of intervals, the factors that mend it, and known ground."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes

LEVELS = (0.5, 0.8, 0.95)  # of the central intervals whose coverage is told
NORMAL = (0.6744898, 1.2815516, 1.9599640)  # half-widths of those intervals in standard deviations
OFF = 0.03  # a coverage this far from its level is worth recalibrating
SCALES = np.concatenate([[1.0], np.geomspace(0.01, 100, 801)])  # tried; the first wins a tie
ALONE = 200  # held-out steps from which on each action dimension is judged by its own
CHUNK = 1 << 16  # steps looked at together: bounds memory
MARGIN = 0.05  # how far, as a share of its range, a state may leave what was labelled before it is flagged


@dataclass(frozen=True)
class Calibration:
    """Coverage of the central intervals on held-out steps, and the factor of each action dimension that mends it."""

    levels: tuple[float, ...]
    before: tuple[float, ...]  # share of held-out actions inside, with the deviations as predicted
    after: tuple[float, ...]  # with the deviations times `scale`
    scale: tuple[float, ...]  # [A]; 1 where the coverage was right already


def coverage(error: np.ndarray, std: np.ndarray) -> tuple[float, ...]:
    """The share of errors inside each interval of `LEVELS`, over all values alike."""
    return tuple((inside(error, std) / error.size).tolist())


def inside(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """How many errors lie inside each interval of `LEVELS`: the coverage of data that comes in parts."""
    ratios = np.abs(error) / np.maximum(std, 1e-12)
    return np.array([np.count_nonzero(ratios <= np.float64(w)) for w in NORMAL], np.int64)


def calibrate(error: np.ndarray, std: np.ndarray, moving: np.ndarray | None = None) -> Calibration:
    """From the errors [N, A] of predictions at steps no weights were fitted to, and the deviations predicted there.

    A gripper is harder to tell than a joint, so each dimension has a factor of its own; all have the same where there
    are too few steps for that. Dimensions that are not `moving` keep theirs, and count in no coverage.
    """
    moving, scale = np.arange(error.shape[1]) if moving is None else moving, np.ones(error.shape[1])
    ratios = np.abs(error) / np.maximum(std, 1e-12)
    for dims in moving[:, None] if len(error) >= ALONE else [moving]:
        scale[dims] = _factor(ratios[:, dims])
    before, after = (_inside(some[:, moving]) for some in (ratios, ratios / scale))
    return Calibration(LEVELS, before, after, tuple(scale.tolist()))


def _factor(ratios: np.ndarray) -> float:
    """The factor that brings the worst of the three coverages nearest to its level, 1 being among those tried.

    Errors of exactly 0 do not choose it: they are of predictions cut at a limit where the action was that limit, lie
    inside at any width, and if many would have all others' deviations shrunk to nothing.
    """
    telling = ratios[ratios > 0]
    if not len(telling) or _gap(_inside(telling)) <= OFF:
        return 1.0
    ordered = np.sort(telling)

    def gap(scale: float) -> float:
        return _gap(tuple(np.searchsorted(ordered, w * scale, side="right") / len(ordered) for w in NORMAL))

    return float(min(SCALES, key=gap))


def factors(scale: Sequence[float]) -> str:
    """The factors of a calibration, as 0.94 or 0.94 to 1.20; nothing where all are 1."""
    ends = dict.fromkeys(f"{x:.2f}" for x in (min(scale), max(scale)))
    return " to ".join(ends) if any(x != 1 for x in scale) else ""


def _inside(ratios: np.ndarray) -> tuple[float, ...]:
    return tuple(float(np.mean(ratios <= w)) for w in NORMAL)


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
