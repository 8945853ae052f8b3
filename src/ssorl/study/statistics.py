"""What scores of many runs say together, and how surely (Agarwal et al. 2021, arXiv 2108.13264).

Scores come as strata, one for each task (a column of the grid: a dataset with a label quality, say), and a stratum is
an array of one number for each seed, or of several, such as its episodes: [seeds] or [seeds, episodes]. The bootstrap
draws seeds anew within each stratum, a seed with all its episodes, because the episodes of one policy are no separate
evidence about a method. Strata need not have the same number of seeds. One that is given several times, the same
object, as the oracle of one dataset is for every label quality, is drawn once: it is the same evidence each time. A
statistic takes the strata of a whole block of resamples at once: each is [block, seeds, ...], and the answer [block].
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
    """A statistic of the scores, and the percentile interval of its resamples."""

    value: float
    low: float
    high: float


# Statistics -------------------------------------------------------------------------------------------------


def iqm(strata: Strata) -> np.ndarray:
    """The interquartile mean of all scores: a quarter (rounded down) is cut off at both ends."""
    pooled = np.concatenate([s.reshape(len(s), -1) for s in strata], 1)
    n = pooled.shape[1]
    cut = n // 4
    # Sorting whole rows is vectorised in NumPy and takes half the time of finding two quantiles by partition.
    return np.sort(pooled, 1)[:, cut : n - cut].mean(1)


def mean(strata: Strata) -> np.ndarray:
    """The mean over tasks of each one's mean, so that a task with more seeds does not count more."""
    return _means(strata).mean(1)


def median(strata: Strata) -> np.ndarray:
    """The median over tasks of each one's mean."""
    return np.median(_means(strata), 1)


def relative_gap(agent: Strata, oracle: Strata) -> np.ndarray:
    """(oracle - agent) / oracle, the mean over tasks of each one's; NaN where an oracle earns nothing."""
    best = _best(oracle)
    return ((best - _means(agent)) / best).mean(1)


def iqm_gap(agent: Strata, oracle: Strata) -> np.ndarray:
    """The interquartile mean of every seed's relative gap, each to the mean of its own task's oracles."""
    best = _best(oracle)
    each = [1 - s.reshape(*s.shape[:2], -1).mean(2) / best[:, i, None] for i, s in enumerate(agent)]
    return iqm(each) + 0 * best.sum(1)  # a gap that is no number must not fall off as an outlier


def improvement(x: Strata, y: Strata) -> np.ndarray:
    """The probability that a run of x beats one of y on the same task (a tie counts half), the mean over tasks."""
    each = []
    for a, b in zip(x, y, strict=True):
        a, b = (s.reshape(*s.shape[:2], -1).mean(2) for s in (a, b))
        above, same = a[:, :, None] > b[:, None], a[:, :, None] == b[:, None]
        each.append(above.mean((1, 2)) + 0.5 * same.mean((1, 2)))
    return np.mean(each, 0)


def difference(statistic: Statistic = mean) -> Statistic:
    """How much larger the statistic of the first argument is than that of the second."""
    return lambda x, y: statistic(x) - statistic(y)


# The bootstrap ----------------------------------------------------------------------------------------------


def estimate(
    statistic: Statistic,
    *groups: Sequence[ArrayLike],
    replications: int = REPLICATIONS,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """The statistic of one or more groups of strata with its stratified bootstrap interval.

    The groups are drawn independently but for what they share. With one seed in a stratum there is nothing to draw
    there, and the interval is too narrow: `fewest` tells how many there are.
    """
    told = _checked(groups)
    value = float(statistic(*([s[None] for s in group] for group in told))[0])
    draws = resample_strata(statistic, told, replications, seed)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high))


def student(
    statistic: Statistic,
    *groups: Sequence[ArrayLike],
    replications: int = REPLICATIONS,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """The statistic with an interval by Student's t, its standard error that of the resamples.

    Percentile intervals of few seeds are too narrow (at 95 % with five seeds, about one in eight misses) and have no
    ends beyond the most extreme resample: no ground for a verdict out of many.
    """
    told = _checked(groups)
    value = float(statistic(*([s[None] for s in group] for group in told))[0])
    n, freedom = fewest(*told), sum(len(s) - 1 for s in distinct(told).values())
    if n < 2:
        return Estimate(value, -math.inf, math.inf)
    draws = resample_strata(statistic, told, replications, seed)
    half = float(draws.std() * math.sqrt(n / (n - 1)) * stdtrit(freedom, (1 + level) / 2))
    return Estimate(value, value - half, value + half)


def fewest(*groups: Sequence[ArrayLike]) -> int:
    """Seeds in the smallest stratum."""
    return min((len(np.asarray(s)) for group in groups for s in group), default=0)


def _checked(groups: Sequence[Sequence[ArrayLike]]) -> list[list[np.ndarray]]:
    """As arrays; what was one object stays one."""
    groups = [list(group) for group in groups]  # the rows of an array are other objects each time
    arrays = {name: np.array(s, np.float64) for name, s in distinct(groups).items()}
    if not all(groups) or any(s.ndim == 0 or not s.size for s in arrays.values()):
        raise SsorlError("a statistic was asked of no scores; each task needs at least one seed")
    if not all(np.isfinite(s).all() for s in arrays.values()):
        raise SsorlError("a score is not a finite number; delete the cell that holds it and run the study again")
    return [[arrays[id(s)] for s in group] for group in groups]


def _best(oracle: Strata) -> np.ndarray:
    """The oracles' means; a gap relative to nothing, or to less, is no number."""
    best = _means(oracle)
    return np.where(best > 0, best, np.nan)


def _means(strata: Strata) -> np.ndarray:
    """[block, tasks]."""
    return np.stack([s.reshape(len(s), -1).mean(1) for s in strata], 1)
