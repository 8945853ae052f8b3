"""Data for the mazes: walkers that go to one random cell after another along shortest paths, with noise.

After D4RL's maze2d (arXiv 2004.07219): a walker knows nothing of the fixed goal, which the rewards alone are for.
D4RL's walk is one endless line whose "timeouts" mark where the walker has reached the cell it was going to, or has
tried for as long as the horizon; a trajectory is what lies between two of them. Most are far shorter than the horizon
that the reference scores were measured at, so that many normalised returns are below zero, as the paper notes.
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

MAX_WALKERS = 256  # enough to hide the cost of a step in Python; part of what a seed means, so not the core count


@dataclass(frozen=True)
class Walk:
    """How the walkers walk. The numbers are those of D4RL's controller with its noise switched on."""

    pull: float = 10.0  # push per unit of distance to the next waypoint
    brake: float = 1.0  # push against each unit of speed
    noise: float = 0.5  # standard deviation of the noise added to a push
    near: float = 0.1  # distance at which a waypoint counts as reached
    jitter: float = 0.2  # waypoints lie up to this far from their cell's whole number, on the side of its middle
    cut: Literal["goal", "horizon"] = "goal"  # trajectories end at the cell walked to, as D4RL's do, or after `horizon`


D4RL_WALK = Walk()


def next_cells(layout: Layout) -> Ints:
    """[goal, cell] -> the cell after `cell` on a shortest path to `goal`; `goal` itself when there."""
    cells = layout.cells
    touch = np.abs(cells[:, None] - cells).sum(axis=-1) == 1
    away = shortest_path(touch, unweighted=True)
    after = np.where(touch, away[:, None, :], np.inf).argmin(axis=-1)
    np.fill_diagonal(after, np.arange(len(cells)))
    return after


class Walkers:
    """Where each of N walkers is going: a cell (`goal`) by way of the next cell (`aim`) and a place in it (`point`)."""

    def __init__(self, layout: Layout, walk: Walk, rng: np.random.Generator, place: Floats):
        self.layout, self.walk, self.rng, self.after = layout, walk, rng, next_cells(layout)
        here = layout.cell_at(place)
        self.age = np.zeros(len(place), np.int64)  # steps since `goal` was chosen
        self.goal = self._elsewhere(here)
        self.aim = self.after[self.goal, here]
        self.point = self._points()

    def push(self, obs: Floats) -> Floats:
        """What to do next, [N, 2]."""
        wish = self.walk.pull * (self.point - obs[:, :2]) - self.walk.brake * obs[:, 2:]
        return np.clip(wish + self.walk.noise * self.rng.standard_normal(wish.shape), -1, 1).astype(np.float32)

    def arrive(self, place: Floats) -> NDArray[np.bool_]:
        """Note the places after a step; True where a walker has reached or given up its goal and chosen another."""
        self.age += 1
        near = np.square(place - self.point).sum(axis=-1) < self.walk.near**2
        # The limit also frees a walker that a corner holds up.
        done = (near & (self.aim == self.goal)) | (self.age >= self.layout.horizon)
        here = np.where(near, self.aim, self.layout.cell_at(place))
        self.age[done] = 0
        self.goal = np.where(done, self._elsewhere(here), self.goal)
        turn = near | done
        self.aim = np.where(turn, self.after[self.goal, here], self.aim)
        self.point = np.where(turn[:, None], self._points(), self.point)
        return done

    def _elsewhere(self, here: Ints) -> Ints:
        """Any free cell but `here`, so that no trajectory is over before it begins."""
        n = len(self.layout.cells)
        return (here + 1 + self.rng.integers(n - 1, size=here.shape)) % n

    def _points(self) -> Floats:
        off = self.rng.uniform(0, self.walk.jitter, (len(self.aim), 2))
        off[self.aim == self.goal] = 0.0  # a goal is met exactly
        return self.layout.cells[self.aim].astype(np.float64) - off


def collect(
    name: str,
    n_steps: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
    walk: Walk = D4RL_WALK,
    threads: int | None = None,
) -> Episodes:
    """Whole trajectories of noisy walkers in the maze `name`, as few as hold `n_steps` steps.

    The same `name`, `n_steps`, `seed` and `walk` give the same bytes whatever `threads`. `progress` is told now
    and then how many of the `n_steps` have been made since.
    """
    horizon = layout_of(name).horizon
    n_walkers = int(np.clip(n_steps // horizon, 1, MAX_WALKERS))
    # What begins in the first n_steps / n_walkers steps is used and is over a horizon later: so nothing is left out
    # for being long.
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
    """First steps, in the flat order of `cut[N, T]`, and lengths of the earliest trajectories that hold `n_steps`."""
    begins, ends = np.ones_like(cut), cut.copy()
    begins[:, 1:], ends[:, -1] = cut[:, :-1], True
    first = np.flatnonzero(begins)
    lengths = np.flatnonzero(ends) + 1 - first
    order = np.argsort(first % cut.shape[1], kind="stable")
    keep = order[: np.searchsorted(np.cumsum(lengths[order]), n_steps) + 1]
    return first[keep], lengths[keep]


def _meta(name: str, walk: Walk) -> Meta:
    ends = "at each cell walked to, as D4RL's are" if walk.cut == "goal" else "at the horizon"
    return Meta(
        source=f"sim/{name}",
        env=name,
        act_low=(-1.0, -1.0),
        act_high=(1.0, 1.0),
        act_range="declared",
        random_return=SCORES[name].random,
        expert_return=SCORES[name].expert,
        notes=(f"endless walks are cut {ends}; rewards are for the fixed goal, which the walkers ignore",),
    )
