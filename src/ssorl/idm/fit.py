"""Fit inverse dynamics networks: scans over updates on the device, and the weights with the best validation error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm.holdout import hold_out
from ssorl.idm.inputs import inputs
from ssorl.idm.model import IdmConfig, Windows, forward, init, loss, nll
from ssorl.idm.network import Idm
from ssorl.idm.statistics import Statistics, difference_scale
from ssorl.utils.errors import DataError
from ssorl.utils.networks import Adam, Params, adam, halved, init_adam

BLOCK = 1024  # held-out steps evaluated together
MAX_VALIDATION = 20_000  # validation steps; more take time and select the same weights

Progress = Callable[[int, np.ndarray], None]
Rows = jax.Array | np.ndarray


class Pool(NamedTuple):
    """Labelled steps. The first `n` rows count, the others are padding."""

    where: Windows  # [P]
    act: Rows  # [P, A] in [-1, 1]
    n: Rows | np.int32  # scalar int32


class State(NamedTuple):
    """The training state of one network, with the weights that had the best validation error."""

    params: Params
    opt: Adam
    best: Params
    best_error: jax.Array
    best_step: jax.Array


def windows(eps: Episodes, steps: np.ndarray) -> Windows:
    """Return the positions of the windows of N steps in `eps.obs`."""
    episode = eps.episode_of_step[steps]
    first = eps.start[episode] + episode
    where = eps.obs_row[steps], first, first + eps.lengths[episode]
    return Windows(*(np.asarray(x, np.int32) for x in where))


class FitRun(NamedTuple):
    """The data and the random key of one network."""

    diff_std: jax.Array  # [I]
    train: Pool
    val: Pool
    key: jax.Array


def fit(
    eps: Episodes,
    config: IdmConfig,
    seed: int = 0,
    progress: Progress | None = None,
    statistics: Statistics | None = None,
) -> Idm:
    """Fit an ensemble to the labelled steps of `eps`.

    Args:
        eps: trajectories, some steps labelled.
        config: the model.
        seed: decides the validation split, the initial weights and the batches.
        progress: called with the updates done since the last call and the validation errors [M].
        statistics: of all states, if `eps` is only a part of the data; by default those of `eps`.

    Raises:
        DataError: too few labelled steps, or the fit diverged.
    """
    return fit_many([(eps, seed)], config, progress, statistics=statistics)[0]


def fit_many(
    tasks: Sequence[tuple[Episodes, int]],
    config: IdmConfig,
    progress: Progress | None = None,
    together: bool | None = None,
    statistics: Statistics | None = None,
) -> list[Idm]:
    """Fit an ensemble to each task; each result equals that of `fit`.

    Splits of one dataset share their observations on the device.

    Args:
        tasks: datasets, each with a seed.
        config: the model.
        progress: called with the updates done since the last call, summed over networks, and their validation errors.
        together: whether all networks train in one program; by default on an accelerator only.
        statistics: of all states, if the tasks hold only a part of the data; by default those of each dataset.

    Raises:
        DataError: a task has too few labelled steps, or a fit diverged.
    """
    table, by_dataset = _table(tasks, config, statistics)
    prepared = [_prepare(eps, config, seed) for eps, seed in tasks]
    each = zip(prepared, (by_dataset[id(eps.obs)] for eps, _ in tasks), strict=True)
    runs = _stack([_runs(task, own, config) for task, own in each])
    half = config.half if config.half is not None else jax.default_backend() != "cpu"
    # Only the fit uses half precision; the fitted model stores the config as the user gave it.
    state, curve = _train(replace(config, half=half), table, runs, progress, together)
    if len(diverged := np.flatnonzero(~np.isfinite(state.best_error))):
        raise DataError(
            f"{tasks[diverged[0] // config.members][0].meta.source}: the fit diverged: its validation error was never "
            "finite; look for extreme states with `ssorl data show`"
        )
    best, best_step = jax.tree.map(np.asarray, state.best), np.asarray(state.best_step)
    idms = []
    for i, (p, (eps, _)) in enumerate(zip(prepared, tasks, strict=True)):
        own = slice(i * config.members, (i + 1) * config.members)
        params, stats = jax.tree.map(lambda x, own=own: x[own], best), by_dataset[id(eps.obs)]
        idms.append(Idm(config, params, stats.inputs, stats.diff_std, curve[own], best_step[own], p.held))
    return idms


class Prepared(NamedTuple):
    """A task whose labelled steps are split into training and validation, on the host."""

    train: Pool
    val: Pool
    held: np.ndarray
    seed: int


def _prepare(eps: Episodes, config: IdmConfig, seed: int) -> Prepared:
    train, val, held = hold_out(eps, config.validation, seed)
    if len(val) > MAX_VALIDATION:
        val = np.sort(np.random.default_rng(seed).choice(val, MAX_VALIDATION, replace=False))
    act = eps.scaled_actions()
    return Prepared(pool(eps, act, train), pool(eps, act, val), held, seed)


def pool(eps: Episodes, act: np.ndarray, steps: np.ndarray) -> Pool:
    """Return the pool of these labelled steps.

    Args:
        eps: trajectories.
        act: their scaled actions [S, A].
        steps: [N] step numbers.
    """
    return Pool(windows(eps, steps), act[steps], np.int32(len(steps)))


def _table(
    tasks: Sequence[tuple[Episodes, int]], config: IdmConfig, given: Statistics | None
) -> tuple[jax.Array, dict[int, Statistics]]:
    """Return one device table with the states of all datasets, and the statistics of each by the id of its `obs`."""
    by_dataset: dict[int, Statistics] = {}
    parts, size = [], 0
    for eps, _ in tasks:
        if id(eps.obs) not in by_dataset:
            scaling = given.inputs if given else inputs(eps, config.ranks)
            rows = scaling(eps.obs)
            diff_std = given.diff_std if given else difference_scale(rows, eps)
            by_dataset[id(eps.obs)] = Statistics(scaling, diff_std, size)
            parts.append(rows)
            size += len(rows)
    return jnp.asarray(parts[0] if len(parts) == 1 else np.concatenate(parts)), by_dataset


def _runs(task: Prepared, stats: Statistics, config: IdmConfig) -> list[FitRun]:
    """Return one run for each member; they share the pools."""

    def shifted(rows: Pool) -> Pool:
        return rows._replace(where=Windows(*(x + np.int32(stats.base) for x in rows.where)))

    keys = jax.random.split(jax.random.key(task.seed), config.members)
    return [FitRun(stats.diff_std, shifted(task.train), shifted(task.val), key) for key in keys]  # type: ignore[arg-type]


def _stack(groups: list[list[FitRun]]) -> FitRun:
    """Stack all runs on a leading axis and pad their pools to one length. Padding is neither drawn nor counted."""
    runs = [run for group in groups for run in group]

    def padded(pools: list[Pool]) -> Pool:
        # A power of two: pools that self-training makes larger mostly need no new compilation.
        length = 1 << (max(len(pool.act) for pool in pools) - 1).bit_length()

        def grow(x: np.ndarray) -> np.ndarray:
            return np.concatenate([x, np.repeat(x[:1], length - len(x), axis=0)]) if x.ndim else x

        return jax.tree.map(lambda *xs: jnp.asarray(np.stack([grow(np.asarray(x)) for x in xs])), *pools)

    return FitRun(
        jnp.asarray(np.stack([run.diff_std for run in runs])),
        padded([run.train for run in runs]),
        padded([run.val for run in runs]),
        jnp.stack([run.key for run in runs]),
    )


def _train(
    config: IdmConfig, table: jax.Array, runs: FitRun, progress: Progress | None, together: bool | None
) -> tuple[State, np.ndarray]:
    """Train all runs, together on an accelerator and one after another on a CPU; also return the curves [R, C]."""
    n_obs, (n, _, n_act) = table.shape[1], runs.train.act.shape
    together = jax.default_backend() != "cpu" if together is None else together
    size = n if together else 1
    states, curves = [], []
    for first in range(0, n, size):
        group = jax.tree.map(lambda x, first=first: x[first : first + size], runs)
        state, errors = _begin(config, n_obs, n_act, group.key), []
        for at in range(0, config.steps, config.validate_every):
            done = min(config.validate_every, config.steps - at)
            state, error = _chunk(config, done, table, group, state, at)
            errors.append(error)
            if progress:
                progress(done * size, np.asarray(error))
        states.append(state)
        curves.append(np.stack([np.asarray(e) for e in errors], axis=1))
    return jax.tree.map(lambda *x: jnp.concatenate(x), *states), np.concatenate(curves)


@partial(jax.jit, static_argnames=("config", "n_obs", "n_act"))
def _begin(config: IdmConfig, n_obs: int, n_act: int, keys: jax.Array) -> State:
    def start(key: jax.Array) -> State:
        params = init(config, n_obs, n_act, jax.random.fold_in(key, 2**31 - 1))
        return State(params, init_adam(params), params, jnp.float32(jnp.inf), jnp.int32(0))

    return jax.vmap(start)(keys)


@partial(jax.jit, static_argnames=("config", "n"), donate_argnames=("state",))
def _chunk(config: IdmConfig, n: int, table: jax.Array, runs: FitRun, state: State, at: int):
    """Make `n` updates, the first of which has number `at`, and return the states and the validation errors."""

    def cast(params: Params) -> Params:
        # The copy is written in the same pass as Adam's update; a later cast would read all weights again.
        return {name: halved(layers) if config.half else [] for name, layers in params.items()}

    def train(state: State, run: FitRun):
        def update(carry, i):
            params, opt, low = carry
            k_batch, k_drop = jax.random.split(jax.random.fold_in(run.key, i))
            # The bias of this remainder is at most n / 2^32; `randint` would draw random bits twice.
            chosen = jax.random.bits(k_batch, (config.batch,), jnp.uint32) % run.train.n.astype(jnp.uint32)
            where, act = jax.tree.map(lambda x: x[chosen], (run.train.where, run.train.act))
            used = {name: [*low[name], *layers[len(low[name]) :]] for name, layers in params.items()}
            grad = jax.grad(lambda p: loss(config, forward(config, p, table, run.diff_std, where, k_drop), act))(used)
            grad = jax.tree.map(lambda g: g.astype(jnp.float32), grad)
            lr = jnp.float32(config.lr)
            if config.schedule == "cosine":
                lr = lr * 0.5 * (1 + jnp.cos(jnp.pi * i / config.steps))
            params, opt = adam(params, grad, opt, lr)
            return (params, opt, cast(params)), None

        (params, opt, _), _ = jax.lax.scan(update, (state.params, state.opt, cast(state.params)), at + jnp.arange(n))
        error = validation_error(config, params, (table, run.diff_std), run.val)
        better = error < state.best_error
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), params, state.best)
        step = jnp.where(better, at + n, state.best_step)
        # `minimum` would return NaN if the error is NaN; `where` keeps the best error so far.
        return State(params, opt, best, jnp.where(better, error, state.best_error), step), error

    return jax.vmap(train)(state, runs)


def validation_error(config: IdmConfig, params: Params, table: tuple[jax.Array, jax.Array], val: Pool) -> jax.Array:
    """Return the mean error over the validation steps, which selects the weights.

    Args:
        config: the model.
        params: its weights.
        table: scaled states [R, I] and the divisors of their differences [I].
        val: the validation steps.
    """

    def block(total, xs):
        (where, act), counts = xs
        out = forward(config, params, *table, where)
        each = nll(out, act) if config.select == "nll" else (out.mean - act) ** 2
        return total + jnp.where(counts, each.mean(-1), 0).sum(), None

    def blocks(x):
        x = jnp.pad(x, [(0, -len(x) % BLOCK)] + [(0, 0)] * (x.ndim - 1), mode="edge")
        return x.reshape(-1, BLOCK, *x.shape[1:])

    # Blocks are added in a fixed order, so that blocks of padding do not change the sum.
    rows = jax.tree.map(blocks, (val.where, val.act))
    counts = (jnp.arange(len(val.act) + -len(val.act) % BLOCK) < val.n).reshape(-1, BLOCK)
    return jax.lax.scan(block, jnp.float32(0), (rows, counts))[0] / val.n
