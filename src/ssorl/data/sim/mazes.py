"""Collect data in mazes: walkers follow shortest paths, with noise, to one random cell after another.

The data follows D4RL's maze2d (arXiv 2004.07219): rewards are for a fixed goal, which the walkers ignore. In D4RL, one
walker never stops, and "timeouts" mark the steps at which it reached its target cell or gave up after `horizon` steps.
The steps between two timeouts are a trajectory. Most trajectories are much shorter than the horizon that the reference
scores refer to, so many normalised returns are below zero, as the paper notes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from ssorl.data.episodes import Episodes, Meta, ranges
from ssorl.data.validate import build
from ssorl.envs.base import Floats
from ssorl.envs.maze import Layout, layout_of, maze
from ssorl.envs.scores import SCORES

Ints = NDArray[np.int64]

MAX_WALKERS = 256  # makes Python's overhead per step small; not the number of cores, because results depend on it


@dataclass(frozen=True)
class Walk:
    """Settings of the walkers; the defaults are those of D4RL's controller with noise."""

    pull: float = 10.0  # action per unit of distance to the next waypoint
    brake: float = 1.0  # action against each unit of speed
    noise: float = 0.5  # standard deviation of the action noise
    near: float = 0.1  # distance at which a waypoint counts as reached
    jitter: float = 0.2  # largest random offset of a waypoint from its cell's coordinates, towards the middle
    cut: Literal["goal", "horizon"] = "goal"  # trajectories end at target cells, as in D4RL, or after `horizon` steps


D4RL_WALK = Walk()


def next_cells(layout: Layout) -> Ints:
    """Return the next cell on a shortest path, [C, C] by goal and current cell; the goal if it is the current cell.

    Args:
        layout: the maze, with C free cells.
    """
    cells = layout.cells
    adjacent = np.abs(cells[:, None] - cells).sum(axis=-1) == 1
    distance = shortest_path(adjacent, unweighted=True)
    after = np.where(adjacent, distance[:, None, :], np.inf).argmin(axis=-1)
    np.fill_diagonal(after, np.arange(len(cells)))
    return after


class Walkers:
    """The plans of N walkers: a target cell (`goal`), the next cell (`aim`) and a waypoint in that cell (`point`)."""

    def __init__(self, layout: Layout, walk: Walk, rng: np.random.Generator, position: Floats):
        self.layout, self.walk, self.rng, self.after = layout, walk, rng, next_cells(layout)
        here = layout.cell_at(position)
        self.age = np.zeros(len(position), np.int64)  # steps since `goal` was chosen
        self.goal = self._other_cells(here)
        self.aim = self.after[self.goal, here]
        self.point = self._points()

    def push(self, obs: Floats) -> Floats:
        """Return the next actions [N, 2] for observations [N, 4]."""
        target = self.walk.pull * (self.point - obs[:, :2]) - self.walk.brake * obs[:, 2:]
        return np.clip(target + self.walk.noise * self.rng.standard_normal(target.shape), -1, 1).astype(np.float32)

    def arrive(self, position: Floats) -> NDArray[np.bool_]:
        """Update the plans after a step.

        Args:
            position: new positions of the walkers [N, 2].

        Returns:
            Whether each walker reached its goal or gave up, and so has a new one, [N].
        """
        self.age += 1
        near = np.square(position - self.point).sum(axis=-1) < self.walk.near**2
        # The limit also frees walkers that are stuck at a corner.
        done = (near & (self.aim == self.goal)) | (self.age >= self.layout.horizon)
        here = np.where(near, self.aim, self.layout.cell_at(position))
        self.age[done] = 0
        self.goal = np.where(done, self._other_cells(here), self.goal)
        turn = near | done
        self.aim = np.where(turn, self.after[self.goal, here], self.aim)
        self.point = np.where(turn[:, None], self._points(), self.point)
        return done

    def _other_cells(self, here: Ints) -> Ints:
        """Draw a free cell other than the current one, so that no trajectory is empty."""
        n = len(self.layout.cells)
        return (here + 1 + self.rng.integers(n - 1, size=here.shape)) % n

    def _points(self) -> Floats:
        """Draw a waypoint in the next cell of each walker."""
        off = self.rng.uniform(0, self.walk.jitter, (len(self.aim), 2))
        off[self.aim == self.goal] = 0.0  # goals have no offset
        return self.layout.cells[self.aim].astype(np.float64) - off


