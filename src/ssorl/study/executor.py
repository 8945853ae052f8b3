"""The executor: does one batch of cells from their settings to their results, in files.

It needs the cells and the store's folder alone, so that a batch can be shipped to another machine that sees the folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssorl.data import split as splits
from ssorl.data.episodes import Episodes
from ssorl.data.formats import load
from ssorl.data.split import Split
from ssorl.envs import require_trusted
from ssorl.envs.registry import horizon
from ssorl.evaluation.rollout import evaluate
from ssorl.idm.fill import LabelledData
from ssorl.pipeline import algorithm1, scoring
from ssorl.pipeline.algorithm1 import SplitData
from ssorl.pipeline.arguments import fit_to_task
from ssorl.pipeline.hooks import Listener
from ssorl.pipeline.plan import Plan
from ssorl.runs.result import ReturnScale, json_values, scale_of
from ssorl.runs.run import describe
from ssorl.study.cell import Cell
from ssorl.study.idm_cache import IdmCache, proxies
from ssorl.study.learning_curves import LearningCurves
from ssorl.study.reference import agent_of
from ssorl.study.revisions import check_current
from ssorl.study.store import begin_work, clear_work, data_of, finished, folder, lock_cells, work, write
from ssorl.training.engine import Trained, TrainingRun
from ssorl.utils import provenance as about
from ssorl.utils.errors import ChangedError, DataError, SsorlError

Tell = Callable[[str, int, str], None]  # hears of `n` more updates or steps of fitting, training, …
POLICIES = ("last", "average")  # every cell keeps what both earn
BY_ID_ALONE = (
    "name an environment by its id alone as `env` in the study, written as a .py file that imports the module itself"
)
BLANK = {"returns": [], "normalised": None, "score": None, "scores": {}, "curve": {}, "data": None}  # nobody played


def run_batch(cells: Sequence[Cell], store: Path | str, tell: Tell | None = None) -> None:
    """Do what is not done of some cells of one shape (`schedule.shape`); what another process has in hand is left.

    A batch that was stopped goes on from its checkpoints. Each result is in its folder, whole, as soon as it is known.
    """
    store, watch = Path(store), _ProgressListener(tell)
    require_trusted(cells[0].env or "", folder(store, cells[0]) / "cell.json", BY_ID_ALONE)
    check_current(cells)
    with lock_cells(store, cells) as mine:
        if not mine:
            return
        together = list(cells)
        if len(mine) < len(together):
            # Checkpoints are of a whole batch: finished cells stay in it as long as theirs are there.
            rest = [cell for cell in together if cell not in mine]
            if not (work(store, together).is_dir() and all(finished(store, cell) for cell in rest)):
                together = mine
        check_data(store, mine[0].dataset)
        KINDS[mine[0].kind](store, together, mine, watch)


class _ProgressListener(Listener):
    def __init__(self, tell: Tell | None) -> None:
        self.tell = tell

    def progress(self, what: str, n: int, note: str = "") -> None:
        if self.tell:
            self.tell(what, n, note)


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.started, self.seconds = datetime.now(UTC).isoformat(timespec="seconds"), {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Around a stage."""
        began = time.monotonic()
        yield
        self.seconds[stage] = time.monotonic() - began

    def share(self, n: int) -> dict[str, float]:
        """Of one cell among `n` that were done together."""
        return {stage: round(seconds / n, 3) for stage, seconds in self.seconds.items()}


class Data(NamedTuple):
    """A dataset, loaded."""

    eps: Episodes
    about: dict[str, Any]


def dataset(name: str) -> Data:
    """The trajectories, with a digest of them for the record."""
    path = Path(name)
    return _dataset(name, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=1)  # batches come dataset by dataset
def _dataset(name: str, changed: int) -> Data:
    eps = load(name)
    return Data(eps, describe(eps))


def described(name: str) -> dict[str, Any]:
    """What is on record of a dataset, as a file keeps it."""
    return json.loads(json.dumps(dataset(name).about))


def check_data(store: Path, name: str) -> None:
    """Refuse a file that has changed since results were made from it: old and new ones would stand side by side.

    Simulated data is what its name says.
    """
    if name.startswith("sim/") or not (was := data_of(store, name)):
        return
    now = described(name)
    if any(was[key] != now[key] for key in was.keys() & now.keys()):
        then, here = (f"{one['trajectories']:,} trajectories, {one['steps']:,} steps" for one in (was, now))
        if was["digest"] == now["digest"]:  # the same numbers, told to mean something else
            key = next(key for key in was if key in now and was[key] != now[key])
            then, here = f"{key} {was[key]}", str(now[key])
        raise ChangedError(
            f"{name}: has changed since the results in {store} were made from it (then {then}, now {here}); give "
            "another --store, or the data as it was"
        )


