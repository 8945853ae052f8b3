"""The engine: trains many runs at once on the device (`scan`), looks at them now and then, saves and resumes them."""

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
from ssorl.training.memory import fitting, sizes, table_bytes
from ssorl.training.scan import begin, chunk, mesh_for, shapes, share, spread
from ssorl.training.tables import Dataset, bases, distinct, make_pool, make_table, shape_for
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.locks import locked
from ssorl.utils.networks import Params

CHUNK = 500  # updates in one call of the device: often enough for a progress bar, rarely enough to cost nothing
CPU_CHUNK = 100  # and on a CPU, which takes ten times as long for them and next to nothing for a call
AVERAGE = 0.999  # share of the averaged policy that stays at each turn of the agent's period


class TrainingRun(NamedTuple):
    """One training: whose actions, which steps, which seed.

    Runs that have the same trajectories (`Episodes.with_actions` keeps them) share them on the device.
    """

    eps: Episodes  # its actions are the run's labels
    seed: int = 0
    steps: np.ndarray | None = None  # to learn from: their numbers, or a mask of all; None: all the view can use


class Snapshot(NamedTuple):
    """What a callback sees."""

    at: int  # updates done
    runs: range  # which of the runs this is about
    state: State  # of those runs, on a leading axis. Lent: training reuses its memory, so copy what is to be kept
    average: Params  # the exponential average of `agent.policy(state)`, lent alike
    metrics: dict[str, np.ndarray]  # [len(runs)], means since the last look
    scalers: tuple[Standardiser, ...] = ()  # of the states that each of the runs is shown


class Trained(NamedTuple):
    """The end of one run."""

    state: State  # on the host, as all here
    policy: Params  # what acting needs of it
    average: Params  # the same, averaged over the training with weights that fall exponentially into the past
    scaler: Standardiser  # of the states the agent was shown
    curve: dict[str, np.ndarray]  # metric -> [C], one value a look; `score`, if the callback gave any
    best: Params | None = None  # the averaged policy at the look with the highest score


def train(agent: Agent, run: TrainingRun, **options: Any) -> Trained:
    """One run, with the options of `train_many`."""
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
    """Train every run as `train` would alone.

    Runs may differ in their trajectories, but not in the sizes of observations and actions. On an accelerator all that
    fit its memory are one program, spread over all devices; on a CPU, where that is slower, they go one after another
    (`together` says otherwise). `callback` is called every `every` updates, and at the end; it may return a score a
    run, by which each run's best policy is kept. `progress` hears of the updates done, summed over the runs, and a
    note: `partial(bar, "training")` of a `report.progress.Progress` shows rate and time.

    With a `folder` everything is saved there at each look. A call that finds its own files there goes on from them,
    in the groups it began with, and on a CPU ends in the same bits as one that was never stopped.

    Beside the last policy of each run stands its exponential average: `average` is the share of it that stays at each
    turn of the agent's period, less at first, so that it is never held back by the first weights.
    """
    if not runs:
        return []
    check_counts(agent, every)
    if not 0 <= average < 1:
        raise SsorlError(f"average is {average:g}; it is a share from 0 (the last policy) to below 1")
    agent = settled(agent)
    pools = [_steps(run, number, agent.view.needs_actions) for number, run in enumerate(runs)]
    _check_sizes(runs)
    for eps in {id(run.eps): run.eps for run in runs}.values():
        require_rewards(agent, eps)
    together = jax.default_backend() != "cpu" if together is None else together
    call = _Call(agent, every, callback, progress, average, None if folder is None else Path(folder))
    with locked(call.folder) if call.folder else nullcontext():
        return _all(call, runs, pools, together)


def settled(agent: Agent) -> Agent:
    """The agent with what it leaves to the device decided: half the precision on an accelerator."""
    if getattr(agent, "half", False) is None:
        return replace(agent, half=jax.default_backend() != "cpu")  # type: ignore[type-var]
    return agent


# The host's side -------------------------------------------------------------------------------------------


class _Call(NamedTuple):
    """What all groups of a call have in common."""

    agent: Agent
    every: int
    callback: Callable[[Snapshot], Any] | None
    progress: Callable[[int, str], None] | None
    average: float
    folder: Path | None


