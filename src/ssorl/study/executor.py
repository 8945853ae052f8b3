"""Compute one batch of cells: from their settings to their results in files.

A batch needs only its cells and the store's folder, so it can run on another machine that sees the folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.data import split as splits
from ssorl.data.episodes import Episodes
from ssorl.data.split import Split
from ssorl.envs import require_trusted
from ssorl.envs.registry import horizon
from ssorl.evaluation.rollout import evaluate
from ssorl.idm.fill import LabelledData
from ssorl.pipeline import algorithm1, scoring
from ssorl.pipeline.algorithm1 import SplitData
from ssorl.pipeline.arguments import fit_to_task
from ssorl.pipeline.hooks import Listener
from ssorl.pipeline.plan import TrainingPlan
from ssorl.runs.result import ReturnScale, json_values, scale_of
from ssorl.study.cell import Cell
from ssorl.study.datasets import LoadedData, check_unchanged, dataset
from ssorl.study.idm_cache import IdmCache, label_cells
from ssorl.study.learning_curves import LearningCurves
from ssorl.study.reference import agent_of
from ssorl.study.revisions import check_current
from ssorl.study.store import begin_work, clear_work, finished, folder, lock_cells, work_folder, write
from ssorl.training.engine import Trained, TrainingRun
from ssorl.utils import provenance
from ssorl.utils.errors import DataError, SsorlError

Progress = Callable[[str, int, str], None]  # called with a stage, the number of further updates or steps, and a note
POLICIES = ("last", "average")  # results hold the scores of both weights
WITHOUT_MODULE = (
    "give `env` as the id of an environment without a module, or write the study as a .py file that imports the module"
)
# Values of results without evaluations.
BLANK = {"returns": [], "normalised": None, "score": None, "scores": {}, "curve": {}, "data": None}


def run_batch(cells: Sequence[Cell], store: Path | str, progress: Progress | None = None) -> None:
    """Compute the unfinished cells of a batch, except cells that another process has locked.

    An interrupted batch resumes from its checkpoints. Each result is written as soon as it is known.

    Args:
        cells: cells of one shape (`scheduler.shape`).
        store: the store's folder.
        progress: called with the progress of each stage.

    Raises:
        SsorlError: a cell cannot be computed; other cells of the batch may have results.
    """
    store, listener = Path(store), _ProgressListener(progress)
    require_trusted(cells[0].env or "", folder(store, cells[0]) / "cell.json", WITHOUT_MODULE)
    check_current(cells)
    with lock_cells(store, cells) as locked:
        if not locked:
            return
        batch = list(cells)
        if len(locked) < len(batch):
            # Checkpoints belong to a whole batch: keep finished cells in it while it has checkpoints.
            rest = [cell for cell in batch if cell not in locked]
            if not (work_folder(store, batch).is_dir() and all(finished(store, cell) for cell in rest)):
                batch = locked
        check_unchanged(store, locked[0].dataset)
        KINDS[locked[0].kind](store, batch, locked, listener)


class _ProgressListener(Listener):
    def __init__(self, callback: Progress | None) -> None:
        self.callback = callback

    def progress(self, what: str, n: int, note: str = "") -> None:
        if self.callback:
            self.callback(what, n, note)


class Clock:
    """Wall-clock seconds of each stage."""

    def __init__(self) -> None:
        self.started, self.seconds = datetime.now(UTC).isoformat(timespec="seconds"), {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Measure the block as a stage."""
        began = time.monotonic()
        yield
        self.seconds[stage] = time.monotonic() - began

    def share(self, n: int) -> dict[str, float]:
        """Return the seconds of each stage for one of `n` cells that were computed together."""
        return {stage: round(seconds / n, 3) for stage, seconds in self.seconds.items()}


# Cells of kind "return": split, label, train, evaluate -----------------------------------------------------


