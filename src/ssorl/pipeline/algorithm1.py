"""Algorithm 1 (arXiv 2210.06518): fit an inverse dynamics model where actions are known, label the rest, train on all.

Judged against the two agents that bound it: the baseline, trained on the labelled trajectories alone, and the oracle,
trained with every true action.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import jax
import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.split import Split, apply, truth
from ssorl.data.stats import Standardiser
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.rollout import evaluate
from ssorl.idm.base import FittedIdm
from ssorl.idm.fill import LabelledData, fill
from ssorl.idm.label import Labeller, labeller
from ssorl.idm.quality import report_rounds
from ssorl.idm.selftrain import Round, self_train_many
from ssorl.pipeline.hooks import Listener, Log, StageStore
from ssorl.pipeline.plan import Plan, SplitKey, TrainingKey, draw
from ssorl.training.engine import Snapshot, Trained, TrainingRun, train_many
from ssorl.utils.errors import SsorlError
from ssorl.utils.networks import Params

FILLING = 8  # datasets that are labelled at the same time; each takes some times the size of its actions
STARTS = 0  # seed of the evaluation's start states: the same for every policy, seed and quality
PEEK = 5  # episodes a policy plays when its training is looked at, from start states of their own
FQE_UPDATES = 10_000  # of the value that is fitted to a policy where it cannot be played


class SplitData(NamedTuple):
    """Trajectories some of whose actions are missing."""

    data: Episodes  # NaN over every missing action: all that learning may see
    whole: Episodes | None  # the same with the true ones, for the oracle and for diagnostics; None: nobody knows them
    split: Split | None


class EvalResult(NamedTuple):
    """What the policies are worth."""

    returns: np.ndarray  # [P, E], what each earned in each episode, or an estimate for each start state
    lengths: np.ndarray  # [P, E], steps
    starts: np.ndarray  # [E, O], the first observations


class Outcome(NamedTuple):
    """All that a plan came to."""

    tasks: dict[SplitKey, SplitData]
    filled: dict[SplitKey, LabelledData]  # empty for an agent that needs no proxies
    players: dict[TrainingKey, TrainedPolicy]
    returns: dict[TrainingKey, np.ndarray]  # [E]
    curves: dict[
        TrainingKey, dict[str, np.ndarray]
    ]  # metric -> [C], a value a look; `score`: mean return, where it is played


def run(eps: Episodes, plan: Plan, keep: StageStore | None = None, watch: Listener | None = None) -> Outcome:
    """Algorithm 1 for every quality and seed, between its bounds. What `keep` holds already is not done again."""
    keep, watch = keep or StageStore(), watch or Listener()

    with keep.stage("split"):
        tasks = {cell: task(eps, keep.split(cell) or draw(plan, eps, cell)) for cell in plan.cells}
        keep.splits(tasks)
        watch.has_split(plan, tasks)

    with keep.stage("labels"):
        filled = label(plan, tasks, keep, watch) if plan.idm is not None and "ss" in plan.variants else {}
        watch.has_labelled(plan, filled)

    with keep.stage("training"):
        runs = {job: run for cell in tasks for job, run in agents(plan, cell, tasks[cell], filled.get(cell)).items()}
        trained = train(plan, runs, keep, watch)
        players = {job: player(plan, runs[job].eps, done) for job, done in trained.items()}
        keep.players(players)
        watch.has_trained(plan, trained)

    with keep.stage("evaluation"):
        judged = keep.judged() or (play if plan.env else estimate)(plan, players, tasks, watch)
        keep.judgement(judged)

    returns = dict(zip(players, judged.returns, strict=True))
    return Outcome(tasks, filled, players, returns, {job: done.curve for job, done in trained.items()})


# The stages ------------------------------------------------------------------------------------------------


def task(eps: Episodes, split: Split | None) -> SplitData:
    """Hide what the split hides; without one the data is taken as it is."""
    if split is None:
        return SplitData(eps, None, None)
    data = apply(split, eps)
    act = np.where(data.labelled[:, None], data.act, truth(split, eps))
    return SplitData(data, replace(data, act=act, meta=eps.meta), split)


def label(
    plan: Plan, tasks: dict[SplitKey, SplitData], keep: StageStore, watch: Listener, rounds: int = 0
) -> dict[SplitKey, LabelledData]:
    """Fit an inverse dynamics model to each task's known actions, or self-train one, and fill in the missing ones."""
    found = {cell: keep.filled(cell, one.data) for cell, one in tasks.items()}
    todo = [cell for cell, done in found.items() if done is None]
    # On an accelerator all models are one program; on a CPU each is kept as soon as it is fitted.
    size = 1 if jax.default_backend() == "cpu" else max(1, len(todo))
    one_at_a_time = Lock()

    def tell(what: str, n: int, note: str = "") -> None:
        with one_at_a_time:
            watch.progress(what, n, note)

    def finish(cell: SplitKey, fitted: FittedIdm | Labeller | list[Round]) -> LabelledData:
        data, whole = tasks[cell].data, tasks[cell].whole
        known = None if whole is None else whole.act
        idm = fitted[-1].idm if isinstance(fitted, list) else fitted
        model = idm if isinstance(idm, Labeller) else labeller(idm, data)
        done = fill(data, model, cell.seed, truth=known, progress=tell)
        if isinstance(fitted, list):
            done = replace(done, report=done.report | {"rounds": report_rounds(fitted, data, known)})
        keep.labels(cell, done)
        return done

    for first in range(0, len(todo), size):
        group = todo[first : first + size]
        fitted = fit(plan, [(tasks[c].data, c.seed) for c in group], watch, rounds)
        found |= zip(group, _at_once(finish, group, fitted), strict=True)
    return {cell: done for cell, done in found.items() if done is not None}


