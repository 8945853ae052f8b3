"""Keep proxy actions away from the limits of their range, unless true actions lie there as often.

An uncertain model overshoots, and clipping turns an overshoot into a label of exactly +1 or -1. A policy with a tanh
output, such as Decision Transformer, diverges on such labels. So predictions near a limit are compressed to values
below it. Only the largest predictions become the limit itself, as many as there are true actions at the limit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes, scale
from ssorl.idm.base import FittedIdm

AT_LIMIT = 0.9985  # scaled actions of at least this size count as being at the limit
KNEE, TOP = 0.9, 0.998  # predictions above the knee and below the turn are mapped linearly to [KNEE, TOP]
EXCESS = 0.002  # predictions are only clipped if their share at a limit exceeds that of true actions by at most this
SAMPLE = 20_000  # steps whose predictions are compared with the true actions


class Limits(NamedTuple):
    """The turn of each dimension: predictions from there on become the limit. Infinite: none; NaN: all are clipped."""

    low: np.ndarray  # [A] float32, for the negated prediction
    high: np.ndarray  # [A] float32
    reach: np.ndarray  # [2, A] float32, largest prediction at the low and high limit, which is mapped to TOP

    def __call__(self, mean: np.ndarray) -> np.ndarray:
        """Return the actions [N, A] in [-1, 1] for predictions [N, A]."""
        out = np.clip(mean, -1, 1)
        for side, (sign, turn) in enumerate(((-1, self.low), (1, self.high))):
            value = sign * mean
            top = np.minimum(turn, self.reach[side])
            inner = KNEE + (TOP - KNEE) * (np.minimum(value, top) - KNEE) / np.maximum(top - KNEE, 1e-6)
            soft = np.where(value >= turn, 1.0, inner)
            out = np.where((value > KNEE) & ~np.isnan(turn), sign * soft, out)
        return out.astype(np.float32)


def find_limits(idm: FittedIdm, eps: Episodes, seed: int = 0) -> Limits:
    """Choose the turns by comparing predictions with true actions.

    Args:
        idm: the fitted model.
        eps: the trajectories that it was fitted to; the unlabelled steps are predicted, or all steps if none is
            unlabelled.
        seed: seed of the sample of steps.
    """
    known = scale(eps.act[eps.labelled], eps.meta)
    steps = np.flatnonzero(~eps.labelled) if not eps.labelled.all() else np.arange(eps.n_steps)
    if len(steps) > SAMPLE:
        steps = np.sort(np.random.default_rng(seed).choice(steps, SAMPLE, replace=False))
    mean = np.concatenate([block.mean for block in idm.predict(eps, steps)])
    turns, reach = [], []
    for sign in (-1, 1):
        value, true = sign * mean, (sign * known >= AT_LIMIT).mean(0)
        excess = (value >= AT_LIMIT).mean(0) > true + EXCESS
        ranked = np.sort(value, 0)
        cut = len(value) - np.floor(true * len(value)).astype(
            int
        )  # predictions from this rank on are as many as true actions
        turn = np.where(cut < len(value), ranked[np.minimum(cut, len(value) - 1), np.arange(mean.shape[1])], np.inf)
        turns.append(np.where(excess, np.maximum(turn, AT_LIMIT), np.nan).astype(np.float32))
        reach.append(np.maximum(ranked[-1], 1.0))
    return Limits(turns[0], turns[1], np.array(reach, np.float32))