def _compute_returns(store: Path, batch: list[Cell], locked: list[Cell], listener: Listener) -> None:
    """Run Algorithm 1, its baseline and its oracle for all cells of a batch at once; write those in `locked`."""
    data, clock = dataset(locked[0].dataset), Clock()
    plan = plan_of(locked[0], data.eps)
    models = IdmCache(store, begin_work(store, batch))
    curves = LearningCurves(work_folder(store, batch) / "looks")
    with clock("labels"):
        tasks = _tasks(batch, data.eps)
        with_idm = {cell: task for cell, task in tasks.items() if cell.idm is not None and _lacks_actions(task)}
        labelled = label_cells(with_idm, models, listener)
        runs = {cell: _run(cell, tasks[cell], labelled.get(cell)) for cell in batch}
        scale = scale_of(plan.env, data.eps)
        labels = {cell: _describe_labels(cell, tasks[cell], labelled.get(cell), scale) for cell in locked}
    # The results of the cells that measure only the labels are known too.
    cell_of = {cell.labels: cell for cell in locked if cell.labels and labels[cell]["idm"]}
    with lock_cells(store, list(cell_of)) as unfinished:
        for label_cell in unfinished:  # returns are on the scale of the data's environment, as in such a study
            cell = cell_of[label_cell]
            values = _describe_labels(label_cell, tasks[cell], labelled[cell], _scale_of_data(data.eps))
            write_cell(store, label_cell, values, data, clock, len(locked))
    del tasks, labelled, with_idm  # their action tables are large and not needed any more
    with clock("training"):
        trained: dict[Any, Trained] = algorithm1.train(plan, runs, models, listener, curves)  # type: ignore[arg-type]
    with clock("evaluation"):
        scores = curves.evaluate(plan, list(runs.values()), list(trained.values()), listener)
        curve_scores = dict(zip(runs, scores, strict=True))
        returns, errors = evaluate_each(plan, {cell: runs[cell] for cell in locked}, trained, listener)
    for cell, own in returns.items():
        points = {} if np.isnan(curve_scores[cell]).all() else {"score": curve_scores[cell]}
        values = _describe_returns(plan, scale, own, trained[cell].curve | points)
        write_cell(store, cell, {**values, **labels[cell]}, data, clock, len(locked))
    if errors:
        raise errors[0]
    if models.work:
        clear_work(models.work)


def plan_of(cell: Cell, eps: Episodes) -> TrainingPlan:
    """Return the plan for training and evaluating a cell.

    Args:
        cell: a cell of kind "return".
        eps: its dataset.

    Raises:
        SsorlError: the environment is unknown, or no environment is named.
    """
    env = cell.env or eps.meta.env
    if env is None or cell.agent is None:
        raise SsorlError(f"{cell.dataset}: names no environment for rollouts; name it as `env` in the study's base")
    horizon(require_trusted(env, cell.dataset, WITHOUT_MODULE))  # raises a clear error if there is no such environment
    agent = fit_to_task(agent_of(cell.agent, dict(cell.settings)), env, eps)
    policy: Any = cell.policy
    return TrainingPlan(agent=agent, env=env, episodes=cell.episodes, policy=policy, looks=cell.looks)


def _tasks(cells: Sequence[Cell], eps: Episodes) -> dict[Cell, SplitData]:
    """Return the split data of each cell; cells with one split share an object."""
    drawn: dict[tuple, SplitData] = {}
    out = {}
    for cell in cells:
        key = (cell.setup, cell.recipe, cell.setup and cell.seed)
        if key not in drawn:
            drawn[key] = algorithm1.hide_actions(eps, draw(cell, eps))
        out[cell] = drawn[key]
    return out


def draw(cell: Cell, eps: Episodes) -> Split | None:
    """Return the split of a cell, or None if nothing is hidden."""
    return getattr(splits, cell.setup)(eps, **dict(cell.recipe), seed=cell.seed) if cell.setup else None


def split_lengths(cell: Cell, eps: Episodes) -> np.ndarray:
    """Return the lengths of the trajectories in a cell's split; none if the split cannot be drawn."""
    try:
        split = draw(cell, eps)
    except SsorlError:
        return eps.lengths[:0]
    return eps.lengths if split is None else eps.lengths[np.append(split.labelled, split.unlabelled)]


def _run(cell: Cell, task: SplitData, labelled: LabelledData | None) -> TrainingRun:
    if cell.variant == "oracle" and task.whole is None:
        if _lacks_actions(task):
            raise DataError(
                f"{cell.dataset}: an oracle needs all actions, and some are missing; leave the oracle out of the study"
            )
        return TrainingRun(task.data, cell.seed)
    if cell.variant != "ss":  # the baseline and the oracle use no labels
        labelled = None
    return algorithm1.variant_runs(task, labelled, cell.seed, cell.certain)[cell.variant or ""]


def _lacks_actions(task: SplitData) -> bool:
    return not task.data.labelled.all()


def evaluate_each(
    plan: TrainingPlan, runs: dict[Cell, TrainingRun], trained: dict[Any, Trained], listener: Listener
) -> tuple[dict[Cell, dict], list[SsorlError]]:
    """Return the returns of the cells that can be evaluated, and the errors of the others, such as diverged training.

    Args:
        plan: the plan of the batch.
        runs: the trainings by cell.
        trained: their results by cell.
        listener: receives progress.
    """
    try:
        return evaluate_together(plan, runs, trained, listener), []
    except SsorlError:
        returns, errors = {}, []
    for cell, run in runs.items():
        try:
            returns |= evaluate_together(plan, {cell: run}, trained, listener)
        except SsorlError as err:
            errors.append(err)
    return returns, errors


