"""Statistics of all states of a dataset, which scale the inputs of a network; also for data that is read in parts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.stats import standardiser_from_moments
from ssorl.idm.base import ReadParts
from ssorl.idm.inputs import Inputs, quantiles, stride

MAX_MEAN = 10  # largest mean of a scaled difference


class Statistics(NamedTuple):
    """Statistics of all states of a dataset, labelled or not."""

    inputs: Inputs
    diff_std: np.ndarray  # [I], divisors of the differences of inputs
    base: int = 0  # first row of the dataset in the table of all datasets


def difference_scale(rows: np.ndarray, eps: Episodes) -> np.ndarray:
    """Return the divisors of the differences of inputs, [I].

    The sums are in float64, because float32 sums lose precision after a few million rows.

    Args:
        rows: inputs [R, I] of all states.
        eps: the trajectories of these states.
    """
    change = rows[eps.obs_row + 1] - rows[eps.obs_row]
    return scale_of(change.mean(0, np.float64), change.std(0, np.float64))


def scale_of(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return the divisors of differences with these means and standard deviations, all [I].

    A clock changes by the same amount each step, so its std is only a rounding error. Divided by that, it would be far
    larger than all other features; the lower bound prevents this.
    """
    return np.maximum(std, np.maximum(np.abs(mean) / MAX_MEAN, 1e-6)).astype(np.float32)


def measure(read: ReadParts, n_states: int, ranks: bool) -> Statistics:
    """Return the statistics of data that is read in parts, twice. They equal those of data in memory up to rounding.

    Args:
        read: reads all trajectories once.
        n_states: rows of `obs` in all parts together.
        ranks: whether the inputs contain ranks.
    """
    sample, moments, row = [], Moments(), 0
    every = stride(n_states)
    for part in read():
        if ranks:
            sample.append(part.obs[-row % every :: every].copy())  # a view would keep the whole part
        moments.add(part.obs)
        row += len(part.obs)
    knots = quantiles(np.concatenate(sample)) if ranks else None
    states = Inputs(standardiser_from_moments(moments.mean, moments.std), knots)
    moments = Moments()
    for part in read():
        rows = states(part.obs)
        moments.add(rows[part.obs_row + 1] - rows[part.obs_row])
    return Statistics(states, scale_of(moments.mean, moments.std))


class Moments:
    """Compute mean and standard deviation of rows part by part, in float64 (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.n, self.mean, self.squares = 0, np.zeros(1), np.zeros(1)

    def add(self, rows: np.ndarray) -> None:
        """Add the rows [N, D] of the next part."""
        mean, n = rows.mean(0, dtype=np.float64), self.n + len(rows)
        apart = mean - self.mean
        self.squares = self.squares + rows.var(0, dtype=np.float64) * len(rows) + apart**2 * (self.n * len(rows) / n)
        self.mean, self.n = self.mean + apart * (len(rows) / n), n

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of all rows so far, [D]."""
        return np.sqrt(self.squares / self.n)
