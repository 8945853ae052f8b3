"""A point mass in the plane: the smallest task with states, actions and skill worth telling apart. NumPy only."""

import numpy as np
from numpy.typing import NDArray

from ssorl.envs.base import Floats, Step

GOAL = np.zeros(2)


class PointMass:
    """Push a unit mass to the origin of a 2 m arena; leaving the arena ends the episode.

    Observation x, y, vx, vy; action a force in [-1, 1]²; reward exp(-distance) a step, so skill shows in the return.
    """

    name = "pointmass"
    n_obs, n_act, horizon = 4, 2, 100
    act_low, act_high = np.full(2, -1.0), np.full(2, 1.0)
    dt, drag, arena = 0.1, 0.3, 2.0
    cut = np.zeros(1, bool)  # never

    def __init__(self, n_envs: int) -> None:
        self.n_envs = n_envs
        self.state = np.zeros((n_envs, 4))

    def reset(self, rng: np.random.Generator, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Start at rest somewhere in the inner arena; draws only where `mask`, in row order."""
        mask = np.ones(self.n_envs, bool) if mask is None else mask
        n = np.count_nonzero(mask)
        self.state = self.state.copy()
        self.state[mask] = np.concatenate([rng.uniform(-1.5, 1.5, (n, 2)), np.zeros((n, 2))], axis=1)
        return self.state

    def step(self, act: Floats) -> Step:
        """Semi-implicit Euler with linear drag."""
        pos, vel = self.state[:, :2], self.state[:, 2:]
        vel = vel + self.dt * (np.clip(act, -1, 1) - self.drag * vel)
        pos = pos + self.dt * vel
        self.state = np.concatenate([pos, vel], axis=1)
        rew = np.exp(-np.linalg.norm(pos - GOAL, axis=1))
        return Step(self.state, rew, np.asarray((np.abs(pos) > self.arena).any(1)))

    def save(self) -> Floats:
        """The state."""
        return self.state

    def load(self, state: Floats) -> Floats:
        """Put a state back."""
        self.state = np.asarray(state)
        return self.state