def _at_once(f: Callable[..., Any], *args: Sequence[Any]) -> list[Any]:
    """As `map`, by some threads: to gather windows and to measure labels is work for the host, and it has cores."""
    workers = min(len(args[0]), (os.cpu_count() or 1) // 2, FILLING)
    if workers < 2:
        return list(map(f, *args))
    pool = ThreadPoolExecutor(workers)
    try:
        return list(pool.map(f, *args))
    finally:
        pool.shutdown(cancel_futures=True)


def fit(
    plan: Plan, some: list[tuple[Episodes, int]], watch: Listener, rounds: int = 0
) -> Sequence[FittedIdm | Labeller | list[Round]]:
    """A model for each of some data with a seed, self-trained in `rounds`, or the one model that was fitted before."""
    if isinstance(plan.idm, Labeller) or plan.idm is None:
        return [plan.idm] * len(some)  # type: ignore[list-item]
    if rounds:
        each = len(some) * plan.idm.work
        hear = lambda r, _: watch.progress("fitting", each, f"round {r} of {rounds}")  # noqa: E731
        return self_train_many(some, plan.idm, None, rounds, hear)
    return plan.idm.fit_many(some, partial(watch.progress, "fitting"))


def agents(plan: Plan, cell: SplitKey, task: SplitData, filled: LabelledData | None) -> dict[TrainingKey, TrainingRun]:
    """The trainings of one split."""
    runs = learners(task, filled, cell.seed, plan.certain)
    return {plan.job(variant, cell): runs[variant] for variant in plan.variants}


def learners(
    task: SplitData, filled: LabelledData | None, seed: int, certain: float | None = None
) -> dict[str, TrainingRun]:
    """Who learns from what: the agents differ in their action table, their steps and their seed alone."""
    known = np.flatnonzero(task.data.labelled)
    runs = {"baseline": TrainingRun(task.data, seed, known)}
    runs["ss"] = TrainingRun(surest(filled, certain) if filled else task.data, seed)
    if task.whole is not None:
        runs["oracle"] = TrainingRun(task.whole, seed)
    return runs


def surest(filled: LabelledData, share: float | None) -> Episodes:
    """The labelled data without the actions the model is least sure of: all but this share of the proxies."""
    if share is None:
        return filled.eps
    if not 0 < share <= 1:
        raise SsorlError(f"certain is {share:g}; it is the share of the proxies to keep, above 0 and at most 1")
    half = (filled.eps.meta.high - filled.eps.meta.low) / 2
    steps = np.flatnonzero(filled.labels.proxy)
    doubt = ((filled.labels.std[steps] / np.where(half > 0, half, 1)) ** 2).mean(1)
    act = filled.eps.act.copy()
    act[steps[np.argsort(doubt, kind="stable")[round(share * len(steps)) :]]] = np.nan
    return filled.eps.with_actions(act)


def train(
    plan: Plan,
    runs: dict[TrainingKey, TrainingRun],
    keep: StageStore,
    watch: Listener,
    glance: Callable[..., Any] | None = None,
) -> dict[TrainingKey, Trained]:
    """All agents in one call; `glance` looks at them in place of `peek`."""
    some = list(runs.values())
    trained = train_many(
        plan.agent,
        some,
        every=plan.every,
        callback=partial(glance or peek, plan, some, keep.log(list(runs))),
        progress=partial(watch.progress, "training"),
        folder=keep.checkpoints(),
    )
    return dict(zip(runs, trained, strict=True))


def peek(plan: Plan, runs: list[TrainingRun], log: Log, look: Snapshot) -> np.ndarray | None:
    """Let policies in training play a little, for the learning curve. Nothing is chosen by it."""
    if not plan.env:
        return log(look)
    some = [runs[i] for i in look.runs]
    scores = glimpse(plan, players_at(plan, some, look.scalers, policies_at(plan, look)))
    log(look, score=scores)
    return scores


def policies_at(plan: Plan, look: Snapshot) -> Params:
    """What acting needs of the agents at a look, on the host, with a leading axis of runs."""
    return jax.device_get(look.average if plan.policy == "average" else jax.vmap(plan.agent.policy)(look.state))


def players_at(
    plan: Plan, runs: Sequence[TrainingRun], scalers: Sequence[Standardiser], params: Params
) -> list[TrainedPolicy]:
    """Agents in training, ready to act."""
    return [
        TrainedPolicy(
            plan.agent, jax.tree.map(lambda x, i=place: x[i], params), scaler, run.eps.meta.low, run.eps.meta.high
        )
        for place, (run, scaler) in enumerate(zip(runs, scalers, strict=True))
    ]


def glimpse(
    plan: Plan, players: Sequence[TrainedPolicy], progress: Callable[[int, str], None] | None = None
) -> np.ndarray:
    """What each earns in a few episodes, [P]; NaN of one that has diverged, which takes no other's score."""
    try:
        return evaluate(players, plan.env or "", PEEK, STARTS + 1, progress).returns.mean(1)
    except SsorlError:
        if len(players) == 1:
            return np.array([np.nan])
    return np.concatenate([glimpse(plan, [one], progress) for one in players])


def player(plan: Plan, eps: Episodes, trained: Trained) -> TrainedPolicy:
    """The trained agent, ready to act."""
    params = trained.average if plan.policy == "average" else trained.policy
    return TrainedPolicy(plan.agent, params, trained.scaler, eps.meta.low, eps.meta.high)


def play(plan: Plan, players: dict[TrainingKey, TrainedPolicy], tasks: object, watch: Listener) -> EvalResult:
    """Every policy in every episode at once; if one has diverged, one after another, and NaN for what it earns."""
    progress = partial(watch.progress, "evaluating")

    def judge(some: list[TrainedPolicy]) -> EvalResult:
        scores = evaluate(some, plan.env or "", plan.episodes, STARTS, progress)
        return EvalResult(scores.returns, scores.lengths, scores.starts)

    try:
        return judge(list(players.values()))
    except SsorlError:
        each = _judged(players, lambda _, one: judge([one]))
    starts = next(one.starts for one in each if one)
    lost = EvalResult(np.full((1, plan.episodes), np.nan), np.zeros((1, plan.episodes), np.int64), starts)
    returns, lengths, _ = zip(*(one or lost for one in each), strict=True)
    return EvalResult(np.concatenate(returns), np.concatenate(lengths), starts)


def _judged(players: dict[TrainingKey, TrainedPolicy], judge: Callable[[TrainingKey, TrainedPolicy], Any]) -> list[Any]:
    """What is found of each policy, None of one that has diverged; if none is left, that is an error."""
    found: list[Any] = []
    why: dict[TrainingKey, SsorlError] = {}
    for job, one in players.items():
        try:
            found.append(judge(job, one))
        except SsorlError as err:
            found.append(None)
            why[job] = err
    if len(why) == len(found):
        job, err = next(iter(why.items()))
        others = f", and so have the other {len(why) - 1}" if len(why) > 1 else ""
        raise SsorlError(
            f"{job.told}: {err}{others}; give the agent other settings, such as a smaller learning rate (--set), and "
            "another --out"
        ) from err
    return found


def estimate(
    plan: Plan, players: dict[TrainingKey, TrainedPolicy], tasks: dict[SplitKey, SplitData], watch: Listener
) -> EvalResult:
    """Where there is nothing to play in: fitted-Q evaluation on every true action that is known.

    Never on proxies: a policy's value must not depend on which model labelled for it, or for another beside it.
    """
    from ssorl.evaluation.fqe import fqe

    data = {}
    for job in players:
        one = next(task for cell, task in tasks.items() if plan.job(job.variant, cell) == job)
        data[job] = one.data if one.whole is None else one.whole
    progress = partial(watch.progress, "evaluating")
    found = _judged(players, lambda job, one: fqe(one, data[job], FQE_UPDATES, job.seed, progress=progress).values)
    values = [np.full(len(data[job]), np.nan) if v is None else v for job, v in zip(players, found, strict=True)]
    nothing = np.zeros((len(values), 0))  # no steps were made, and the start states are the data's own
    return EvalResult(np.stack(values), nothing, nothing)
