"""A point mass in the plane: a small task in NumPy in which better policies earn visibly higher returns."""

import numpy as np
from numpy.typing import NDArray

from ssorl.envs.base import Floats, Step

GOAL = np.zeros(2)


class PointMass:
    """Push a unit mass to the origin of an arena of ±2 m; leaving the arena ends the episode.

    Observations are x, y, vx, vy; actions are forces in [-1, 1]²; the reward of a step is exp(-distance to the origin).
    """

    name = "pointmass"
    n_obs, n_act, horizon = 4, 2, 100
    act_low, act_high = np.full(2, -1.0), np.full(2, 1.0)
    dt, drag, arena = 0.1, 0.3, 2.0
    cut = np.zeros(1, bool)  # this environment never truncates

    def __init__(self, n_envs: int) -> None:
        self.n_envs = n_envs
        self.state = np.zeros((n_envs, 4))

    def reset(self, rng: np.random.Generator, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Start new episodes at rest within ±1.5 m; only environments in `mask` consume random numbers."""
        mask = np.ones(self.n_envs, bool) if mask is None else mask
        n = np.count_nonzero(mask)
        self.state = self.state.copy()
        self.state[mask] = np.concatenate([rng.uniform(-1.5, 1.5, (n, 2)), np.zeros((n, 2))], axis=1)
        return self.state

    def step(self, act: Floats) -> Step:
        """Apply forces `act[N, 2]` for one step of semi-implicit Euler with linear drag."""
        pos, vel = self.state[:, :2], self.state[:, 2:]
        vel = vel + self.dt * (np.clip(act, -1, 1) - self.drag * vel)
        pos = pos + self.dt * vel
        self.state = np.concatenate([pos, vel], axis=1)
        rew = np.exp(-np.linalg.norm(pos - GOAL, axis=1))
        return Step(self.state, rew, np.asarray((np.abs(pos) > self.arena).any(1)))

    def save(self) -> Floats:
        """Return the state [N, 4]."""
        return self.state

    def load(self, state: Floats) -> Floats:
        """Restore a state that `save` returned, and return the observations."""
        self.state = np.asarray(state)
        return self.state