def _all(call: _Call, runs: Sequence[TrainingRun], pools: list[np.ndarray], together: bool) -> list[Trained]:
    """Group after group: as many runs in one as the memory holds, or one."""
    agent, (n_obs, n_act) = call.agent, (runs[0].eps.n_obs, runs[0].eps.n_act)
    data, of = distinct([run.eps for run in runs])
    longest = max(map(len, pools))
    size = _together(agent, data, len(runs), longest) if together and len(runs) > 1 else 1
    groups = _groups(call.folder, len(runs), size)
    shape = shape_for(data, [[of[i] for i in which] for which in groups], longest)
    marks = [identify_data(one.eps) for one in data] if call.folder else []
    trained, there = [], []
    held: Any = None
    for which in groups:
        seeds, scalers = [runs[i].seed for i in which], tuple(data[of[i]].scaler for i in which)
        keep, saved = None, None
        if call.folder:
            some = [identify_run(runs[i].seed, runs[i].eps.scaled_actions(), pools[i]) for i in which]
            own = identify(agent, call.every, call.average, [marks[of[i]] for i in which], some)
            saved = load(call.folder, which, own, shapes(agent, n_obs, n_act, len(which)))
            keep = partial(save, call.folder, which, own)
        if call.progress and saved:
            call.progress(saved.at * len(which), "from a checkpoint")
        if not saved or saved.at < agent.updates:
            if (due := list(dict.fromkeys(of[i] for i in which))) != there:
                held = None  # first: there is never more than one table
                held, there = make_table([data[n] for n in due], shape), due
            base = dict(zip(due, bases([data[n] for n in due]), strict=True))
            group = [make_pool(runs[i].eps, pools[i], shape.pool, shape.labels, base[of[i]]) for i in which]
            saved = _train(call, held, group, seeds, scalers, which, saved, keep)
        trained += [_trained(agent, scaler, saved, place) for place, scaler in enumerate(scalers)]
    return trained


def _together(agent: Agent, data: list[Dataset], n_runs: int, n_pool: int) -> int:
    """How many runs one group may have."""
    n_obs, n_act = data[0].eps.n_obs, data[0].eps.n_act
    every = shape_for(data, [range(len(data))], n_pool)
    need = sizes(agent, every.labels, 0, n_obs, n_act, every.pool)
    fits = fitting(need._replace(table=table_bytes(every.steps, every.rows, n_obs)), n_runs)
    if len(data) == 1:
        return fits
    # Where not all datasets fit, a group still has no more of them than runs. Rounding does not double them.
    own = 2 * max(table_bytes(one.eps.n_steps, len(one.eps.obs), n_obs) for one in data)
    return max(fits, fitting(need._replace(table=0), n_runs, own))


