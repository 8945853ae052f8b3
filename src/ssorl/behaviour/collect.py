"""Trajectories from a stochastic policy: many episodes at once, each run to its own end."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ssorl import envs
from ssorl.behaviour.policy import Policy
from ssorl.data.check import build
from ssorl.data.episodes import Episodes, Meta, offsets, ranges

MAX_LANES = 256  # environments stepped together; part of what a dataset's bytes depend on
Progress = Callable[[int], None]  # told how many steps were just made


def collect(env_name: str, policy: Policy, n_steps: int, seed: int, progress: Progress | None = None) -> Episodes:
    """Whole episodes of `policy`, as many as it takes to reach `n_steps`.

    Episodes are numbered as they begin, a free lane takes the next number, and the first ones that reach `n_steps`
    together are kept. So long episodes are not left out for being long, and the last one may go past the mark.
    """
    horizon = envs.SCORES[env_name].horizon
    lanes = min(MAX_LANES, max(1, math.ceil(n_steps / horizon)))
    env = envs.make(env_name, lanes)
    rng = np.random.default_rng(seed)
    obs = env.reset(rng)
    episode = np.arange(lanes)  # which episode a lane is running
    begun, length, running, made = lanes, np.zeros(lanes, np.int64), np.ones(lanes, bool), 0
    log: dict[str, list[np.ndarray]] = {k: [] for k in ("obs", "act", "rew", "terminated", "last", "episode", "final")}
    while running.any():
        act = policy.act(obs, rng)
        step = env.step(act)
        length += running
        done = running & (step.terminated | (length >= horizon))
        log["obs"].append(obs[running].astype(np.float32))
        log["act"].append(act[running])
        log["rew"].append(step.rew[running].astype(np.float32))
        log["terminated"].append(step.terminated[running])
        log["last"].append(done[running])
        log["episode"].append(episode[running])
        log["final"].append(step.obs[done].astype(np.float32))
        made += int(running.sum())
        if progress:
            progress(int(running.sum()))
        obs = step.obs
        if done.any():
            # Steps already made plus those under way count towards the mark, so no lane starts in vain.
            free = np.flatnonzero(done)
            n_new = len(free) if made < n_steps else 0
            again, stop = free[:n_new], free[n_new:]
            episode[again] = np.arange(begun, begun + n_new)
            begun += n_new
            running[stop] = False
            length[done] = 0
            obs = env.reset(rng, done)
    flat = {k: np.concatenate(v) for k, v in log.items()}
    return _in_order(flat, n_steps, policy, env_name)


def _in_order(flat: dict[str, np.ndarray], n_steps: int, policy: Policy, env_name: str) -> Episodes:
    """From the order of time to the order of episodes, cut after the one that reaches `n_steps`."""
    order = np.argsort(flat["episode"], kind="stable")
    lengths = np.bincount(flat["episode"])
    keep = int(np.searchsorted(np.cumsum(lengths), n_steps)) + 1
    lengths = lengths[:keep]
    order = order[: int(lengths.sum())]
    finals = flat["final"][np.argsort(flat["episode"][flat["last"]], kind="stable")][: len(lengths)]
    first = offsets(lengths)[:-1] + np.arange(len(lengths))
    obs = np.empty((len(order) + len(lengths), policy.n_obs), np.float32)
    obs[ranges(first, lengths)] = flat["obs"][order]
    obs[first + lengths] = finals
    ref = envs.SCORES[env_name]
    meta = Meta(
        env=env_name,
        act_low=tuple(policy.act_low.tolist()),
        act_high=tuple(policy.act_high.tolist()),
        act_range="declared",
        random_return=ref.random,
        expert_return=ref.expert,
    )
    return build(obs, flat["act"][order], flat["rew"][order], flat["terminated"][order], lengths, meta)
