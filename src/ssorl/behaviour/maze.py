"""Data for the mazes: walkers that go from one random cell to the next along shortest paths, with noise.

After D4RL's maze2d (arXiv 2004.07219, section 5): the walker never knows of the fixed goal that the rewards are for.
Many walkers go at once, each forever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from ssorl.data.check import build
from ssorl.data.episodes import Episodes, Meta, ranges
from ssorl.envs.base import Floats
from ssorl.envs.maze import Layout, maze
from ssorl.envs.scores import SCORES

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Walk:
    """How the walkers walk."""

    pull: float = 10.0  # push per unit of distance to the next waypoint
    brake: float = 1.0  # push per unit of speed, backwards
    noise: float = 0.5  # standard deviation of the noise on each push
    near: float = 0.1  # distance at which a waypoint counts as reached
    jitter: float = 0.2  # a waypoint lies up to this far from its cell's whole number, towards the middle and beyond
    cut: Literal["goal", "horizon"] = "goal"  # where a trajectory ends


def next_cells(layout: Layout) -> Ints:
    """[goal, cell] -> the neighbour of `cell` to go to on a shortest path to `goal`, `goal` itself when there."""
    cells = layout.cells
    touch = np.abs(cells[:, None] - cells[None]).sum(-1) == 1
    away = shortest_path(touch.astype(float), unweighted=True)
    step = np.where(touch, away[:, None, :], np.inf).argmin(-1)
    np.fill_diagonal(step, np.arange(len(cells)))
    return step
