"""`builtin/pointmass`: 300 trajectories of a point mass under controllers of different skill, generated on use."""

from __future__ import annotations

import numpy as np

from ssorl.data.episodes import Episodes, Meta, offsets, ranges
from ssorl.data.validate import READ_ALL, ReadOptions, build
from ssorl.envs.pointmass import PointMass
from ssorl.utils.errors import DataError

N_EPISODES, SEED = 300, 0
RANDOM_RETURN, EXPERT_RETURN = 14.10, 90.38  # means over 10,000 episodes of skill 0 and 1; a test checks them


def names() -> list[str]:
    """Return the names of the datasets, without `builtin/`."""
    return ["pointmass"]


def load_id(name: str, options: ReadOptions = READ_ALL) -> Episodes:
    """Return the dataset.

    Args:
        name: name without `builtin/`.
        options: options of reading.

    Raises:
        DataError: the name is unknown.
    """
    if name not in names():
        raise DataError(f"builtin/{name}: is not a built-in dataset; choose builtin/pointmass")
    rng = np.random.default_rng(SEED)
    return rollout(rng.uniform(0, 1, N_EPISODES), rng, options)


def rollout(skill: np.ndarray, rng: np.random.Generator, options: ReadOptions = READ_ALL) -> Episodes:
    """Return one episode of each of N controllers.

    Args:
        skill: skill of each controller [N]: 0 pushes at random, 1 is a well-damped spring to the goal.
        rng: source of initial states and noise.
        options: options of reading.
    """
    n = len(skill)
    env = PointMass(n)
    obs = np.empty((n, env.horizon + 1, env.n_obs), np.float32)
    act = np.empty((n, env.horizon, env.n_act), np.float32)
    rew = np.empty((n, env.horizon), np.float32)
    ended = np.zeros((n, env.horizon), bool)
    obs[:, 0] = state = env.reset(rng)
    push = np.zeros((n, env.n_act))
    for t in range(env.horizon):
        good = -2.0 * state[:, :2] - 2.0 * state[:, 2:]
        push = np.clip(0.9 * push + 0.6 * rng.standard_normal((n, 2)), -1, 1)  # autocorrelated noise
        act[:, t] = np.clip(skill[:, None] * good + (1 - skill[:, None]) * push, -1, 1)
        state, rew[:, t], ended[:, t] = env.step(act[:, t])
        obs[:, t + 1] = state
    # All episodes were simulated to the horizon; remove the steps after the end of each.
    lengths = np.where(ended.any(1), ended.argmax(1) + 1, env.horizon)
    first = np.arange(n)
    steps, rows = ranges(first * env.horizon, lengths), ranges(first * (env.horizon + 1), lengths + 1)
    flat_ended = np.zeros(int(lengths.sum()), bool)
    flat_ended[offsets(lengths)[1:] - 1] = ended.any(1)
    meta = Meta(
        source="builtin/pointmass",
        env="pointmass",
        act_low=(-1.0, -1.0),
        act_high=(1.0, 1.0),
        act_range="declared",
        random_return=RANDOM_RETURN,
        expert_return=EXPERT_RETURN,
    )
    flat = [a.reshape(-1, *a.shape[2:]) for a in (obs, act, rew)]
    return build(flat[0][rows], flat[1][steps], flat[2][steps], flat_ended, lengths, meta, options)