def evaluate_together(
    plan: TrainingPlan, runs: dict[Cell, TrainingRun], trained: dict[Any, Trained], listener: Listener
) -> dict[Cell, dict[str, np.ndarray]]:
    """Return the returns [episodes] of each cell's last and averaged weights, from rollouts in one simulator.

    Args:
        plan: the plan of the batch.
        runs: the trainings by cell.
        trained: their results by cell.
        listener: receives progress.
    """
    policies = {
        (cell, policy): scoring.trained_policy(replace(plan, policy=policy), run.eps, trained[cell])
        for cell, run in runs.items()
        for policy in POLICIES
    }
    progress = partial(listener.progress, "evaluating")
    scores = evaluate(list(policies.values()), plan.env or "", plan.episodes, scoring.START_SEED, progress)
    returns = dict(zip(policies, scores.returns, strict=True))
    return {cell: {policy: returns[cell, policy] for policy in POLICIES} for cell in runs}


def _describe_returns(
    plan: TrainingPlan, scale: ReturnScale, returns: dict[str, np.ndarray], curve: dict[str, Any]
) -> dict:
    """Return the values of a result that depend on rollouts; scores are normalised if there are reference scores."""
    score = {policy: float(scale(own).mean()) for policy, own in returns.items()}
    scaled = {name: scale(values) if name == "score" else values for name, values in curve.items()}
    chosen = returns[plan.policy]
    return {
        "returns": chosen,
        "normalised": scale(chosen) if scale.known else None,
        "score": score[plan.policy],
        "scores": score,
        "all_returns": returns,
        "curve": {"at": plan.snapshot_updates, **scaled},
    }


# Cells of kind "idm" and "data" ----------------------------------------------------------------------------


def _compute_label_errors(store: Path, batch: list[Cell], locked: list[Cell], listener: Listener) -> None:
    data, clock = dataset(locked[0].dataset), Clock()
    with clock("labels"):
        tasks = _tasks(locked, data.eps)
        labelled = label_cells(tasks, IdmCache(store), listener)
    for cell in locked:
        values = _describe_labels(cell, tasks[cell], labelled[cell], _scale_of_data(data.eps))
        write_cell(store, cell, values, data, clock, len(locked))


def _compute_data_returns(store: Path, batch: list[Cell], locked: list[Cell], listener: Listener) -> None:
    """Write the returns of the trajectories, those with actions and those without."""
    data, clock = dataset(locked[0].dataset), Clock()
    scale = _scale_of_data(data.eps)
    for cell, task in _tasks(locked, data.eps).items():
        share, returns = task.data.labelled_share, scale(task.data.returns).round(4)
        kinds = {"labelled": returns[share > 0], "unlabelled": returns[share == 0], "normalised": scale.known}
        values = {"data": kinds, **_describe_labels(cell, task, None, scale)}
        write_cell(store, cell, values, data, clock, len(locked))


KINDS = {"return": _compute_returns, "idm": _compute_label_errors, "data": _compute_data_returns}


def _scale_of_data(eps: Episodes) -> ReturnScale:
    return scale_of(eps.meta.env, eps)


def _describe_labels(cell: Cell, task: SplitData, labelled: LabelledData | None, scale: ReturnScale) -> dict[str, Any]:
    """Return the values of a result that describe the labelled trajectories and the error of the labels."""
    report = labelled and labelled.report
    returns = task.data.returns[task.data.labelled_share > 0]
    return {
        "labelled_return": None if cell.setup is None else float(scale(returns).mean()),
        "idm": report
        and {
            "hash": cell.idm_hash,
            "mse": report["truth"] and report["truth"]["mse"],
            "validation_mse": report["validation"] and report["validation"]["mse"],
            "by_round": [self_training.get("mse") for self_training in report.get("rounds", [])],
        },
    }


def write_cell(store: Path, cell: Cell, values: dict[str, Any], data: LoadedData, clock: Clock, n: int) -> None:
    """Write a result; values that its kind does not have are taken from `BLANK`.

    Args:
        store: the store's folder.
        cell: the cell.
        values: values of the result.
        data: the dataset.
        clock: seconds of the stages.
        n: number of cells that were computed together.
    """
    seconds = clock.share(n)
    about = {**_provenance(), "started": clock.started, "seconds": round(sum(seconds.values()), 3), "data": data.about}
    write(store, cell, json_values({**BLANK, **values, "timings": seconds}), json_values(about))


@cache
def _provenance() -> dict[str, Any]:
    return provenance.everything()
