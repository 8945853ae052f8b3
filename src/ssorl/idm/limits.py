"""Keep proxy actions off the limits of their range, unless the true actions lie there as often.

Where a model is unsure it overshoots, and a clipped overshoot is a label of exactly +1 or -1. A policy that squashes
its actions, such as Decision Transformer's, is pulled to infinity by such labels. So predictions near a limit are
compressed below it; only the largest, as many as the true actions have there, become the limit itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes, scale
from ssorl.idm.base import FittedIdm

AT_LIMIT = 0.9985  # of a scaled action: from here on it counts as being at the limit
KNEE, TOP = 0.9, 0.998  # predictions from the knee up to the turn are mapped linearly to values below the top
EXCESS = 0.002  # share of predictions at a limit, beyond the share of true actions, that is left alone
SAMPLE = 20_000  # steps whose predictions are compared with the true actions


class Limits(NamedTuple):
    """The prediction from which on each dimension is at its limit; infinite: never. NaN: predictions are clipped."""

    low: np.ndarray  # [A] float32, of the negated prediction
    high: np.ndarray  # [A] float32
    reach: np.ndarray  # [2, A] float32, the largest prediction (below, above), which is mapped to the top

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
    """Compare predictions with the true actions of `eps`, whose labelled steps taught the model.

    Args:
        idm: the fitted model.
        eps: trajectories; the unlabelled steps are predicted, or the labelled ones if there are no others.
        seed: of the sample of steps.
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
        cut = len(value) - np.floor(true * len(value)).astype(int)  # from this rank on, as many as the true actions
        turn = np.where(cut < len(value), ranked[np.minimum(cut, len(value) - 1), np.arange(mean.shape[1])], np.inf)
        turns.append(np.where(excess, np.maximum(turn, AT_LIMIT), np.nan).astype(np.float32))
        reach.append(np.maximum(ranked[-1], 1.0))
    return Limits(turns[0], turns[1], np.array(reach, np.float32))
