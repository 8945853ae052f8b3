"""Problems with one or two states and known values."""

import numpy as np

from ssorl.data.episodes import Episodes, Meta

SMALL = {"hidden": (32, 32), "batch": 64, "updates": 1000, "tau": 0.05, "gamma": 0.5}
N = 400  # transitions in every problem, so that all are one compiled program


def transitions(obs, next_obs, rew, terminated):
    """Return trajectories of one step with uniform actions. Arrays [N]; `rew` is a function of the actions."""
    act = np.random.default_rng(0).uniform(-1, 1, (N, 1)).astype(np.float32)
    rows = np.stack([obs, next_obs], 1).reshape(-1, 1).astype(np.float32)
    ranges = Meta(act_low=(-1.0,), act_high=(1.0,))
    return Episodes(rows, act, rew(act[:, 0]).astype(np.float32), terminated, np.arange(N + 1), ranges)


def bandit(reward, terminated=True):
    return transitions(np.zeros(N), np.zeros(N), reward, np.full(N, terminated))
