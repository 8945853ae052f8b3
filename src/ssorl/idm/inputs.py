"""Convert states to the inputs of a model: standardised values and, optionally, ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.stats import Standardiser, standardiser

KNOTS = 256  # quantiles of each coordinate
SAMPLE = 200_000  # states that the quantiles are computed from, at most


class Inputs(NamedTuple):
    """Convert states to inputs.

    A joint that is pressed against its stop moves by a thousandth of its range, and only this motion shows the torque.
    Standardised values are too coarse for it. Ranks resolve it, because many states lie near the stop.
    """

    scaler: Standardiser
    knots: np.ndarray | None = None  # [O, KNOTS] quantiles of each coordinate; None: no ranks

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Return the inputs [R, I] of states [R, O]; ranks are scaled to a standard deviation of 1."""
        if self.knots is None:
            return self.scaler(obs)
        n_obs = len(self.knots)
        out = np.empty((len(obs), 2 * n_obs), np.float32)
        out[:, :n_obs] = self.scaler(obs)
        levels = np.linspace(-np.sqrt(3), np.sqrt(3), KNOTS, dtype=np.float32)
        for i, knots in enumerate(self.knots):  # one coordinate at a time, to save memory
            out[:, n_obs + i] = np.interp(obs[:, i], knots, levels)
        return out


def inputs(eps: Episodes, ranks: bool) -> Inputs:
    """Fit the conversion to all states of a dataset, labelled or not.

    Args:
        eps: trajectories.
        ranks: whether the inputs contain ranks.
    """
    if not ranks:
        return Inputs(standardiser(eps))
    return Inputs(standardiser(eps), quantiles(eps.obs[:: stride(len(eps.obs))]))


def stride(n_rows: int) -> int:
    """Return k, where every k-th of `n_rows` states is used for the quantiles."""
    return max(1, -(-n_rows // SAMPLE))


def quantiles(rows: np.ndarray) -> np.ndarray:
    """Return the quantiles [O, KNOTS] of states [R, O]."""
    return np.quantile(rows, np.linspace(0, 1, KNOTS), axis=0).T.astype(np.float32)
