"""Statistics of the scores of many runs, with bootstrap intervals (Agarwal et al. 2021, arXiv 2108.13264).

Scores are given as strata, one for each task (a column of the grid, such as a dataset with a label quality). A stratum
is an array of one number for each seed, or of several, such as its episodes: [seeds] or [seeds, episodes]. The
bootstrap draws seeds with replacement within each stratum, and a seed with all its episodes, because the episodes of
one policy are no independent evidence about a method. Strata may have different numbers of seeds. A stratum that is
given several times as the same object is drawn once in each resample: for example, all label qualities share the
oracle of a dataset. A statistic takes strata of a block of resamples, each [block, seeds, ...], and returns [block].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from ssorl.utils.bootstrap import Statistic, Strata, distinct, resample_strata
from ssorl.utils.errors import SsorlError

REPLICATIONS = 50_000
LEVEL = 0.95


class Estimate(NamedTuple):
    """A statistic with its confidence interval."""

    value: float
    low: float
    high: float


# Statistics -------------------------------------------------------------------------------------------------


def iqm(strata: Strata) -> np.ndarray:
    """Return the interquartile mean of all scores: a quarter (rounded down) is cut off at both ends.

    Args:
        strata: arrays [block, seeds, ...], one for each task.

    Returns:
        Array [block].
    """
    pooled = np.concatenate([s.reshape(len(s), -1) for s in strata], 1)
    n = pooled.shape[1]
    cut = n // 4
    # Sorting whole rows is vectorised in NumPy and takes half the time of finding two quantiles by partition.
    return np.sort(pooled, 1)[:, cut : n - cut].mean(1)


def mean(strata: Strata) -> np.ndarray:
    """Return the mean over tasks of the task means, [block]; tasks count equally, whatever their number of seeds."""
    return _means(strata).mean(1)


def median(strata: Strata) -> np.ndarray:
    """Return the median over tasks of the task means, [block]."""
    return np.median(_means(strata), 1)


def relative_gap(agent: Strata, oracle: Strata) -> np.ndarray:
    """Return the mean over tasks of (oracle - agent) / oracle; NaN if an oracle's mean is not above 0.

    Args:
        agent: strata of the agent, one for each task.
        oracle: strata of the oracle for the same tasks.

    Returns:
        Array [block].
    """
    best = _best(oracle)
    return ((best - _means(agent)) / best).mean(1)


def iqm_gap(agent: Strata, oracle: Strata) -> np.ndarray:
    """Return the interquartile mean of all seeds' relative gaps to the mean of their task's oracle.

    Args:
        agent: strata of the agent, one for each task.
        oracle: strata of the oracle for the same tasks.

    Returns:
        Array [block]; NaN if an oracle's mean is not above 0.
    """
    best = _best(oracle)
    each = [1 - s.reshape(*s.shape[:2], -1).mean(2) / best[:, i, None] for i, s in enumerate(agent)]
    return iqm(each) + 0 * best.sum(1)  # the sum keeps a NaN, which the interquartile mean could cut off


def improvement(x: Strata, y: Strata) -> np.ndarray:
    """Return the mean over tasks of the probability that a run of x beats a run of y; a tie counts half.

    Args:
        x: strata of one method, one for each task.
        y: strata of the other method for the same tasks.

    Returns:
        Array [block].
    """
    each = []
    for a, b in zip(x, y, strict=True):
        a, b = (s.reshape(*s.shape[:2], -1).mean(2) for s in (a, b))
        above, same = a[:, :, None] > b[:, None], a[:, :, None] == b[:, None]
        each.append(above.mean((1, 2)) + 0.5 * same.mean((1, 2)))
    return np.mean(each, 0)


def difference(statistic: Statistic = mean) -> Statistic:
    """Return a function of two groups of strata: the statistic of the first minus that of the second."""
    return lambda x, y: statistic(x) - statistic(y)


# The bootstrap ----------------------------------------------------------------------------------------------


def estimate(
    statistic: Statistic,
    *groups: Sequence[ArrayLike],
    replications: int = REPLICATIONS,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """Return a statistic of groups of strata with its percentile interval from a stratified bootstrap.

    Groups are drawn independently, except for strata that they share. A stratum with one seed does not vary, so the
    interval is then too narrow: check with `fewest`.

    Args:
        statistic: the statistic.
        groups: its arguments, each a sequence of strata [seeds] or [seeds, episodes].
        replications: number of resamples.
        seed: seed of the resamples.
        level: level of the interval.

    Raises:
        SsorlError: a group or a stratum is empty, or a score is not finite.
    """
    arrays = _checked(groups)
    value = float(statistic(*([s[None] for s in group] for group in arrays))[0])
    draws = resample_strata(statistic, arrays, replications, seed)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high))


def student(
    statistic: Statistic,
    *groups: Sequence[ArrayLike],
    replications: int = REPLICATIONS,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """Return a statistic with an interval by Student's t, whose standard error is that of the resamples.

    Percentile intervals of few seeds are too narrow: at 95 % with five seeds, about one in eight misses. They also end
    at the most extreme resample, so they cannot support a verdict that corrects for many checks.

    Args:
        statistic: the statistic.
        groups: its arguments, as for `estimate`.
        replications: number of resamples.
        seed: seed of the resamples.
        level: level of the interval.

    Returns:
        The estimate; the interval is infinite if a stratum has one seed.

    Raises:
        SsorlError: a group or a stratum is empty, or a score is not finite.
    """
    arrays = _checked(groups)
    value = float(statistic(*([s[None] for s in group] for group in arrays))[0])
    n, freedom = fewest(*arrays), sum(len(s) - 1 for s in distinct(arrays).values())
    if n < 2:
        return Estimate(value, -math.inf, math.inf)
    draws = resample_strata(statistic, arrays, replications, seed)
    half = float(draws.std() * math.sqrt(n / (n - 1)) * stdtrit(freedom, (1 + level) / 2))
    return Estimate(value, value - half, value + half)


def fewest(*groups: Sequence[ArrayLike]) -> int:
    """Return the number of seeds in the smallest stratum; 0 if there are no strata."""
    return min((len(np.asarray(s)) for group in groups for s in group), default=0)


def _checked(groups: Sequence[Sequence[ArrayLike]]) -> list[list[np.ndarray]]:
    """Return the strata as arrays after checking them; equal objects stay equal objects."""
    groups = [list(group) for group in groups]  # iterating over an array makes new objects each time
    arrays = {name: np.array(s, np.float64) for name, s in distinct(groups).items()}
    if not all(groups) or any(s.ndim == 0 or not s.size for s in arrays.values()):
        raise SsorlError("a statistic has no scores; each task needs at least one seed")
    if not all(np.isfinite(s).all() for s in arrays.values()):
        raise SsorlError("a score is not a finite number; delete the cell that holds it and run the study again")
    return [[arrays[id(s)] for s in group] for group in groups]


def _best(oracle: Strata) -> np.ndarray:
    """Return the means of the oracles; NaN where a mean is not above 0, because the relative gap is undefined."""
    best = _means(oracle)
    return np.where(best > 0, best, np.nan)


def _means(strata: Strata) -> np.ndarray:
    """Return the mean of each task, [block, tasks]."""
    return np.stack([s.reshape(len(s), -1).mean(1) for s in strata], 1)
