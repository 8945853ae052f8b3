"""Train many runs at once: chunks of updates on the device (`scan`), with snapshots and checkpoints between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Agent, Metrics, Pool, State, Table, require_rewards
from ssorl.data.episodes import Episodes
from ssorl.data.stats import Standardiser
from ssorl.training.checkpoint import TrainingCheckpoint, groups_in, identify, identify_data, identify_run, load, save
from ssorl.training.checks import check_counts, check_sizes, training_steps
from ssorl.training.memory import max_runs, sizes, table_bytes
from ssorl.training.scan import init_learner, learner_shapes, mesh_for, replicate, shard, train_chunk
from ssorl.training.tables import Dataset, bases, distinct, make_pool, make_table, shape_for
from ssorl.utils.errors import SsorlError
from ssorl.utils.locks import locked
from ssorl.utils.networks import Params

CHUNK = 500  # updates in one call of the device: small enough for a progress bar, large enough that calls cost little
CPU_CHUNK = 100  # the same on a CPU, where an update takes ten times as long and a call costs little
AVERAGE = 0.999  # weight of the old average in the averaged policy, per period of the agent


class TrainingRun(NamedTuple):
    """One training: its trajectories with actions, its seed and the steps that it trains on.

    Runs with equal trajectories (`Episodes.with_actions` keeps them) share observations and rewards on the device.
    """

    eps: Episodes  # trajectories; their actions are the run's labels
    seed: int = 0
    # Steps to train on: a mask of all, or indices, of which one that occurs twice is drawn twice as often; None: all
    # that the agent can use.
    steps: np.ndarray | None = None


class Snapshot(NamedTuple):
    """The state of some runs during training, the argument of a callback.

    Arrays of `state` and `average` have a leading axis of runs. Training reuses their memory, so a callback must copy
    what it keeps.
    """

    at: int  # updates done
    runs: range  # numbers of these runs
    state: State  # training states
    average: Params  # exponential averages of `agent.policy(state)`
    metrics: dict[str, np.ndarray]  # name -> [len(runs)], means since the last snapshot
    scalers: tuple[Standardiser, ...] = ()  # the standardisation of each run's observations


class Trained(NamedTuple):
    """The result of one run; all arrays are on the host."""

    state: State  # training state
    policy: Params  # the last policy, `agent.policy(state)`
    average: Params  # the exponential average of the policy
    scaler: Standardiser  # the standardisation of the observations
    curve: dict[str, np.ndarray]  # name -> [C], one value per snapshot; also `score` if the callback returned any
    best: Params | None = None  # the averaged policy at the snapshot with the highest score


def train(agent: Agent, run: TrainingRun, **options: Any) -> Trained:
    """Train one run.

    Args:
        agent: the agent.
        run: the run.
        **options: as for `train_many`.
    """
    return train_many(agent, [run], **options)[0]


def train_many(
    agent: Agent,
    runs: Sequence[TrainingRun],
    every: int = 5000,
    callback: Callable[[Snapshot], Any] | None = None,
    progress: Callable[[int, str], None] | None = None,
    together: bool | None = None,
    folder: Path | str | None = None,
    average: float = AVERAGE,
) -> list[Trained]:
    """Train several runs with the results of training each alone.

    Runs may have different trajectories, but not different sizes of observations and actions. On a CPU the bits of a
    result do not depend on the other runs; runs in one program agree with those trained alone except for rounding.

    Args:
        agent: the agent.
        runs: the runs.
        every: number of updates between two snapshots, a multiple of the agent's period.
        callback: receives a `Snapshot` every `every` updates and at the end; it may return one score per run, which
            selects each run's best policy.
        progress: receives the number of new updates, summed over runs, and a note; `partial(bar, "training")` of a
            `ssorl.utils.progress.Progress` shows rate and time.
        together: train as many runs as fit the memory in one program, spread over all devices. None: on an
            accelerator only, because it is slower on a CPU.
        folder: where a checkpoint is saved after each snapshot. A call with checkpoints of the same training resumes
            them in the groups in which it began; on a CPU the result has the bits of a training without interruption.
        average: weight of the old average in the averaged policy, per period. It is smaller at first, so that the
            initial weights have little influence.

    Returns:
        One result per run.

    Raises:
        SsorlError: an argument is invalid, or the folder cannot be used.
        DataError: a run has no steps to train on, steps without actions or rewards, or other sizes than the first.
    """
    if not runs:
        return []
    check_counts(agent, every)
    if not 0 <= average < 1:
        raise SsorlError(f"average is {average:g}; give a number from 0 (the last policy) up and below 1")
    agent = settled(agent)
    pools = [training_steps(run, number, agent.view.needs_actions) for number, run in enumerate(runs)]
    check_sizes(runs)
    for eps in {id(run.eps): run.eps for run in runs}.values():
        require_rewards(agent, eps)
    together = jax.default_backend() != "cpu" if together is None else together
    call = _Call(agent, every, callback, progress, average, None if folder is None else Path(folder))
    with locked(call.folder) if call.folder else nullcontext():
        return _train_groups(call, runs, pools, together)


def settled(agent: Agent) -> Agent:
    """Return the agent with its setting `half`, if it is None, set for this device: True on an accelerator."""
    if getattr(agent, "half", False) is None:
        return replace(agent, half=jax.default_backend() != "cpu")  # type: ignore[type-var]
    return agent


# Groups of runs --------------------------------------------------------------------------------------------


class _Call(NamedTuple):
    """The arguments of `train_many` that all groups share."""

    agent: Agent
    every: int
    callback: Callable[[Snapshot], Any] | None
    progress: Callable[[int, str], None] | None
    average: float
    folder: Path | None


def _train_groups(call: _Call, runs: Sequence[TrainingRun], pools: list[np.ndarray], together: bool) -> list[Trained]:
    """Train one group after another; a group has as many runs as fit the memory if `together`, else one."""
    agent, (n_obs, n_act) = call.agent, (runs[0].eps.n_obs, runs[0].eps.n_act)
    data, dataset_of = distinct([run.eps for run in runs])
    max_pool = max(map(len, pools))
    size = _group_size(agent, data, len(runs), max_pool) if together and len(runs) > 1 else 1
    groups = _groups(call.folder, len(runs), size)
    shape = shape_for(data, [[dataset_of[i] for i in group] for group in groups], max_pool)
    digests = [identify_data(dataset.eps) for dataset in data] if call.folder else []
    trained: list[Trained] = []
    table: Any = None
    in_table: list[int] = []  # numbers of the table's datasets
    for group in groups:
        seeds, scalers = [runs[i].seed for i in group], tuple(data[dataset_of[i]].scaler for i in group)
        saver, saved = None, None
        if call.folder:
            identities = [identify_run(runs[i].seed, runs[i].eps.scaled_actions(), pools[i]) for i in group]
            identity = identify(agent, call.every, call.average, [digests[dataset_of[i]] for i in group], identities)
            saved = load(call.folder, group, identity, learner_shapes(agent, n_obs, n_act, len(group)))
            saver = partial(save, call.folder, group, identity)
        if call.progress and saved:
            call.progress(saved.at * len(group), "from a checkpoint")
        if not saved or saved.at < agent.updates:
            if (needed := list(dict.fromkeys(dataset_of[i] for i in group))) != in_table:
                table = None  # free its memory before the next table is made
                table, in_table = make_table([data[n] for n in needed], shape), needed
            base = dict(zip(needed, bases([data[n] for n in needed]), strict=True))
            pool = [make_pool(runs[i].eps, pools[i], shape.pool, shape.labels, base[dataset_of[i]]) for i in group]
            saved = _train_group(call, table, pool, seeds, scalers, group, saved, saver)
        trained += [_result(agent, scaler, saved, index) for index, scaler in enumerate(scalers)]
    return trained


def _group_size(agent: Agent, data: list[Dataset], n_runs: int, n_pool: int) -> int:
    """Return how many runs of at most `n_pool` steps fit the memory together."""
    n_obs, n_act = data[0].eps.n_obs, data[0].eps.n_act
    shape = shape_for(data, [range(len(data))], n_pool)
    need = sizes(agent, shape.labels, 0, n_obs, n_act, shape.pool)
    n_fit = max_runs(need._replace(table=table_bytes(shape.steps, shape.rows, n_obs)), n_runs)
    if len(data) == 1:
        return n_fit
    # If not all datasets fit, a group has at most one dataset per run. Rounding at most doubles a dataset's size.
    largest = 2 * max(table_bytes(dataset.eps.n_steps, len(dataset.eps.obs), n_obs) for dataset in data)
    return max(n_fit, max_runs(need._replace(table=0), n_runs, largest))


def _groups(folder: Path | None, n_runs: int, size: int) -> list[range]:
    """Return the groups with checkpoints in the folder, and the other runs in equal groups of at most `size`."""
    begun = groups_in(folder, n_runs) if folder else []
    groups, at = [], 0
    for group in [*begun, range(n_runs, n_runs)]:
        cuts = np.linspace(at, group.start, -(-(group.start - at) // size) + 1).round().astype(int).tolist()
        groups += [range(a, b) for a, b in pairwise(cuts)] + [group] * bool(group)
        at = group.stop
    return groups


def _result(agent: Agent, scaler: Standardiser, saved: TrainingCheckpoint, index: int) -> Trained:
    """Return the result of one run of a finished group."""
    state, average = jax.tree.map(lambda x: x[index], saved.learner)
    curve = {name: values[:, index] for name, values in saved.curve.items()}
    scored = not np.isnan(saved.scores[:, index]).all()
    best = jax.tree.map(lambda x: x[index], saved.best) if scored else None
    return Trained(
        state, agent.policy(state), average, scaler, curve | ({"score": saved.scores[:, index]} if scored else {}), best
    )


# Training a group ------------------------------------------------------------------------------------------


def _schedule(agent: Agent, every: int, at: int, chunk: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (updates done before, updates of the chunk, whether a snapshot follows) from update `at` to the end."""
    chunk = max(chunk - chunk % agent.period, agent.period)
    while at < agent.updates:
        stop = min(at - at % every + every, agent.updates)
        n = min(chunk, stop - at)
        yield at, n, at + n == stop
        at += n


