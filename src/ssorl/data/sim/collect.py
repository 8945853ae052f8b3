"""Trajectories from a stochastic policy: many episodes at once, each run to its own end."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ssorl import envs
from ssorl.data.episodes import Episodes, Meta, offsets, ranges
from ssorl.data.sim.policy import Policy
from ssorl.data.validate import build

MAX_LANES = 256  # environments stepped together at most; a dataset's bytes depend on it
Progress = Callable[[int], None]  # told how many steps were just made


def collect(env_name: str, policy: Policy, n_steps: int, seed: int, progress: Progress | None = None) -> Episodes:
    """Whole episodes of `policy`, as many as it takes to reach `n_steps`.

    Episodes are numbered as they begin, and the first ones that reach `n_steps` together are kept. So long episodes
    are not left out for being long, and the last one may go past the mark.
    """
    spec = envs.SPECS[env_name]
    env = envs.Locomotion(env_name, spec, MAX_LANES)
    rng = np.random.default_rng(seed)
    obs = np.zeros((MAX_LANES, env.n_obs))
    act = np.zeros((MAX_LANES, env.n_act), np.float32)
    episode, length = np.full(MAX_LANES, -1), np.zeros(MAX_LANES, np.int64)  # -1: the lane is idle
    begun = ended = made = 0
    log: dict[str, list[np.ndarray]] = {k: [] for k in ("obs", "act", "rew", "terminated", "last", "episode", "final")}
    while made < n_steps or (episode >= 0).any():
        # Begin no more than are likely to be needed; if they turn out short, more begin when they have ended.
        # Steps made over episodes ended is the length to expect that unfinished episodes do not bias.
        typical = min(spec.horizon, made / ended) if ended else spec.horizon
        due = n_steps - made - np.maximum(typical - length[episode >= 0], 0).sum()
        fresh = np.flatnonzero(episode < 0)[: max(0, math.ceil(due / typical))]
        if len(fresh):
            episode[fresh] = np.arange(begun, begun + len(fresh))
            begun += len(fresh)
            length[fresh] = 0
            obs = env.reset(rng, np.isin(np.arange(MAX_LANES), fresh))
        ids = np.flatnonzero(episode >= 0)
        act[ids] = policy.act(obs[ids], rng)
        step = env.step(act, ids)
        length[ids] += 1
        done = step.terminated[ids] | (length[ids] >= spec.horizon)
        log["obs"].append(obs[ids].astype(np.float32))
        log["act"].append(act[ids])
        log["rew"].append(step.rew[ids].astype(np.float32))
        log["terminated"].append(step.terminated[ids])
        log["last"].append(done)
        log["episode"].append(episode[ids])
        log["final"].append(step.obs[ids[done]].astype(np.float32))
        made, ended = made + len(ids), ended + int(done.sum())
        episode[ids[done]] = -1
        obs = step.obs
        if progress:
            progress(len(ids))
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
