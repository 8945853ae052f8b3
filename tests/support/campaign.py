"""Long searches for faults: `pytest --campaign` goes through all of a campaign, a plain run through a seeded part."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

SHARE = 0.02  # of a campaign in a plain run


class Campaign(NamedTuple):
    """How much of each campaign is done."""

    full: bool

    def count(self, n: int) -> int:
        """Return how many of `n` cases to run: all, or 2 %. Case i must depend on i alone."""
        return n if self.full else max(1, round(SHARE * n))

    def points(self, n: int, few: int, seed: int) -> list[int]:
        """Return numbers of 1..n: all, or `few` drawn one from each of as many equal parts, no two of them adjacent."""
        if self.full:
            return list(range(1, n + 1))
        assert n >= 8 * few, f"{n} points are too few to draw {few} of them apart"
        edges = np.linspace(1, n + 1, few + 1).astype(int)
        rng = np.random.default_rng(seed)
        return [int(rng.integers(low, high - 3)) for low, high in pairwise(edges)]
