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
        plain = self.scaler(obs)
        if self.knots is None:
            return plain
        levels = np.linspace(-np.sqrt(3), np.sqrt(3), KNOTS, dtype=np.float32)
        ranks = [np.interp(x, knots, levels) for x, knots in zip(obs.T, self.knots, strict=True)]
        return np.concatenate([plain, np.stack(ranks, axis=1).astype(np.float32)], axis=1)


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
