"""The engine: sampling, updates and metrics in one scan on the device, over many runs at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Agent, Metrics, Pool, State, Table
from ssorl.data.episodes import Episodes
from ssorl.data.stats import Standardiser, standardiser
from ssorl.errors import DataError, SsorlError
from ssorl.nn import Params

CHUNK = 500  # updates in one call of the device: often enough for a progress bar, rarely enough to cost nothing
AVERAGE = 0.999  # share of the averaged policy that stays at each turn of the agent's period
INIT = 2**31 - 1  # the number folded into a run's key for its first weights; updates count from 0


class Run(NamedTuple):
    """One training: whose actions, which steps, which seed.

    Runs of one call have the same trajectories (`Episodes.with_actions` keeps them) and may differ in all else.
    """

    eps: Episodes  # its actions are the run's labels
    seed: int = 0
    steps: np.ndarray | None = None  # steps to learn from, [P]; None: all the view can use


class Look(NamedTuple):
    """What a callback sees."""

    at: int  # updates done
    runs: range  # which of the runs this is about
    state: State  # of those runs, on a leading axis. Lent: training reuses its memory, so copy what is to be kept
    average: Params  # the exponential average of `agent.policy(state)`, lent alike
    metrics: dict[str, np.ndarray]  # [len(runs)], means since the last look


class Trained(NamedTuple):
    """The end of one run."""

    state: State  # on the host, as all here
    policy: Params  # what acting needs of it
    average: Params  # the same, averaged over the training with weights that fall exponentially into the past
    scaler: Standardiser  # of the states the agent was shown
    curve: dict[str, np.ndarray]  # metric -> [C], one value a look


class Learnt(NamedTuple):
    """What training changes, of one run or on a leading axis of several."""

    state: State
    average: Params


def train(agent: Agent, run: Run, **options: Any) -> Trained:
    """One run, with the options of `train_many`."""
    return train_many(agent, [run], **options)[0]


def train_many(
    agent: Agent,
    runs: Sequence[Run],
    every: int = 5000,
    callback: Callable[[Look], None] | None = None,
    progress: Callable[[int, str], None] | None = None,
    together: bool | None = None,
    average: float = AVERAGE,
) -> list[Trained]:
    """Train every run as `train` would alone.

    On an accelerator all runs are one program; on a CPU, where that is slower, they go one after another (`together`
    says otherwise). `callback` is called every `every` updates, and at the end; `progress` hears of the updates done,
    summed over the runs, and a note: `partial(bar, "training")` of a `report.progress.Progress` shows rate and time.
    Beside the last policy of each run stands its exponential average: `average` is the share of it that stays at each
    turn of the agent's period, less at first, so that it is never held back by the first weights.
    """
    if not runs:
        return []
    _check_counts(agent, every)
    if not 0 <= average < 1:
        raise SsorlError(f"average is {average:g}; it is a share from 0 (the last policy) to below 1")
    eps = runs[0].eps
    if getattr(agent, "half", False) is None:
        agent = replace(agent, half=jax.default_backend() != "cpu")  # type: ignore[type-var]
    scaler = standardiser(eps)
    pools = [_steps(run, number, agent.view.needs_actions) for number, run in enumerate(runs)]
    _check_shared(runs)
    table = _table(eps, scaler)
    # A power of two, so that pools of similar size need no new compilation.
    length = min(eps.n_steps, 1 << (max(len(p) for p in pools) - 1).bit_length())

    together = jax.default_backend() != "cpu" if together is None else together
    size = len(runs) if together else 1
    trained = []
    for first in range(0, len(runs), size):
        which = range(first, min(first + size, len(runs)))
        # Alone, a run has no leading axis at all: an axis of one is not free in every operation.
        many = len(which) > 1
        group = [_pool(runs[i], pools[i], length) for i in which]
        pool = jax.device_put(jax.tree.map(lambda *x: np.stack(x), *group) if many else group[0])
        keys = [jax.random.key(runs[i].seed) for i in which]
        key = jnp.stack(keys) if many else keys[0]
        learnt, looks = _train(agent, table, pool, key, which, every, callback, progress, average)
        learnt = jax.device_get(learnt)
        for place in range(len(which)):
            state, mean = jax.tree.map(lambda x, i=place: x[i], learnt) if many else learnt
            curve = {name: np.stack([look[name][place] for look in looks]) for name in looks[0]}
            trained.append(Trained(state, agent.policy(state), mean, scaler, curve))
    return trained


# The host's side -------------------------------------------------------------------------------------------


def _check_counts(agent: Agent, every: int) -> None:
    for what, n in (("updates", agent.updates), ("every", every)):
        if n < 1 or n % agent.period:
            raise SsorlError(f"{what} is {n} and must be a positive multiple of {agent.period}, the agent's period")


def _check_shared(runs: Sequence[Run]) -> None:
    first = runs[0].eps
    for number, (eps, _, _) in enumerate(runs):
        for name in ("obs", "rew", "terminated", "start"):
            a, b = getattr(first, name), getattr(eps, name)
            if a is not b and not np.array_equal(a, b):
                raise DataError(
                    f"run {number} ({eps.meta.source}) has other trajectories than run 0 ({first.meta.source}): their "
                    f"`{name}` differ; train them in two calls"
                )


def _steps(run: Run, number: int, needs_actions: bool = True) -> np.ndarray:
    """The steps a run learns from, checked: each exists and, where the view needs it, has an action."""
    eps, where = run.eps, f"run {number} ({run.eps.meta.source})"
    every = np.flatnonzero(eps.labelled) if needs_actions else np.arange(eps.n_steps)
    steps = every if run.steps is None else np.asarray(run.steps)
    if not len(steps):
        raise DataError(f"{where} has no step to learn from; give it trajectories with actions or label them first")
    if steps.min() < 0 or steps.max() >= eps.n_steps:
        wrong = steps[(steps < 0) | (steps >= eps.n_steps)][0]
        raise DataError(f"{where}: there is no step {wrong}; steps go from 0 to {eps.n_steps - 1}")
    missing = steps[np.isnan(eps.act[steps]).any(1)]
    if needs_actions and len(missing):
        episode = int(eps.episode_of_step[missing[0]])
        raise DataError(
            f"{where}: {len(missing)} of the {len(steps)} steps to learn from have no action, first step "
            f"{missing[0] - eps.start[episode]} of trajectory {episode}; label them first or leave them out"
        )
    return steps.astype(np.int32)


def _table(eps: Episodes, scaler: Standardiser) -> Table:
    time = np.arange(eps.n_steps) - eps.start[eps.episode_of_step]
    return Table(
        jnp.asarray(scaler(eps.obs)),
        jnp.asarray(eps.obs_row.astype(np.int32)),
        jnp.asarray(eps.rew),
        jnp.asarray(1 - eps.terminated.astype(np.float32)),
        jnp.asarray(eps.returns_to_go().astype(np.float32)),
        jnp.asarray(time.astype(np.int32)),
        jnp.asarray((eps.lengths[eps.episode_of_step] - time).astype(np.int32)),
    )


def _pool(run: Run, steps: np.ndarray, length: int) -> Pool:
    """Still on the host, so that several can be stacked before they travel."""
    padded = np.concatenate([steps, np.full(max(0, length - len(steps)), steps[0], np.int32)])
    return Pool(run.eps.scaled_actions(), padded, np.int32(len(steps)))


def _chunks(agent: Agent, every: int) -> Iterator[tuple[int, int, bool]]:
    """(updates done before, updates in the chunk, whether a look follows) until all are done."""
    at, chunk = 0, max(CHUNK - CHUNK % agent.period, agent.period)
    while at < agent.updates:
        stop = min(at - at % every + every, agent.updates)
        n = min(chunk, stop - at)
        yield at, n, at + n == stop
        at += n


def _train(
    agent: Agent,
    table: Table,
    pool: Pool,
    key: jax.Array,
    which: range,
    every: int,
    callback: Callable[[Look], None] | None,
    progress: Callable[[int, str], None] | None,
    average: float,
) -> tuple[Learnt, list[dict[str, np.ndarray]]]:
    """One group of runs through all updates; what the group has learnt, and the metrics of each look."""
    alone = len(which) == 1
    learnt = _begin(agent, table.obs.shape[1], pool.act.shape[-1], key)
    looks, parts = [], []
    for at, n, look in _chunks(agent, every):
        learnt, metrics = _chunk(agent, n, table, pool, key, learnt, at, average)
        parts.append((n, {name: np.atleast_1d(np.asarray(value)) for name, value in metrics.items()}))
        if progress:
            progress(n * len(which), "")
        if look:
            total = sum(n for n, _ in parts)
            looks.append({name: sum(n * m[name] for n, m in parts) / total for name in parts[0][1]})
            parts = []
            if callback:
                lent = jax.tree.map(lambda x: x[None], learnt) if alone else learnt
                callback(Look(at + n, which, lent.state, lent.average, looks[-1]))
    return learnt, looks


# The device's side -----------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("agent", "n_obs", "n_act"))
def _begin(agent: Agent, n_obs: int, n_act: int, key: jax.Array) -> Learnt:
    """First weights for a key, or for each of several."""

    def one(key: jax.Array) -> Learnt:
        state = agent.init(jax.random.fold_in(key, INIT), n_obs, n_act)
        return Learnt(state, agent.policy(state))

    return (jax.vmap(one) if key.ndim else one)(key)


@partial(jax.jit, static_argnames=("agent", "n"), donate_argnames=("learnt",))
def _chunk(agent: Agent, n: int, table: Table, pool: Pool, key: jax.Array, learnt: Learnt, at: int, average: float):
    """`n` updates from update `at` on, for one run or for each of several; what is learnt, the mean of each metric."""

    def one(learnt: Learnt, pool: Pool, key: jax.Array) -> tuple[Learnt, Metrics]:
        def turn(learnt: Learnt, i: jax.Array) -> tuple[Learnt, Metrics]:
            # The batches of a period are drawn at once: each call of the generator costs time, most of all to compile.
            number = i + jnp.arange(agent.period)
            keys = jax.vmap(lambda j: jax.random.split(jax.random.fold_in(key, j)))(number)
            batches = jax.vmap(lambda k: agent.view.draw(table, pool, k))(keys[:, 0])
            state, seen = learnt.state, {}
            for phase in range(agent.period):
                batch = jax.tree.map(lambda x, phase=phase: x[phase], batches)
                state, metrics = agent.update(state, batch, keys[phase, 1], phase)
                for name, value in metrics.items():
                    seen.setdefault(name, []).append(value)
            # Early averages look back over a tenth of the turns so far.
            turns = i // agent.period
            mean = _mix(learnt.average, agent.policy(state), jnp.minimum(average, (1 + turns) / (10 + turns)))
            return Learnt(state, mean), {name: jnp.stack(values).mean() for name, values in seen.items()}

        learnt, metrics = jax.lax.scan(turn, learnt, at + jnp.arange(0, n, agent.period))
        return learnt, jax.tree.map(lambda x: x.mean(0), metrics)

    return (jax.vmap(one) if key.ndim else one)(learnt, pool, key)


def _mix(mean: Params, last: Params, keep: jax.Array) -> Params:
    """`keep` of the mean and the rest of the last; numbers that count are not averaged."""

    def one(m: jax.Array, x: jax.Array) -> jax.Array:
        return x + (keep * (m - x)).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(one, mean, last)
