"""Fit inverse dynamics models: whole scans on the device, the best validation weights kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.stats import Standardiser, standardiser
from ssorl.errors import DataError
from ssorl.idm.model import IdmConfig, Windows, forward, init, loss, nll
from ssorl.nn import Adam, Params, adam, init_adam

MAX_VALIDATION = 20_000  # steps; more would not change which weights are best, only cost time


class Pool(NamedTuple):
    """Labelled steps on the device; only what lies before `n` counts, the rest is padding."""

    where: Windows  # [P]
    act: jax.Array  # [P, A] in [-1, 1]
    n: jax.Array  # scalar int32


class State(NamedTuple):
    """One network in training, and the best it has been."""

    params: Params
    opt: Adam
    best: Params
    best_error: jax.Array
    best_step: jax.Array


@dataclass(frozen=True)
class Idm:
    """Fitted models of one run: weights with a leading axis of members, and what is needed to use them."""

    config: IdmConfig
    params: Params  # each leaf [M, …]
    scaler: Standardiser
    diff_std: np.ndarray  # [O], of standardised s_{t+1} - s_t
    curve: np.ndarray  # [M, C] validation error at each look
    best_step: np.ndarray  # [M]
    validation: np.ndarray  # trajectories held out


def windows(eps: Episodes, steps: np.ndarray) -> Windows:
    """Where the windows of these steps lie in `eps.obs`."""
    episode = eps.episode_of_step[steps]
    first = eps.start[episode] + episode
    where = Windows(eps.obs_row[steps], first, first + eps.lengths[episode])
    return Windows(*(np.asarray(x, np.int32) for x in where))  # type: ignore[arg-type]


def hold_out(eps: Episodes, share: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labelled steps for training, for validation, and the trajectories held out (at least one).

    A single labelled trajectory cannot be held out whole: its last tenth is.
    """
    steps = np.flatnonzero(eps.labelled)
    if len(steps) < 2:
        raise DataError(
            f"{eps.meta.source}: {len(steps)} steps have an action and at least 2 are needed to fit an "
            "inverse dynamics model; give more labelled trajectories"
        )
    episode = eps.episode_of_step[steps]
    labelled = np.unique(episode)
    if len(labelled) == 1:
        cut = len(steps) - max(1, round(share * len(steps)))
        return steps[:cut], steps[cut:], labelled
    n = min(len(labelled) - 1, max(1, round(share * len(labelled))))
    held = np.sort(np.random.default_rng(seed).choice(labelled, n, replace=False))
    inside = np.isin(episode, held)
    return steps[~inside], steps[inside], held


def fit(
    eps: Episodes, config: IdmConfig, seed: int = 0, progress: Callable[[int, np.ndarray], None] | None = None
) -> Idm:
    """Fit on the labelled steps of `eps`. `progress` hears of the updates done and the latest validation errors."""
    train, val, held = hold_out(eps, config.validation, seed)
    if len(val) > MAX_VALIDATION:
        val = np.sort(np.random.default_rng(seed).choice(val, MAX_VALIDATION, replace=False))
    scaler = standardiser(eps)
    obs = scaler(eps.obs)
    diff = obs[eps.obs_row + 1] - obs[eps.obs_row]
    diff_std = np.maximum(diff.std(0), 1e-6)
    act = eps.scaled_actions()
    pools = [pool(eps, act, steps) for steps in (train, val)]
    table = jnp.asarray(obs), jnp.asarray(diff_std)
    keys = jax.random.split(jax.random.key(seed), config.members)
    state, curve = _run(config, table, *pools, keys, progress)
    return Idm(
        config,
        jax.tree.map(np.asarray, state.best),
        scaler,
        diff_std,
        curve,
        np.asarray(state.best_step),
        held,
    )


def pool(eps: Episodes, act: np.ndarray, steps: np.ndarray) -> Pool:
    """These labelled steps, on the device."""
    return Pool(jax.tree.map(jnp.asarray, windows(eps, steps)), jnp.asarray(act[steps]), jnp.int32(len(steps)))


def _run(config: IdmConfig, table, train: Pool, val: Pool, keys: jax.Array, progress):
    """All members through all updates: at once on an accelerator, one after another on a CPU."""
    n_obs, n_act = table[0].shape[1], train.act.shape[1]
    groups = [keys] if jax.default_backend() != "cpu" else [k[None] for k in keys]
    states, curves, done = [], [], 0
    for group in groups:
        state = _begin(config, n_obs, n_act, group)
        errors = []
        for at in range(0, config.steps, config.validate_every):
            n = min(config.validate_every, config.steps - at)
            state, error = _chunk(config, n, table, train, val, state, group, at)
            errors.append(error)
            done += n * len(group)
            if progress:
                progress(n * len(group), np.asarray(error))
        states.append(state)
        curves.append(np.stack([np.asarray(e) for e in errors], axis=1))
    return jax.tree.map(lambda *x: jnp.concatenate(x), *states), np.concatenate(curves)


@partial(jax.jit, static_argnames=("config", "n_obs", "n_act"))
def _begin(config: IdmConfig, n_obs: int, n_act: int, keys: jax.Array) -> State:
    def one(key: jax.Array) -> State:
        params = init(config, n_obs, n_act, jax.random.fold_in(key, 2**31 - 1))
        return State(params, init_adam(params), params, jnp.float32(jnp.inf), jnp.int32(0))

    return jax.vmap(one)(keys)


@partial(jax.jit, static_argnames=("config", "n"), donate_argnames=("state",))
def _chunk(config: IdmConfig, n: int, table, train: Pool, val: Pool, state: State, keys: jax.Array, at: int):
    """`n` updates from update `at` on, then a look at the validation error."""

    def one(state: State, key: jax.Array):
        def update(carry, i):
            params, opt = carry
            k_batch, k_drop = jax.random.split(jax.random.fold_in(key, i))
            chosen = jax.random.randint(k_batch, (config.batch,), 0, train.n)
            where, act = jax.tree.map(lambda x: x[chosen], (train.where, train.act))
            grad = jax.grad(lambda p: loss(config, forward(config, p, *table, where, k_drop), act))(params)
            lr = config.lr
            if config.schedule == "cosine":
                lr = lr * 0.5 * (1 + jnp.cos(jnp.pi * i / config.steps))
            return adam(params, grad, opt, lr), None

        (params, opt), _ = jax.lax.scan(update, (state.params, state.opt), at + jnp.arange(n))
        error = validation_error(config, params, table, val)
        better = error < state.best_error
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), params, state.best)
        step = jnp.where(better, at + n, state.best_step)
        return State(params, opt, best, jnp.minimum(error, state.best_error), step), error

    return jax.vmap(one)(state, keys)


def validation_error(config: IdmConfig, params: Params, table, val: Pool) -> jax.Array:
    """Mean error over the held-out steps: what decides which weights are kept."""
    out = forward(config, params, *table, val.where)
    each = nll(out, val.act) if config.select == "nll" else (out.mean - val.act) ** 2
    counts = jnp.arange(len(each)) < val.n
    return jnp.where(counts, each.mean(-1), 0).sum() / val.n
