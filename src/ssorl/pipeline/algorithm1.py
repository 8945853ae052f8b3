"""Algorithm 1 (arXiv 2210.06518): fit an inverse dynamics model to known actions, label the rest, train on all steps.

The result (variant `ss`) lies between two bounds that are trained alongside: the baseline, trained on the labelled
trajectories only, and the oracle, trained with every true action.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.split import Split, apply, truth
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.idm.base import IdmSpec
from ssorl.idm.fill import Fitted, LabelledData, fill, fit_models
from ssorl.idm.label import Labeller
from ssorl.idm.worth import LabelUse, draw_actions, drop_doubtful, step_weights
from ssorl.pipeline.hooks import Listener, StageStore
from ssorl.pipeline.plan import Plan, SplitKey, TrainingKey, TrainingPlan, draw
from ssorl.pipeline.scoring import evaluate_by_fqe, evaluate_by_rollouts, score_snapshot, trained_policy
from ssorl.training.engine import Trained, TrainingRun, train_many
from ssorl.training.weights import weighted_run
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import SsorlError

Result = TypeVar("Result")

LABELLING_THREADS = 8  # datasets that are labelled at the same time; each needs several times the size of its actions


class SplitData(NamedTuple):
    """A dataset whose hidden actions are NaN, with the truth where it is known."""

    data: Episodes  # NaN for every missing action; the only part that learning may read
    whole: Episodes | None  # the same steps with the true actions, for oracle and diagnostics; None: unknown
    split: Split | None

    def __repr__(self) -> str:
        return short_repr("SplitData", self._facts())

    def _repr_html_(self) -> str:
        return html_table("SplitData", self._facts())

    def _facts(self) -> dict[str, object]:
        labelled = int(self.data.labelled.sum())
        facts: dict[str, object] = {"source": self.data.meta.source, "trajectories": self.data.n_episodes}
        facts |= {"steps": self.data.n_steps, "labelled_steps": labelled, "truth_known": self.whole is not None}
        return facts | {"recipe": self.split and self.split.recipe}


class Outcome(NamedTuple):
    """All results of a plan."""

    tasks: dict[SplitKey, SplitData]
    filled: dict[SplitKey, LabelledData]  # empty if the agent needs no proxy actions
    players: dict[TrainingKey, TrainedPolicy]
    returns: dict[TrainingKey, np.ndarray]  # [E]
    curves: dict[TrainingKey, dict[str, np.ndarray]]  # metric -> [C], one value for each snapshot; `score`: mean return


def run(eps: Episodes, plan: Plan, store: StageStore | None = None, listener: Listener | None = None) -> Outcome:
    """Run Algorithm 1 with its bounds for every quality and seed of a plan. Stages that are stored are not repeated.

    Args:
        eps: the trajectories, with all actions if the plan has a split.
        plan: what to do.
        store: where the results of the stages are kept; by default, nowhere.
        listener: reports progress; by default, nothing is reported.

    Raises:
        SsorlError: a split cannot be drawn, no model can be fitted, or the training of every agent diverged.
    """
    store, listener = store or StageStore(), listener or Listener()

    with store.stage("split"):
        tasks = {key: hide_actions(eps, store.load_split(key) or draw(plan, eps, key)) for key in plan.split_keys}
        store.save_splits(tasks)
        listener.has_split(plan, tasks)

    with store.stage("labels"):
        filled = label(plan.idm, tasks, store, listener) if plan.idm is not None and "ss" in plan.variants else {}
        listener.has_labelled(plan, filled)

    with store.stage("training"):
        runs: dict[TrainingKey, TrainingRun] = {}
        for key, task in tasks.items():
            runs |= training_runs(plan, key, task, filled.get(key))
        trained = train(plan, runs, store, listener)
        players = {key: trained_policy(plan, runs[key].eps, result) for key, result in trained.items()}
        store.save_policies(players)
        listener.has_trained(plan, trained)

    with store.stage("evaluation"):
        evaluate_all = evaluate_by_rollouts if plan.env else evaluate_by_fqe
        evaluation = store.load_evaluation() or evaluate_all(plan, players, tasks, listener)
        store.save_evaluation(evaluation)

    returns = dict(zip(players, evaluation.returns, strict=True))
    return Outcome(tasks, filled, players, returns, {key: result.curve for key, result in trained.items()})


# Split and label -------------------------------------------------------------------------------------------


def hide_actions(eps: Episodes, split: Split | None) -> SplitData:
    """Return the dataset with the actions that the split hides as NaN.

    Args:
        eps: the trajectories.
        split: the split; None leaves the data as it is, and its missing actions unknown.
    """
    if split is None:
        return SplitData(eps, None, None)
    data = apply(split, eps)
    act = np.where(data.labelled[:, None], data.act, truth(split, eps))
    return SplitData(data, replace(data, act=act, meta=eps.meta), split)


def label(
    idm: IdmSpec | Labeller,
    tasks: dict[SplitKey, SplitData],
    store: StageStore,
    listener: Listener,
    rounds: int = 0,
) -> dict[SplitKey, LabelledData]:
    """Fit an inverse dynamics model to each task's known actions and fill in proxies for the missing ones.

    Args:
        idm: the model's configuration, or a model that was fitted before.
        tasks: the split datasets.
        store: labels that it holds are loaded, new ones are saved.
        listener: reports progress.
        rounds: rounds of self-training (Algorithm 2 of the paper).
    """
    labelled = {key: store.load_labels(key, task.data) for key, task in tasks.items()}
    missing = [key for key, labels in labelled.items() if labels is None]
    # On an accelerator all models are one program; on a CPU each is saved as soon as it is fitted.
    size = 1 if jax.default_backend() == "cpu" else max(1, len(missing))
    lock = Lock()

    def report(what: str, n: int, note: str = "") -> None:
        with lock:
            listener.progress(what, n, note)

    def fill_in(key: SplitKey, fitted: Fitted) -> LabelledData:
        data, whole = tasks[key].data, tasks[key].whole
        labels = fill(data, fitted, key.seed, truth=None if whole is None else whole.act, progress=report)
        store.save_labels(key, labels)
        return labels

    for first in range(0, len(missing), size):
        group = missing[first : first + size]
        fitted = fit_models(idm, [(tasks[key].data, key.seed) for key in group], rounds, listener.progress)
        labelled |= zip(group, _map_threads(fill_in, group, fitted), strict=True)
    return {key: labels for key, labels in labelled.items() if labels is not None}


def _map_threads(function: Callable[..., Result], *args: Sequence[Any]) -> list[Result]:
    """Return `list(map(function, *args))`, computed by several threads: labelling also keeps the CPU's cores busy."""
    workers = min(len(args[0]), (os.cpu_count() or 1) // 2, LABELLING_THREADS)
    if workers < 2:
        return list(map(function, *args))
    pool = ThreadPoolExecutor(workers)
    try:
        return list(pool.map(function, *args))
    finally:
        pool.shutdown(cancel_futures=True)


# Train -----------------------------------------------------------------------------------------------------


def training_runs(
    plan: Plan, key: SplitKey, task: SplitData, filled: LabelledData | None
) -> dict[TrainingKey, TrainingRun]:
    """Return the trainings of one split, one for each variant of the plan."""
    length = getattr(plan.agent.view, "length", 1)
    runs = variant_runs(task, filled, key.seed, plan.certain, plan.use, length)
    return {plan.training_key(variant, key): runs[variant] for variant in plan.variants}


def variant_runs(
    task: SplitData,
    filled: LabelledData | None,
    seed: int,
    certain: float | None = None,
    use: LabelUse | None = None,
    length: int = 1,
) -> dict[str, TrainingRun]:
    """Return the training of each variant: `baseline`, `ss`, and `oracle` if the true actions are known.

    Args:
        task: the split dataset.
        filled: its labels; None trains `ss` on the missing actions themselves.
        seed: seed of the trainings.
        certain: share of the proxy actions to use, see `keep_certain`.
        use: how `ss` uses proxy actions; None: as true actions.
        length: steps of the agent's windows, 1 if it draws single steps.
    """
    known = np.flatnonzero(task.data.labelled)
    runs = {"baseline": TrainingRun(task.data, seed, known)}
    runs["ss"] = ss_run(filled, seed, certain, use or LabelUse(), length) if filled else TrainingRun(task.data, seed)
    if task.whole is not None:
        runs["oracle"] = TrainingRun(task.whole, seed)
    return runs


def ss_run(filled: LabelledData, seed: int, certain: float | None, use: LabelUse, length: int = 1) -> TrainingRun:
    """Return the training of SS.

    Args:
        filled: the labelled data.
        seed: seed of the training, and of proxy actions that are drawn from their distribution.
        certain: share of the proxy actions to use, see `keep_certain`.
        use: how to use them.
        length: steps of the agent's windows, 1 if it draws single steps.
    """
    if use.when_doubtful == "drop":
        filled = drop_doubtful(filled)
    if use.label_samples:
        filled = draw_actions(filled, seed)
    filled = replace(filled, eps=keep_certain(filled, certain))
    if not use.weighs:
        return TrainingRun(filled.eps, seed)
    return weighted_run(filled.eps, seed, step_weights(filled, use), length)


def keep_certain(filled: LabelledData, share: float | None) -> Episodes:
    """Return the labelled data with only a share of its proxy actions, lowest predicted std first.

    Args:
        filled: the labelled data.
        share: share of the proxy actions to keep, above 0 and at most 1; None keeps all.

    Raises:
        SsorlError: the share is out of range.
    """
    if share is None:
        return filled.eps
    if not 0 < share <= 1:
        raise SsorlError(f"certain is {share:g}; give the share of proxy actions to keep, above 0 and at most 1")
    half_range = (filled.eps.meta.high - filled.eps.meta.low) / 2
    steps = np.flatnonzero(filled.labels.proxy)
    variance = ((filled.labels.std[steps] / np.where(half_range > 0, half_range, 1)) ** 2).mean(1)
    act = filled.eps.act.copy()
    act[steps[np.argsort(variance, kind="stable")[round(share * len(steps)) :]]] = np.nan
    return filled.eps.with_actions(act)


def train(
    plan: TrainingPlan,
    runs: dict[TrainingKey, TrainingRun],
    store: StageStore,
    listener: Listener,
    on_snapshot: Callable[..., Any] | None = None,
) -> dict[TrainingKey, Trained]:
    """Train all agents in one call.

    Args:
        plan: names the agent.
        runs: the trainings.
        store: keeps checkpoints and metrics.
        listener: reports progress.
        on_snapshot: called as `on_snapshot(plan, runs, log, snapshot)`; by default `score_snapshot`.
    """
    in_order = list(runs.values())
    trained = train_many(
        plan.agent,
        in_order,
        every=plan.every,
        callback=partial(on_snapshot or score_snapshot, plan, in_order, store.open_log(list(runs))),
        progress=partial(listener.progress, "training"),
        folder=store.checkpoint_folder(),
    )
    return dict(zip(runs, trained, strict=True))
