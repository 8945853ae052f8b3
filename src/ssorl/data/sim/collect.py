"""Collect trajectories of a stochastic policy in a batched simulator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ssorl import envs
from ssorl.data.episodes import Episodes, Meta, offsets, ranges
from ssorl.data.sim.policy import Policy
from ssorl.data.validate import build

MAX_LANES = 256  # environments in the batch (lanes); datasets depend on this number
Progress = Callable[[int], None]  # called with the number of new steps


def collect(env_name: str, policy: Policy, n_steps: int, seed: int, progress: Progress | None = None) -> Episodes:
    """Return the fewest complete episodes of a policy that have at least `n_steps` steps together.

    Episodes are numbered in the order of their start, and the first ones are returned. So the selection is not biased
    towards short episodes.

    Args:
        env_name: name of a locomotion task.
        policy: the behaviour policy.
        n_steps: number of steps to reach.
        seed: seed of initial states and action noise.
        progress: called with the number of new steps.
    """
    spec = envs.SPECS[env_name]
    env = envs.Locomotion(env_name, spec, MAX_LANES)
    rng = np.random.default_rng(seed)
    obs = np.zeros((MAX_LANES, env.n_obs))
    act = np.zeros((MAX_LANES, env.n_act), np.float32)
    episode, length = np.full(MAX_LANES, -1), np.zeros(MAX_LANES, np.int64)  # -1: the lane is idle
    n_started = n_ended = n_done = 0  # episodes, episodes, steps
    log: dict[str, list[np.ndarray]] = {k: [] for k in ("obs", "act", "rew", "terminated", "last", "episode", "final")}
    while n_done < n_steps or (episode >= 0).any():
        # Start as many episodes as are probably needed; if they turn out short, start more when they have ended.
        # All steps over ended episodes is an estimate of the mean length that unfinished episodes do not bias.
        mean_length = min(spec.horizon, n_done / n_ended) if n_ended else spec.horizon
        missing = n_steps - n_done - np.maximum(mean_length - length[episode >= 0], 0).sum()
        new = np.flatnonzero(episode < 0)[: max(0, math.ceil(missing / mean_length))]
        if len(new):
            episode[new] = np.arange(n_started, n_started + len(new))
            n_started += len(new)
            length[new] = 0
            obs = env.reset(rng, np.isin(np.arange(MAX_LANES), new))
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
        n_done, n_ended = n_done + len(ids), n_ended + int(done.sum())
        episode[ids[done]] = -1
        obs = step.obs
        if progress:
            progress(len(ids))
    flat = {k: np.concatenate(v) for k, v in log.items()}
    return _by_episode(flat, n_steps, policy, env_name)


def _by_episode(flat: dict[str, np.ndarray], n_steps: int, policy: Policy, env_name: str) -> Episodes:
    """Return steps that are in the order of time as Episodes; drop episodes after the one that reaches `n_steps`."""
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
