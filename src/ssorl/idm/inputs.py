"""How a model is shown states: standardised, and if asked for by their ranks too."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.stats import Standardiser, standardiser

KNOTS = 256  # of a coordinate's distribution
SAMPLE = 200_000  # states it is taken from


class Inputs(NamedTuple):
    """States as a model sees them.

    A joint pressed against its stop moves by a thousandth of its range, and that is all there is to tell the torque by.
    Divided by the deviation of the whole range it is lost on a network; its rank among all states resolves it, because
    many states lie there.
    """

    scaler: Standardiser
    knots: np.ndarray | None = None  # [O, KNOTS], quantiles of each coordinate over all states; None: no ranks

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """The rows [R, I] of states [R, O]; ranks are scaled to deviation 1 as well."""
        if self.knots is None:
            return self.scaler(obs)
        n_obs = len(self.knots)
        out = np.empty((len(obs), 2 * n_obs), np.float32)
        out[:, :n_obs] = self.scaler(obs)
        levels = np.linspace(-np.sqrt(3), np.sqrt(3), KNOTS, dtype=np.float32)
        for i, knots in enumerate(self.knots):  # one at a time: all at once would take several times the result
            out[:, n_obs + i] = np.interp(obs[:, i], knots, levels)
        return out


def inputs(eps: Episodes, ranks: bool) -> Inputs:
    """From all states, labelled or not: states are never hidden."""
    if not ranks:
        return Inputs(standardiser(eps))
    return Inputs(standardiser(eps), quantiles(eps.obs[:: stride(len(eps.obs))]))


def stride(n_rows: int) -> int:
    """Every how many-th state of so many is looked at for the quantiles."""
    return max(1, -(-n_rows // SAMPLE))


def quantiles(rows: np.ndarray) -> np.ndarray:
    """The knots [O, KNOTS] of these states."""
    return np.quantile(rows, np.linspace(0, 1, KNOTS), axis=0).T.astype(np.float32)