def _train_group(
    call: _Call,
    table: Table,
    pools: list[Pool],
    seeds: list[int],
    scalers: tuple[Standardiser, ...],
    group: range,
    saved: TrainingCheckpoint | None,
    saver: Callable[[TrainingCheckpoint, bool], None] | None,
) -> TrainingCheckpoint:
    """Do all updates of a group, from the start or from a checkpoint."""
    agent, n_runs = call.agent, len(group)
    # A single run has no leading axis, because even an axis of size 1 makes some operations slower.
    alone = n_runs == 1
    mesh = mesh_for(n_runs)
    # Every device has the same number of runs: the last run is repeated to fill up.
    padded = np.minimum(np.arange(-(-n_runs // mesh.size) * mesh.size if mesh else n_runs), n_runs - 1)
    table = replicate(table, mesh)
    pool = shard(pools[0] if alone else jax.tree.map(lambda *x: np.stack(x), *(pools[i] for i in padded)), mesh)
    keys = [jax.random.key(seed) for seed in seeds]
    key = keys[0] if alone else shard(jnp.stack([keys[i] for i in padded]), mesh)
    if saved is None:
        learner = shard(init_learner(agent, table.obs.shape[1], pool.act.shape[-1], key), mesh)
        saved = TrainingCheckpoint(0, None, {}, np.zeros((0, n_runs)), None)
    else:
        learner = shard(jax.tree.map(lambda x: x[0] if alone else x[padded], saved.learner), mesh)

    def unpad(tree: Any) -> Any:
        if not alone and len(padded) == n_runs:
            return tree
        return jax.tree.map(lambda x: x[None] if alone else x[:n_runs], tree)

    def report(n: int) -> None:
        if call.progress:
            call.progress(n * n_runs, "")

    size = CPU_CHUNK if jax.default_backend() == "cpu" else CHUNK
    parts: list[tuple[int, Metrics]] = []
    # A thread writes checkpoints during training, one at a time: a slow disk slows training but never fills the memory.
    with ThreadPoolExecutor(1) as writer:
        writing: Future | None = None
        for at, n, snapshot_follows in _schedule(agent, call.every, saved.at, size):
            learner, metrics = train_chunk(agent, n, mesh, table, pool, key, learner, at, call.average)
            parts.append((n, metrics))
            # Wait for the previous chunk only after this one is queued, so that the device never waits for the host.
            if len(parts) > 1:
                jax.block_until_ready(parts[-2][1])
                report(parts[-2][0])
            if not snapshot_follows:
                continue
            means, parts = {name: value[:n_runs] for name, value in _means(parts).items()}, []
            report(n)
            returned = None
            if call.callback:
                current = unpad(learner)
                returned = call.callback(Snapshot(at + n, group, current.state, current.average, means, scalers))
            scores, last = _scores(returned, n_runs), at + n == agent.updates
            on_host = unpad(jax.device_get(learner)) if saver or last or returned is not None else None
            saved = TrainingCheckpoint(
                at + n,
                on_host,
                {name: np.vstack([*saved.curve.get(name, ()), row]) for name, row in means.items()},
                np.vstack([saved.scores, scores]),
                _best(saved, scores, on_host and on_host.average),
            )
            if saver:
                if writing:
                    writing.result()
                writing = writer.submit(saver, saved, last)
        if writing:
            writing.result()
    return saved


def _means(parts: list[tuple[int, Metrics]]) -> dict[str, np.ndarray]:
    """Return each metric's mean over the updates of several chunks, [N] float32."""
    counts, metrics = zip(*parts, strict=True)
    metrics = jax.device_get(metrics)
    mean = {name: sum(n * m[name] for n, m in zip(counts, metrics, strict=True)) / sum(counts) for name in metrics[0]}
    return {name: np.atleast_1d(value).astype(np.float32) for name, value in mean.items()}


def _scores(returned: Any, n_runs: int) -> np.ndarray:
    """Return a callback's scores [N], NaN if it returned None; raise SsorlError if their shape is wrong."""
    scores = np.full(n_runs, np.nan) if returned is None else np.asarray(returned, np.float64)
    if scores.shape != (n_runs,):
        raise SsorlError(f"the callback returned scores of shape {scores.shape} for {n_runs} runs; return one per run")
    return scores


def _best(saved: TrainingCheckpoint, scores: np.ndarray, average: Params) -> Params | None:
    """Return each run's best policy, given the scores of another snapshot; without a score it is arbitrary."""
    before = np.where(np.isnan(saved.scores), -np.inf, saved.scores).max(0, initial=-np.inf)
    better = scores > before
    if not better.any():
        return saved.best
    if saved.best is None:
        return average
    return jax.tree.map(lambda a, b: np.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b), average, saved.best)