# What earns what -------------------------------------------------------------------------------------------


def _returns(store: Path, together: list[Cell], mine: list[Cell], watch: Listener) -> None:
    """Split, label, train, play: Algorithm 1 and its bounds, all cells at once."""
    data, clock = dataset(mine[0].dataset), Clock()
    plan = plan_of(mine[0], data.eps)
    keep = IdmCache(store, begin_work(store, together))
    looks = LearningCurves(work(store, together) / "looks")
    with clock("labels"):
        tasks = _tasks(together, data.eps)
        with_model = {cell: task for cell, task in tasks.items() if cell.idm is not None and _missing(task)}
        labels = proxies(plan, with_model, keep, watch)
        runs = {cell: _run(cell, tasks[cell], labels.get(cell)) for cell in together}
        told = {cell: _labels(cell, tasks[cell], labels.get(cell), scale_of(plan, data.eps)) for cell in mine}
    # A study that asks how good these labels are need not make them again.
    by = {one.labels: one for one in mine if one.labels and told[one]["idm"]}
    with lock_cells(store, list(by)) as asked:
        for cell in asked:  # returns are told as such a study tells them, wherever these policies play
            found = _labels(cell, tasks[by[cell]], labels[by[cell]], _scale(data.eps))
            write_cell(store, cell, found, data, clock, len(mine))
    del tasks, labels, with_model  # action tables of their own: of no more use, and large
    with clock("training"):
        trained: dict[Any, Trained] = algorithm1.train(plan, runs, keep, watch, looks)  # type: ignore[arg-type]
    with clock("evaluation"):
        seen = dict(zip(runs, looks.play(plan, list(runs.values()), list(trained.values()), watch), strict=True))
        returns, errors = play_all(plan, {cell: runs[cell] for cell in mine}, trained, watch)
    for cell, some in returns.items():
        curve = trained[cell].curve | ({} if np.isnan(seen[cell]).all() else {"score": seen[cell]})
        found = earned(plan, scale_of(plan, data.eps), some, curve)
        write_cell(store, cell, {**found, **told[cell]}, data, clock, len(mine))
    if errors:
        raise errors[0]
    if keep.work:
        clear_work(keep.work)


def plan_of(cell: Cell, eps: Episodes) -> Plan:
    """What the pipeline needs to know of how to train and play."""
    env = cell.env or eps.meta.env
    if env is None or cell.agent is None:
        raise SsorlError(f"{cell.dataset}: names no environment to play in; name one as `env` in the study's base")
    horizon(require_trusted(env, cell.dataset, BY_ID_ALONE))  # says in a sentence what is wrong with a name
    agent = fit_to_task(agent_of(cell.agent, dict(cell.settings)), env, eps)
    names = {"agent": cell.agent, "idm": "", "preset": ""}
    policy: Any = cell.policy
    return Plan(names, agent, None, None, {}, (), (), (), None, env, cell.episodes, policy, cell.looks)


def _tasks(cells: Sequence[Cell], eps: Episodes) -> dict[Cell, SplitData]:
    """Each cell's trajectories; cells of one split share them."""
    drawn: dict[tuple, SplitData] = {}
    out = {}
    for cell in cells:
        key = (cell.setup, cell.recipe, cell.setup and cell.seed)
        if key not in drawn:
            drawn[key] = algorithm1.hide_actions(eps, draw(cell, eps))
        out[cell] = drawn[key]
    return out


def draw(cell: Cell, eps: Episodes) -> Split | None:
    """The split of a cell; None where nothing is hidden."""
    return getattr(splits, cell.setup)(eps, **dict(cell.recipe), seed=cell.seed) if cell.setup else None


def lengths_left(cell: Cell, eps: Episodes) -> np.ndarray:
    """Of the trajectories that its split leaves; none where it cannot be drawn, which its batch will tell of."""
    try:
        split = draw(cell, eps)
    except SsorlError:
        return eps.lengths[:0]
    return eps.lengths if split is None else eps.lengths[np.append(split.labelled, split.unlabelled)]


def _run(cell: Cell, task: SplitData, filled: LabelledData | None) -> TrainingRun:
    if cell.variant == "oracle" and task.whole is None:
        if _missing(task):
            raise DataError(
                f"{cell.dataset}: nobody knows its missing actions, so it has no oracle; leave that variant out"
            )
        return TrainingRun(task.data, cell.seed)
    if cell.variant != "ss":  # labels are of no concern to it
        filled = None
    return algorithm1.variant_runs(task, filled, cell.seed, cell.certain)[cell.variant or ""]


