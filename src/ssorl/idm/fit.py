"""Fit inverse dynamics models: whole scans on the device, the best validation weights kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.stats import standardiser_from_moments
from ssorl.idm.base import ReadParts
from ssorl.idm.holdout import hold_out
from ssorl.idm.inputs import Inputs, inputs, quantiles, stride
from ssorl.idm.model import IdmConfig, Windows, forward, init, loss, nll
from ssorl.idm.network import Idm
from ssorl.utils.errors import DataError
from ssorl.utils.networks import Adam, Params, adam, halved, init_adam

BLOCK = 1024  # held-out steps looked at together
STEADY = 10  # how many deviations from zero the mean difference may lie as models see it
MAX_VALIDATION = 20_000  # steps; more would not change which weights are best, only cost time


Progress = Callable[[int, np.ndarray], None]
Rows = jax.Array | np.ndarray


class Pool(NamedTuple):
    """Labelled steps; only what lies before `n` counts, the rest is padding."""

    where: Windows  # [P]
    act: Rows  # [P, A] in [-1, 1]
    n: Rows | np.int32  # scalar int32


class State(NamedTuple):
    """One network in training, and the best it has been."""

    params: Params
    opt: Adam
    best: Params
    best_error: jax.Array
    best_step: jax.Array


def windows(eps: Episodes, steps: np.ndarray) -> Windows:
    """Where the windows of these steps lie in `eps.obs`."""
    episode = eps.episode_of_step[steps]
    first = eps.start[episode] + episode
    where = eps.obs_row[steps], first, first + eps.lengths[episode]
    return Windows(*(np.asarray(x, np.int32) for x in where))


class FitRun(NamedTuple):
    """One network's share of a program: where its data lies and the key it draws from."""

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
        statistics: of all states, where `eps` is only a part of the data; by default those of `eps`.

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
    """Fit an ensemble to every task; each result equals that of `fit`.

    Datasets that share their observations, as splits of one dataset do, share them on the device too.

    Args:
        tasks: datasets, each with a seed.
        config: the model.
        progress: called with the updates done since the last call, summed over networks, and their validation errors.
        together: whether all networks train in one program; by default on an accelerator only.
        statistics: of all states, where the tasks hold only a part of the data; by default those of each dataset.

    Raises:
        DataError: a task has too few labelled steps, or a fit diverged.
    """
    table, found = _table(tasks, config, statistics)
    prepared = [_prepare(eps, config, seed) for eps, seed in tasks]
    each = zip(prepared, (found[id(eps.obs)] for eps, _ in tasks), strict=True)
    runs = _stack([_runs(p, one, config) for p, one in each])
    quick = config.half if config.half is not None else jax.default_backend() != "cpu"
    # Only the fit is in half precision: the config that labels keeps what was asked for.
    state, curve = _train(replace(config, half=quick), table, runs, progress, together)
    if len(lost := np.flatnonzero(~np.isfinite(state.best_error))):
        raise DataError(
            f"{tasks[lost[0] // config.members][0].meta.source}: the fit diverged, its validation error was never a "
            "number; look for extreme states with `ssorl data show`"
        )
    best, best_step = jax.tree.map(np.asarray, state.best), np.asarray(state.best_step)
    idms = []
    for i, (p, (eps, _)) in enumerate(zip(prepared, tasks, strict=True)):
        own = slice(i * config.members, (i + 1) * config.members)
        params, one = jax.tree.map(lambda x, own=own: x[own], best), found[id(eps.obs)]
        idms.append(Idm(config, params, one.inputs, one.diff_std, curve[own], best_step[own], p.held))
    return idms


class Prepared(NamedTuple):
    """A task, checked and split, still on the host."""

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
    """These labelled steps."""
    return Pool(windows(eps, steps), act[steps], np.int32(len(steps)))


class Statistics(NamedTuple):
    """What a fit needs to know of all states of a dataset."""

    inputs: Inputs
    diff_std: np.ndarray  # [I] divisor of the differences of states, as the inputs show them
    base: int = 0  # the dataset's first row in the table of all datasets


def _table(
    tasks: Sequence[tuple[Episodes, int]], config: IdmConfig, given: Statistics | None
) -> tuple[jax.Array, dict[int, Statistics]]:
    """The states of all distinct datasets end to end, on the device, and each one's by the identity of its array."""
    shown: dict[int, Statistics] = {}
    parts, size = [], 0
    for eps, _ in tasks:
        if id(eps.obs) not in shown:
            how = given.inputs if given else inputs(eps, config.ranks)
            rows = how(eps.obs)
            shown[id(eps.obs)] = Statistics(how, given.diff_std if given else _moves(rows, eps), size)
            parts.append(rows)
            size += len(rows)
    return jnp.asarray(parts[0] if len(parts) == 1 else np.concatenate(parts)), shown


def _moves(rows: np.ndarray, eps: Episodes) -> np.ndarray:
    """What the differences of these rows are divided by, [I].

    They are summed in float64: numpy adds rows one by one, and past a few million float32 would lose them.
    """
    moved = rows[eps.obs_row + 1] - rows[eps.obs_row]
    return scale_of(moved.mean(0, np.float64), moved.std(0, np.float64))


