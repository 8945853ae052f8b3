"""The bootstrap: means of resampled episodes, and statistics of seeds resampled within strata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MEANS_BLOCK = 4_000_000  # numbers drawn at a time by `resample_means`, to bound the memory
STRATA_BLOCK = 1 << 20  # the same for `resample_strata`

Strata = Sequence[np.ndarray]
Statistic = Callable[..., np.ndarray]  # takes the strata [block, seeds, ...] of each group, returns [block]


def resample_means(values: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return the mean over the first axis in each of several resamples with replacement.

    Args:
        values: N samples, [N] or [N, P]; all P columns use the same resamples.
        draws: number of resamples D.
        rng: source of the resamples.

    Returns:
        Means [D] or [D, P].
    """
    n = len(values)
    means = np.empty((draws, *values.shape[1:]))
    size = max(1, MEANS_BLOCK // n)
    for first in range(0, draws, size):
        counts = rng.multinomial(n, np.full(n, 1 / n), min(size, draws - first))
        means[first : first + size] = counts @ values / n
    return means


def resample_strata(statistic: Statistic, groups: Sequence[Strata], draws: int, seed: int) -> np.ndarray:
    """Return a statistic of each of several resamples; seeds are drawn with replacement within their stratum.

    A stratum that occurs several times, as the same object, is drawn once.

    Args:
        statistic: takes the strata of each group, for a block of resamples at once.
        groups: strata [seeds, ...] of each group.
        draws: number of resamples D.
        seed: seed of the resamples.

    Returns:
        Values [D].
    """
    rng = np.random.default_rng(seed)
    size = max(1, STRATA_BLOCK // sum(s.size for group in groups for s in group))
    strata, values = distinct(groups), []
    for first in range(0, draws, size):
        n = min(size, draws - first)
        drawn = {key: s[rng.integers(len(s), size=(n, len(s)))] for key, s in strata.items()}
        values.append(statistic(*([drawn[id(s)] for s in group] for group in groups)))
    return np.concatenate(values)


def distinct(groups: Sequence[Sequence[Any]]) -> dict[int, Any]:
    """Return each stratum once, by its identity."""
    return {id(s): s for group in groups for s in group}