def _missing(task: SplitData) -> bool:
    return not task.data.labelled.all()


def play_all(
    plan: Plan, runs: dict[Cell, TrainingRun], trained: dict[Any, Trained], watch: Listener
) -> tuple[dict[Cell, dict], list[SsorlError]]:
    """What the cells earn, and why some cannot be played: their training has diverged, for one."""
    try:
        return play(plan, runs, trained, watch), []
    except SsorlError:
        returns, errors = {}, []
    for cell, run in runs.items():
        try:
            returns |= play(plan, {cell: run}, trained, watch)
        except SsorlError as err:
            errors.append(err)
    return returns, errors


def play(plan: Plan, runs: dict[Cell, TrainingRun], trained: dict[Any, Trained], watch: Listener) -> dict[Cell, dict]:
    """What the last and the averaged weights of each cell earn, all in one simulator."""
    players = {
        (cell, policy): scoring.trained_policy(replace(plan, policy=policy), run.eps, trained[cell])
        for cell, run in runs.items()
        for policy in POLICIES
    }
    tell = partial(watch.progress, "evaluating")
    scores = evaluate(list(players.values()), plan.env or "", plan.episodes, scoring.START_SEED, tell)
    by = dict(zip(players, scores.returns, strict=True))
    return {cell: {policy: by[cell, policy] for policy in POLICIES} for cell in runs}


def earned(
    plan: Plan, scale: ReturnScale, returns: dict[str, np.ndarray], curve: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Scores are normalised where there are references, else the returns themselves."""
    score = {policy: float(scale(some).mean()) for policy, some in returns.items()}
    own = returns[plan.policy]
    told = {name: scale(values) if name == "score" else values for name, values in curve.items()}
    return {
        "returns": own,
        "normalised": scale(own) if scale.known else None,
        "score": score[plan.policy],
        "scores": score,
        "all_returns": returns,
        "curve": {"at": plan.snapshot_updates, **told},
    }


# Models and data alone -------------------------------------------------------------------------------------


def _models(store: Path, together: list[Cell], mine: list[Cell], watch: Listener) -> None:
    """How far the proxies are from the truth."""
    data, clock = dataset(mine[0].dataset), Clock()
    with clock("labels"):
        tasks = _tasks(mine, data.eps)
        labels = proxies(_no_agent(), tasks, IdmCache(store), watch)
    for cell in mine:
        told = _labels(cell, tasks[cell], labels[cell], _scale(data.eps))
        write_cell(store, cell, told, data, clock, len(mine))


def _no_agent() -> Plan:
    """A plan that fits and labels; nothing is trained by it."""
    agent: Any = None
    return Plan({}, agent, None, None, {}, (), (), (), None, None, 0, "last", 1)


def _returns_of_data(store: Path, together: list[Cell], mine: list[Cell], watch: Listener) -> None:
    """What the trajectories earn, those with actions and those without."""
    data, clock = dataset(mine[0].dataset), Clock()
    scale = _scale(data.eps)
    for cell, task in _tasks(mine, data.eps).items():
        share, returns = task.data.labelled_share, scale(task.data.returns).round(4)
        kinds = {"labelled": returns[share > 0], "unlabelled": returns[share == 0], "normalised": scale.known}
        told = {"data": kinds, **_labels(cell, task, None, scale)}
        write_cell(store, cell, told, data, clock, len(mine))


KINDS = {"return": _returns, "idm": _models, "data": _returns_of_data}


def _scale(eps: Episodes) -> ReturnScale:
    return scale_of(replace(_no_agent(), env=eps.meta.env), eps)


def _labels(cell: Cell, task: SplitData, filled: LabelledData | None, scale: ReturnScale) -> dict[str, Any]:
    """What is known of the labelled trajectories and of the proxies of the others."""
    told = filled and filled.report
    labelled = task.data.returns[task.data.labelled_share > 0]
    return {
        "labelled_return": None if cell.setup is None else float(scale(labelled).mean()),
        "idm": told
        and {
            "hash": cell.idm_hash,
            "mse": told["truth"] and told["truth"]["mse"],
            "validation_mse": told["validation"] and told["validation"]["mse"],
            "by_round": [one.get("mse") for one in told.get("rounds", [])],
        },
    }


def write_cell(store: Path, cell: Cell, told: dict[str, Any], data: Data, clock: Clock, n: int) -> None:
    """One result, with all keys that any kind has."""
    seconds = clock.share(n)
    made = {**_made(), "started": clock.started, "seconds": round(sum(seconds.values()), 3), "data": data.about}
    write(store, cell, json_values({**BLANK, **told, "timings": seconds}), json_values(made))


@cache
def _made() -> dict[str, Any]:
    return about.everything()