def _groups(folder: Path | None, n_runs: int, size: int) -> list[range]:
    """The groups that a folder has, and of the runs between them groups of like size, at most `size` runs each."""
    begun = groups_in(folder, n_runs) if folder else []
    groups, at = [], 0
    for group in [*begun, range(n_runs, n_runs)]:
        cuts = np.linspace(at, group.start, -(-(group.start - at) // size) + 1).round().astype(int).tolist()
        groups += [range(a, b) for a, b in pairwise(cuts)] + [group] * bool(group)
        at = group.stop
    return groups


def _trained(agent: Agent, scaler: Standardiser, saved: TrainingCheckpoint, place: int) -> Trained:
    """One run out of a group that is through."""
    state, average = jax.tree.map(lambda x: x[place], saved.learnt)
    curve = {name: values[:, place] for name, values in saved.curve.items()}
    scored = not np.isnan(saved.scores[:, place]).all()
    best = jax.tree.map(lambda x: x[place], saved.best) if scored else None
    return Trained(
        state, agent.policy(state), average, scaler, curve | ({"score": saved.scores[:, place]} if scored else {}), best
    )


def check_counts(agent: Agent, every: int) -> None:
    """Refuse a training that ends or is looked at within a turn of the agent."""
    for what, n in (("updates", agent.updates), ("every", every)):
        if n < 1 or n % agent.period:
            raise SsorlError(f"{what} is {n} and must be a positive multiple of {agent.period}, the agent's period")


def _check_sizes(runs: Sequence[TrainingRun]) -> None:
    first = runs[0].eps
    for number, (eps, _, _) in enumerate(runs):
        if (eps.n_obs, eps.n_act) != (first.n_obs, first.n_act):
            raise DataError(
                f"run {number} ({eps.meta.source}) has observations of {eps.n_obs} and actions of {eps.n_act} numbers, "
                f"run 0 ({first.meta.source}) of {first.n_obs} and {first.n_act}; train them in two calls"
            )


def _steps(run: TrainingRun, number: int, needs_actions: bool = True) -> np.ndarray:
    """The steps a run learns from, checked: each exists and, where the view needs it, has an action."""
    eps, where = run.eps, f"run {number} ({run.eps.meta.source})"
    every = np.flatnonzero(eps.labelled) if needs_actions else np.arange(eps.n_steps)
    steps = every if run.steps is None else np.asarray(run.steps)
    if steps.dtype == bool and steps.shape == (eps.n_steps,):
        steps = np.flatnonzero(steps)
    if steps.ndim != 1 or (steps.size and steps.dtype.kind not in "iu"):
        raise DataError(
            f"{where}: steps are {steps.dtype} of shape {steps.shape}; give the numbers of the steps to learn from, or "
            f"a truth value for each of the {eps.n_steps}"
        )
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


def _chunks(agent: Agent, every: int, at: int, chunk: int) -> Iterator[tuple[int, int, bool]]:
    """(updates done before, updates in the chunk, whether a look follows) from update `at` until all are done."""
    chunk = max(chunk - chunk % agent.period, agent.period)
    while at < agent.updates:
        stop = min(at - at % every + every, agent.updates)
        n = min(chunk, stop - at)
        yield at, n, at + n == stop
        at += n


def _train(
    call: _Call,
    table: Table,
    pools: list[Pool],
    seeds: list[int],
    scalers: tuple[Standardiser, ...],
    which: range,
    saved: TrainingCheckpoint | None,
    keep: Callable[[TrainingCheckpoint, bool], None] | None,
) -> TrainingCheckpoint:
    """One group of runs through all updates, from the start or from what was saved."""
    agent, n_runs = call.agent, len(which)
    # Alone, a run has no leading axis at all: an axis of one is not free in every operation.
    alone = n_runs == 1
    mesh = mesh_for(n_runs)
    # Each device has as many runs as any other: the last is repeated where there are too few.
    many = np.minimum(np.arange(-(-n_runs // mesh.size) * mesh.size if mesh else n_runs), n_runs - 1)
    table = share(table, mesh)
    pool = spread(pools[0] if alone else jax.tree.map(lambda *x: np.stack(x), *(pools[i] for i in many)), mesh)
    keys = [jax.random.key(seed) for seed in seeds]
    key = keys[0] if alone else spread(jnp.stack([keys[i] for i in many]), mesh)
    if saved is None:
        learnt = spread(begin(agent, table.obs.shape[1], pool.act.shape[-1], key), mesh)
        saved = TrainingCheckpoint(0, None, {}, np.zeros((0, n_runs)), None)
    else:
        learnt = spread(jax.tree.map(lambda x: x[0] if alone else x[many], saved.learnt), mesh)

    def own(tree: Any) -> Any:
        return jax.tree.map(lambda x: x[None] if alone else x[:n_runs], tree) if alone or len(many) > n_runs else tree

    def done(n: int) -> None:
        if call.progress:
            call.progress(n * n_runs, "")

    size = CPU_CHUNK if jax.default_backend() == "cpu" else CHUNK
    parts: list[tuple[int, Metrics]] = []
    # Files are written beside the training. One at a time: a slow disk slows the training, it never fills the memory.
    with ThreadPoolExecutor(1) as writer:
        writing: Future | None = None
        for at, n, look in _chunks(agent, call.every, saved.at, size):
            learnt, metrics = chunk(agent, n, mesh, table, pool, key, learnt, at, call.average)
            parts.append((n, metrics))
            # A chunk is queued before the one ahead of it is waited for, so that the device never waits for the host.
            if len(parts) > 1:
                jax.block_until_ready(parts[-2][1])
                done(parts[-2][0])
            if not look:
                continue
            means, parts = {name: value[:n_runs] for name, value in _means(parts).items()}, []
            done(n)
            found = None
            if call.callback:
                lent = own(learnt)
                found = call.callback(Snapshot(at + n, which, lent.state, lent.average, means, scalers))
            scores, last = _scores(found, n_runs), at + n == agent.updates
            kept = own(jax.device_get(learnt)) if keep or last or found is not None else None
            saved = TrainingCheckpoint(
                at + n,
                kept,
                {name: np.vstack([*saved.curve.get(name, ()), row]) for name, row in means.items()},
                np.vstack([saved.scores, scores]),
                _better(saved, scores, kept and kept.average),
            )
            if keep:
                if writing:
                    writing.result()
                writing = writer.submit(keep, saved, last)
        if writing:
            writing.result()
    return saved


def _means(parts: list[tuple[int, Metrics]]) -> dict[str, np.ndarray]:
    """Each metric's mean over the updates of some chunks, [N] float32."""
    counts, metrics = zip(*parts, strict=True)
    metrics = jax.device_get(metrics)
    mean = {name: sum(n * m[name] for n, m in zip(counts, metrics, strict=True)) / sum(counts) for name in metrics[0]}
    return {name: np.atleast_1d(value).astype(np.float32) for name, value in mean.items()}


def _scores(found: Any, n_runs: int) -> np.ndarray:
    """What a callback returned as a score a run, NaN if nothing."""
    scores = np.full(n_runs, np.nan) if found is None else np.asarray(found, np.float64)
    if scores.shape != (n_runs,):
        raise SsorlError(f"the callback returned scores of shape {scores.shape} for {n_runs} runs; give one a run")
    return scores


def _better(saved: TrainingCheckpoint, scores: np.ndarray, average: Params) -> Params | None:
    """Each run's best policy after another look; a run without a score so far has any."""
    before = np.where(np.isnan(saved.scores), -np.inf, saved.scores).max(0, initial=-np.inf)
    better = scores > before
    if not better.any():
        return saved.best
    if saved.best is None:
        return average
    return jax.tree.map(lambda a, b: np.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b), average, saved.best)