def scale_of(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """What differences are divided by, from their means and deviations.

    A clock goes on by the same each step: divided by the deviation, which is that of rounding, it would drown the rest.
    """
    return np.maximum(std, np.maximum(np.abs(mean) / STEADY, 1e-6)).astype(np.float32)


def measure(read: ReadParts, n_states: int, ranks: bool) -> Statistics:
    """Return the statistics of data that is read in parts, twice.

    They equal those of the same data in memory but for rounding.

    Args:
        read: reads all trajectories once.
        n_states: rows of `obs` in all parts together.
        ranks: whether the inputs have ranks.
    """
    sample, moments, row = [], Moments(), 0
    every = stride(n_states)
    for part in read():
        if ranks:
            sample.append(part.obs[-row % every :: every].copy())  # a view would keep the whole part
        moments.add(part.obs)
        row += len(part.obs)
    knots = quantiles(np.concatenate(sample)) if ranks else None
    states = Inputs(standardiser_from_moments(moments.mean, moments.std), knots)
    moments = Moments()
    for part in read():
        rows = states(part.obs)
        moments.add(rows[part.obs_row + 1] - rows[part.obs_row])
    return Statistics(states, scale_of(moments.mean, moments.std))


class Moments:
    """Mean and standard deviation of rows that come in parts (Chan, Golub and LeVeque 1979), in float64."""

    def __init__(self) -> None:
        self.n, self.mean, self.squares = 0, np.zeros(1), np.zeros(1)

    def add(self, rows: np.ndarray) -> None:
        """Include these rows, [N, D]."""
        mean, n = rows.mean(0, dtype=np.float64), self.n + len(rows)
        apart = mean - self.mean
        self.squares = self.squares + rows.var(0, dtype=np.float64) * len(rows) + apart**2 * (self.n * len(rows) / n)
        self.mean, self.n = self.mean + apart * (len(rows) / n), n

    @property
    def std(self) -> np.ndarray:
        """[D]."""
        return np.sqrt(self.squares / self.n)


def _runs(p: Prepared, shown: Statistics, config: IdmConfig) -> list[FitRun]:
    """One run a member; all read the same pools."""
    shift = lambda one: one._replace(where=Windows(*(x + np.int32(shown.base) for x in one.where)))  # noqa: E731
    keys = jax.random.split(jax.random.key(p.seed), config.members)
    return [FitRun(shown.diff_std, shift(p.train), shift(p.val), key) for key in keys]  # type: ignore[arg-type]


def _stack(groups: list[list[FitRun]]) -> FitRun:
    """All runs on a leading axis, their pools padded to one length. Padding is never drawn and never counted."""
    runs = [run for group in groups for run in group]

    def padded(pools: list[Pool]) -> Pool:
        # A power of two, so that pools of similar size, as self-training grows them, need no new compilation.
        length = 1 << (max(len(one.act) for one in pools) - 1).bit_length()

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
    """All runs through all updates: at once on an accelerator, one after another on a CPU."""
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
    def one(key: jax.Array) -> State:
        params = init(config, n_obs, n_act, jax.random.fold_in(key, 2**31 - 1))
        return State(params, init_adam(params), params, jnp.float32(jnp.inf), jnp.int32(0))

    return jax.vmap(one)(keys)


@partial(jax.jit, static_argnames=("config", "n"), donate_argnames=("state",))
def _chunk(config: IdmConfig, n: int, table: jax.Array, runs: FitRun, state: State, at: int):
    """`n` updates from update `at` on, then a look at the validation error."""

    def cast(params: Params) -> Params:
        # Adam writes it beside the weights: in each update they would be read again only to be cast.
        return {name: halved(layers) if config.half else [] for name, layers in params.items()}

    def one(state: State, run: FitRun):
        def update(carry, i):
            params, opt, done = carry
            k_batch, k_drop = jax.random.split(jax.random.fold_in(run.key, i))
            # The remainder of 32 random bits favours no step by more than n / 2^32; `randint` would draw twice.
            chosen = jax.random.bits(k_batch, (config.batch,), jnp.uint32) % run.train.n.astype(jnp.uint32)
            where, act = jax.tree.map(lambda x: x[chosen], (run.train.where, run.train.act))
            used = {name: [*done[name], *layers[len(done[name]) :]] for name, layers in params.items()}
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
        # Not the minimum, which would be NaN where an error is: good weights from before stay what they were.
        return State(params, opt, best, jnp.where(better, error, state.best_error), step), error

    return jax.vmap(one)(state, runs)


def validation_error(config: IdmConfig, params: Params, table: tuple[jax.Array, jax.Array], val: Pool) -> jax.Array:
    """Mean error over the held-out steps: what decides which weights are kept."""

    def block(total, xs):
        (where, act), counts = xs
        out = forward(config, params, *table, where)
        each = nll(out, act) if config.select == "nll" else (out.mean - act) ** 2
        return total + jnp.where(counts, each.mean(-1), 0).sum(), None

    def blocks(x):
        x = jnp.pad(x, [(0, -len(x) % BLOCK)] + [(0, 0)] * (x.ndim - 1), mode="edge")
        return x.reshape(-1, BLOCK, *x.shape[1:])

    # Block by block in one order, so that blocks of padding add exactly nothing.
    rows = jax.tree.map(blocks, (val.where, val.act))
    counts = (jnp.arange(len(val.act) + -len(val.act) % BLOCK) < val.n).reshape(-1, BLOCK)
    return jax.lax.scan(block, jnp.float32(0), (rows, counts))[0] / val.n