def collect(
    name: str,
    n_steps: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
    walk: Walk = D4RL_WALK,
    threads: int | None = None,
) -> Episodes:
    """Return the fewest complete trajectories of noisy walkers that have at least `n_steps` steps together.

    Args:
        name: name of the maze.
        n_steps: number of steps to reach.
        seed: seed of initial states, goals and noise.
        progress: called from time to time with the number of new steps, `n_steps` in total.
        walk: settings of the walkers.
        threads: threads of the simulator; they do not change the result.
    """
    horizon = layout_of(name).horizon
    n_walkers = int(np.clip(n_steps // horizon, 1, MAX_WALKERS))
    # Trajectories that start in the first n_steps / n_walkers steps are used; all of them end within another horizon,
    # so the selection is not biased towards short ones.
    n_times = -(-n_steps // n_walkers) + horizon
    env, rng = maze(name, n_walkers, threads), np.random.default_rng(seed)
    all_obs = np.empty((n_walkers, n_times + 1, env.n_obs), np.float32)
    all_act = np.empty((n_walkers, n_times, env.n_act), np.float32)
    all_rew, cut = np.empty((n_walkers, n_times), np.float32), np.zeros((n_walkers, n_times), bool)

    obs = all_obs[:, 0] = env.reset(rng)
    walkers = Walkers(env.layout, walk, rng, obs[:, :2])
    for t in range(n_times):
        act = walkers.push(obs)
        obs, rew, _ = env.step(act)
        done = walkers.arrive(obs[:, :2])
        all_act[:, t], all_rew[:, t], all_obs[:, t + 1] = act, rew, obs
        cut[:, t] = done if walk.cut == "goal" else (t + 1) % horizon == 0
        if progress and (t % 100 == 99 or t + 1 == n_times):
            progress(n_steps * (t + 1) // n_times - n_steps * (t - t % 100) // n_times)

    first, lengths = _earliest(cut, n_steps)
    rows = ranges(first + first // n_times, lengths + 1)  # a walker has one row more than steps
    steps = ranges(first, lengths)
    return build(
        all_obs.reshape(-1, env.n_obs)[rows],
        all_act.reshape(-1, env.n_act)[steps],
        all_rew.ravel()[steps],
        np.zeros(len(steps), bool),
        lengths,
        _meta(name, walk),
    )


def _earliest(cut: NDArray[np.bool_], n_steps: int) -> tuple[Ints, Ints]:
    """Return first steps, as flat indices into `cut[N, T]`, and lengths of the earliest trajectories with `n_steps`."""
    starts, ends = np.ones_like(cut), cut.copy()
    starts[:, 1:], ends[:, -1] = cut[:, :-1], True
    first = np.flatnonzero(starts)
    lengths = np.flatnonzero(ends) + 1 - first
    order = np.argsort(first % cut.shape[1], kind="stable")
    keep = order[: np.searchsorted(np.cumsum(lengths[order]), n_steps) + 1]
    return first[keep], lengths[keep]


def _meta(name: str, walk: Walk) -> Meta:
    ends = "at each target cell, as in D4RL" if walk.cut == "goal" else "at the horizon"
    return Meta(
        source=f"sim/{name}",
        env=name,
        act_low=(-1.0, -1.0),
        act_high=(1.0, 1.0),
        act_range="declared",
        random_return=SCORES[name].random,
        expert_return=SCORES[name].expert,
        notes=(f"trajectories are cut {ends}; rewards are for the fixed goal, which the walkers ignore",),
    )
