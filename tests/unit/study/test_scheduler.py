"""Running studies: contents of results, no cell computed twice, recovery after kills, failures of single cells."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support.clock import patience

from ssorl.data import save
from ssorl.idm import IDMS, IdmConfig
from ssorl.idm import fill as fill_module
from ssorl.pipeline import algorithm1, scoring
from ssorl.runs.run import run as run_alone
from ssorl.study import executor, learning_curves, scheduler
from ssorl.study import store as store_of
from ssorl.study.executor import run_batch
from ssorl.study.grid import Cell, Grid, Study, resolve
from ssorl.study.scales import SCALES
from ssorl.study.scheduler import batches, run, shape
from ssorl.study.schema import check as check_schema
from ssorl.study.store import error, finished, folder, lock_cells, result, state
from ssorl.training import memory
from ssorl.utils.errors import ChangedError, SsorlError

SETTINGS = {"hidden": (8,), "batch": 16, "updates": 20}
IDM = {"hidden": (8,), "steps": 40, "validate_every": 20, "batch": 32, "lr": 1e-3}
BASE = {"agent": "bc", "fraction": 0.2, "settings": SETTINGS, "idm_settings": IDM, "episodes": 2}
AXES = {"quality": (50, 100), "variant": ("baseline", "ss", "oracle")}

# Runs all cells of a file in a store, and prints the hash of each result that it writes, then the number of failures.
# With a file name and a count n, it kills itself before or after that file is written for the n-th time. With "until",
# it prints "held" instead, and continues when it reads a line. It prints "waits" when it waits for other processes.
WORKER = """
import json, os, signal, sys
from pathlib import Path
file, store, when, name, count, size = sys.argv[1:]
real, left = os.replace, int(count)
def replace(a, b):
    global left
    if Path(b).name == name:
        left -= 1
        if left == 0:
            if when == "after":
                real(a, b)
            if when == "until":
                print("held", flush=True)
                input()
            else:
                os.kill(os.getpid(), signal.SIGKILL)
    if Path(b).name == "result.json":
        print(Path(b).parent.name, flush=True)
    real(a, b)
os.replace = replace
from ssorl.study.grid import Cell
from ssorl.study import scheduler as schedule
wait = schedule.wait_for_others
def wait_for_others(*args):
    print("waits", flush=True)
    wait(*args, every=0.05)
schedule.wait_for_others = wait_for_others
cells = [Cell.from_json(stored) for stored in json.loads(Path(file).read_text())]
print(len(schedule.run(cells, store, size=int(size)).failed), flush=True)
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, pointmass) -> str:
    path = tmp_path_factory.mktemp("data") / "small.npz"
    save(pointmass[:40], path)
    return str(path)


@pytest.fixture(scope="module")
def cells(dataset) -> list[Cell]:
    return Study("s", "s", (Grid({"dataset": dataset, **BASE}, AXES),)).cells("smoke")


@pytest.fixture(scope="module")
def done(tmp_path_factory, cells) -> Path:
    """Return a store in which all cells were run in one call."""
    store = tmp_path_factory.mktemp("store")
    events = []
    outcome = run(cells, store, progress=lambda stage, n, note="": events.append((stage, n)))
    assert outcome == (5, {}) and len(cells) == 5
    assert sum(n for stage, n in events if stage == "cells") == 5
    assert sum(n for stage, n in events if stage == "training") == 5 * 20
    assert sum(n for stage, n in events if stage == "fitting") == 2 * 40
    return store


def comparable(store: Path, cell: Cell) -> dict:
    """Return a result without its timings."""
    stored = result(store, cell)
    assert stored is not None
    return {k: v for k, v in stored.items() if k != "timings"}


def find_cell(cells: list[Cell], variant: str, quality: float | None = None) -> Cell:
    return next(c for c in cells if c.variant == variant and quality in (None, dict(c.recipe).get("quality")))


# Contents of results --------------------------------------------------------------------------------------


def test_contents_of_results(done, cells):
    for cell in cells:
        values, about = result(done, cell), json.loads((folder(done, cell) / "cell.json").read_text())
        assert Cell.from_json(values["cell"]) == Cell.from_json(about["cell"]) == cell
        assert {"versions", "hardware", "commit", "started", "seconds", "data"} <= set(about)
        assert len(values["returns"]) == 2 and values["all_returns"]["last"] == values["returns"]
        raw = np.array(values["returns"])
        np.testing.assert_allclose(values["normalised"], 100 * (raw - 14.10) / (90.38 - 14.10))
        assert values["score"] == values["scores"]["last"] == pytest.approx(np.mean(values["normalised"]))
        assert values["scores"]["average"] != values["score"]
        curve = values["curve"]
        assert curve["at"] == [10, 20] and len(curve["score"]) == len(curve["actor_loss"]) == 2
        assert (values["labelled_return"] is None) == (cell.variant == "oracle")
        assert (values["idm"] is None) == (cell.variant != "ss")
    best, half = (result(done, find_cell(cells, "ss", q)) for q in (100, 50))
    assert half["labelled_return"] < best["labelled_return"]
    assert best["idm"]["mse"] > 0 and best["idm"]["validation_mse"] > 0 and best["idm"]["by_round"] == []


def test_results_equal_those_of_ssorl_run(done, cells, dataset, tmp_path, monkeypatch):
    """With the same settings, `ssorl run` computes the same split, labels, weights and rollouts, bit for bit."""
    monkeypatch.setitem(IDMS, "tiny", IdmConfig(**IDM))
    alone = run_alone(
        dataset,
        tmp_path / "run",
        agent="bc",
        idm="tiny",
        preset="paper",
        quality=50,
        fraction=0.2,
        episodes=2,
        policy="last",
        settings=SETTINGS,
    )
    for variant in ("baseline", "ss", "oracle"):
        here = result(done, find_cell(cells, variant, None if variant == "oracle" else 50))
        assert here["normalised"] == alone.scores[variant]["returns"][0]


def test_results_do_not_depend_on_the_batch(done, cells, tmp_path):
    for cell in (find_cell(cells, "ss", 50), find_cell(cells, "oracle")):
        run([cell], tmp_path)
        assert comparable(tmp_path, cell) == comparable(done, cell)


def test_results_of_kinds_idm_and_data(dataset, cells, tmp_path, done):
    scale = SCALES["smoke"]
    base = {"dataset": dataset, "fraction": 0.2, "idm_settings": IDM}
    plain = resolve({**base, "kind": "idm"}, scale)
    trained = resolve({**base, "kind": "idm", "rounds": 2, "members": 2}, scale)
    split = resolve({"dataset": dataset, "fraction": 0.2, "kind": "data"}, scale)
    whole = resolve({"dataset": dataset, "setup": None, "kind": "data"}, scale)
    assert run([plain, trained, split, whole], tmp_path).failed == {}
    for cell in (plain, trained, split, whole):
        check_schema(result(tmp_path, cell))
    check_schema(result(done, find_cell(cells, "ss", 50)))
    # The error is that of the IDM that the agents of the split use.
    assert result(tmp_path, plain)["idm"] == result(done, find_cell(cells, "ss", 50))["idm"]
    # So the study of the agents has written the result of the labels too.
    there, here = (comparable(store, plain) for store in (done, tmp_path))
    assert find_cell(cells, "ss", 50).labels == plain and there == here
    assert find_cell(cells, "baseline", 50).labels is None
    assert len(result(tmp_path, trained)["idm"]["by_round"]) == 3
    assert result(tmp_path, trained)["score"] is None
    both, every = result(tmp_path, split)["data"], result(tmp_path, whole)["data"]
    assert len(both["labelled"]) == 8 and len(both["unlabelled"]) == 32 and both["normalised"]
    assert sorted(both["labelled"] + both["unlabelled"]) == sorted(every["labelled"])
    assert np.mean(both["labelled"]) == pytest.approx(result(tmp_path, split)["labelled_return"], abs=1e-3)


def test_self_trained_models_are_fitted_together_on_a_gpu(dataset, tmp_path, monkeypatch):
    base = {"dataset": dataset, "fraction": 0.2, "idm_settings": IDM, "kind": "idm", "rounds": 2, "members": 2}
    cells = [resolve({**base, "quality": q, "seed": s}, SCALES["smoke"]) for q, s in ((50, 0), (100, 0), (100, 1))]
    groups, real = [], fill_module.self_train_many
    monkeypatch.setattr(fill_module, "self_train_many", lambda keys, *a: groups.append(len(keys)) or real(keys, *a))
    assert run(cells[:1], tmp_path / "one").failed == {} and run(cells, tmp_path / "alone", size=3).failed == {}
    assert groups == [1, 1, 1, 1]
    shutil.copytree(tmp_path / "one", tmp_path / "many")
    with monkeypatch.context() as patch:  # let `label` see a GPU
        patch.setattr(algorithm1, "jax", SimpleNamespace(default_backend=lambda: "gpu"))
        assert run(cells, tmp_path / "many", size=3).failed == {}
    assert groups[4:] == [2]  # the store had the first model
    for cell in cells:
        assert comparable(tmp_path / "many", cell) == comparable(tmp_path / "alone", cell)


def test_cells_with_different_trajectories_in_one_batch(dataset, tmp_path):
    base = {**BASE, "dataset": dataset, "setup": "decoupled"}
    base = {k: v for k, v in base.items() if k != "fraction"} | {"labelled_fraction": 0.1, "unlabelled_fraction": 0.2}
    axis = {"low": {"labelled": "low"}, "high": {"labelled": "high", "variant": "baseline"}}
    cells = Study("s", "s", (Grid(base, {"labelled": axis}),)).cells("smoke")
    assert len(batches(cells, tmp_path)) == 1
    assert run(cells, tmp_path) == (2, {})
    low, high = (result(tmp_path, cell)["labelled_return"] for cell in cells)
    assert low < high


# No cell twice ---------------------------------------------------------------------------------------------


def never(*args) -> None:
    raise AssertionError("all cells were finished")


def test_data_with_missing_actions(dataset, tmp_path, pointmass):
    """SS trains on proxy actions too, the baseline only on recorded actions, and there is no oracle."""
    act = pointmass[:40].act.copy()
    act[200:] = np.nan
    path = tmp_path / "gaps.npz"
    save(pointmass[:40].with_actions(act), path)
    base = {**{k: v for k, v in BASE.items() if k != "fraction"}, "dataset": str(path), "setup": None}
    by_variant = {v: resolve({**base, "variant": v}, SCALES["smoke"]) for v in ("baseline", "ss", "oracle")}
    outcome = run(list(by_variant.values()), tmp_path / "store")
    assert outcome.done == 2 and list(outcome.failed) == [by_variant["oracle"]]
    assert "an oracle needs all actions, and some are missing" in outcome.failed[by_variant["oracle"]]
    ours, alone = (comparable(tmp_path / "store", by_variant[v]) for v in ("ss", "baseline"))
    assert ours["score"] != alone["score"] and ours["idm"]["validation_mse"] > 0 and ours["idm"]["mse"] is None
    assert alone["idm"] is None
    # In complete data there is nothing to label.
    whole = resolve({**base, "dataset": dataset, "variant": "ss"}, SCALES["smoke"])
    assert run([whole], tmp_path / "other").failed == {} and comparable(tmp_path / "other", whole)["idm"] is None


def test_finished_cells_are_not_run_again(done, cells):
    before = {cell: (folder(done, cell) / "result.json").stat().st_mtime_ns for cell in cells}
    assert run(cells, done, executor=never) == (5, {})
    run_batch(cells, done)
    assert before == {cell: (folder(done, cell) / "result.json").stat().st_mtime_ns for cell in cells}
    assert not any((done / "work").iterdir())  # checkpoints are removed when the results are written


def test_another_agent_uses_the_stored_models(done, cells, dataset, tmp_path):
    shutil.copytree(done, tmp_path / "s")
    before = {path: path.read_bytes() for path in (tmp_path / "s" / "idms").rglob("report.json")}
    other = {"dataset": dataset, **BASE, "settings": {**SETTINGS, "hidden": (4,)}}
    more = Study("t", "t", (Grid(other, {"quality": (50, 100)}),)).cells("smoke")
    stages: set[str] = set()
    assert run(more, tmp_path / "s", progress=lambda stage, n, note="": stages.add(stage)).failed == {}
    assert "fitting" not in stages and len(before) == 2
    assert {path: path.read_bytes() for path in (tmp_path / "s" / "idms").rglob("report.json")} == before


def test_batches_have_one_shape_and_at_most_the_given_size(cells, dataset, tmp_path):
    other = [resolve({"dataset": dataset, **BASE, "agent": "td3bc", "seed": seed}, SCALES["smoke"]) for seed in (0, 1)]
    planned = batches([*cells, *other], tmp_path, size=3)
    assert sorted(map(len, planned)) == [2, 2, 3]
    assert all(len({shape(cell) for cell in batch}) == 1 for batch in planned)
    assert sorted(c.hash for batch in planned for c in batch) == sorted(c.hash for c in [*cells, *other])
    assert len(batches(cells, tmp_path, size=lambda group: len(group))) == 1


def test_batches_fit_the_device_and_are_no_larger_than_useful(cells, dataset, monkeypatch):
    assert scheduler.room(cells) == scheduler.MAX_CELLS_ON_CPU
    eps = executor.dataset(dataset).eps
    agent = replace(executor.plan_of(cells[0], eps).agent, half=True)  # as on a GPU
    need = memory.sizes(agent, eps.n_steps, len(eps), eps.n_obs, eps.n_act)
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    for free, room in ((need.table + 3.5 * need.run, 3), (need.table, 1), (1e12, 5)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free / memory.USABLE)
        assert scheduler.room(cells) == room
    monkeypatch.setattr(scheduler, "BUSY_BYTES", 2 * need.work)
    assert scheduler.room(cells) == 2


def test_batch_size_counts_on_half_precision_on_a_gpu(dataset, monkeypatch):
    wide = {**BASE, "dataset": dataset, "agent": "td3bc", "settings": {"hidden": (256, 256), "batch": 512}}
    cells = [resolve({**wide, "seed": seed}, SCALES["smoke"]) for seed in range(9)]
    eps = executor.dataset(dataset).eps
    agent = executor.plan_of(cells[0], eps).agent
    need = {
        half: memory.sizes(replace(agent, half=half), eps.n_steps, len(eps), eps.n_obs, eps.n_act).work
        for half in (True, False)
    }
    assert need[True] < need[False]
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1e12)
    monkeypatch.setattr(scheduler, "BUSY_BYTES", 5 * need[True])
    assert scheduler.room(cells) == 5 > 5 * need[True] // need[False]


def test_batch_size_counts_tables_of_decoupled_splits(dataset, monkeypatch):
    """Each cell has a table of its own trajectories, whose length may be rounded up."""
    base = {**BASE, "dataset": dataset, "setup": "decoupled", "unlabelled_fraction": 0.5}
    base = {k: v for k, v in base.items() if k != "fraction"}
    cells = [resolve({**base, "seed": seed}, SCALES["smoke"]) for seed in range(6)]
    eps = executor.dataset(dataset).eps
    agent = replace(executor.plan_of(cells[0], eps).agent, half=True)
    left = [executor._tasks([cell], eps)[cell].data for cell in cells]
    n_steps, n_rows = max(eps.n_steps for eps in left), max(eps.n_steps + len(eps) for eps in left)
    assert n_steps < eps.n_steps
    table, need = memory.table_bytes(n_steps, n_rows, eps.n_obs), memory.sizes(agent, n_steps, 0, eps.n_obs, eps.n_act)
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    for free, room in ((8 * (need.run + 2 * table), 6), (2.1 * (2 * need.run + 2 * table), 2), (need.run, 1)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free / memory.USABLE)
        assert scheduler.room(cells) == room
    # Add cells that use all trajectories.
    whole = [resolve({**BASE, "dataset": dataset, "seed": seed}, SCALES["smoke"]) for seed in range(2)]
    assert shape(whole[0]) == shape(cells[0])
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1e12)
    assert scheduler.room([*cells, *whole]) == 8
    # A cell whose split cannot be drawn fails only when its batch runs.
    invalid = resolve({**base, "labelled_fraction": 1e-9, "seed": 0}, SCALES["smoke"])
    assert scheduler.room([invalid]) == 1


def test_cells_that_another_process_locks_are_waited_for(cells, tmp_path, monkeypatch, done):
    """While the cells are locked nothing runs; afterwards the other process's results count."""
    waits, wait = threading.Event(), scheduler.wait_for_others

    def wait_and_note(*args):
        waits.set()
        wait(*args, every=0.05)

    monkeypatch.setattr(scheduler, "wait_for_others", wait_and_note)
    with lock_cells(tmp_path, cells) as mine, lock_cells(tmp_path, cells) as theirs:
        assert mine == cells and theirs == []
        run_batch(cells, tmp_path)  # returns at once: it has no cells
        assert state(tmp_path, cells) == (0, 0, 5)
        other = threading.Thread(target=run, args=(cells, tmp_path))
        other.start()
        assert waits.wait(patience()) and state(tmp_path, cells) == (0, 0, 5)
        for cell in cells:
            shutil.copy(folder(done, cell) / "result.json", folder(tmp_path, cell))
    other.join(patience())
    assert not other.is_alive() and state(tmp_path, cells) == (5, 0, 0)


# Recovery --------------------------------------------------------------------------------------------------


def worker(cells: list[Cell], store: Path, when: str = "", name: str = "", count: int = 0, size: int = 16):
    store.mkdir(exist_ok=True)
    file = store.parent / "cells.json"
    file.write_text(json.dumps([cell.as_json() for cell in cells]))
    args = [sys.executable, "-c", WORKER, file, store, when, name, count, size]
    return subprocess.Popen(list(map(str, args)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("when", "name", "count", "n_done"),
    [("before", "report.json", 2, 0), ("after", "run-2.npz", 1, 0), ("before", "result.json", 5, 2)],
    ids=["while models are fitted", "while agents train", "while results are written"],
)
def test_recovery_after_a_kill(cells, done, tmp_path, when, name, count, n_done):
    store = tmp_path / "s"
    with worker(cells, store, when, name, count) as killed:
        killed.communicate(timeout=patience())
    assert killed.returncode == -signal.SIGKILL
    assert state(store, cells) == (n_done, 0, 5 - n_done)
    before = {path: path.stat().st_mtime_ns for path in (store / "cells").glob("*/result.json")}
    events = []
    outcome = run(cells, store, progress=lambda stage, n, note="": events.append((n, note)))
    assert outcome == (5, {})
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    for cell in cells:
        assert comparable(store, cell) == comparable(done, cell)
    if name == "run-2.npz":  # two trainings were finished, and the third had its first snapshot
        assert sum(n for n, note in events if note == "from a checkpoint") == 20 + 20 + 10
    if name == "result.json":  # no training was repeated
        assert sum(n for n, note in events if note == "from a checkpoint") == 5 * 20
    assert not list(store.rglob(".tmp-*"))


def test_two_schedulers_run_no_cell_twice(cells, done, tmp_path):
    """The first scheduler stops inside a batch until the second has computed the other cells and waits."""
    first = worker(cells, tmp_path / "s", "until", "result.json", 1, size=2)
    assert first.stdout.readline() == "held\n"
    second = worker(cells, tmp_path / "s", size=2)
    theirs = []
    while (line := second.stdout.readline().strip()) and line != "waits":
        theirs.append(line)
    wrote = [first.communicate("\n", timeout=patience())[0].split()]
    wrote += [theirs + [x for x in second.communicate(timeout=patience())[0].split() if x != "waits"]]
    assert [w.pop() for w in wrote] == ["0", "0"] and all(wrote)
    labels = [cell.labels for cell in cells if cell.labels]
    assert sorted(wrote[0] + wrote[1]) == sorted(cell.hash for cell in [*cells, *labels])
    assert all(comparable(tmp_path / "s", cell) == comparable(done, cell) for cell in cells)


def test_recovery_after_a_full_disk(cells, done, tmp_path, monkeypatch):
    """Files of more than 3 kB cannot be written, so models and checkpoints fail; later the disk has space again."""
    real = os.fsync

    def fsync(number: int) -> None:
        if os.fstat(number).st_size > 3000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        outcome = run(cells, tmp_path)
    assert outcome.done == 0 and set(outcome.failed) == set(cells)
    assert all("No space left on device" in why for why in outcome.failed.values())
    assert not list(tmp_path.rglob(".tmp-*")) and not list(tmp_path.rglob("result.json"))
    assert run(cells, tmp_path) == (5, {})
    assert all(comparable(tmp_path, cell) == comparable(done, cell) for cell in cells)


def test_a_full_disk_stops_the_study_at_once(cells, tmp_path, monkeypatch):
    calls = []

    def fails(batch, store, progress):
        calls.append(batch)
        raise SsorlError("x: cannot be written (No space left on device)")

    real = shutil.disk_usage("/")
    monkeypatch.setattr(scheduler.shutil, "disk_usage", lambda path: real._replace(free=0))
    with pytest.raises(SsorlError, match=r"the disk is full .* continues from here"):
        run(cells, tmp_path, executor=fails, size=1)
    assert len(calls) == 1


# Failures --------------------------------------------------------------------------------------------------


class Flaky:
    """An executor that writes dummy results. Batches with a bad cell always fail; with `once`, the first call fails."""

    def __init__(self, bad: set[Cell], once: bool = False) -> None:
        self.bad, self.once, self.calls = bad, once, []

    def __call__(self, batch, store, progress) -> None:
        self.calls.append(list(batch))
        if self.once and len(self.calls) == 1:
            raise RuntimeError("a hiccup")
        if self.bad & set(batch):
            raise ValueError("no good")
        for cell in batch:
            store_of.write(Path(store), cell, {"score": 1.0}, {})


def test_a_failed_batch_is_tried_again(cells, tmp_path):
    flaky, messages = Flaky(set(), once=True), []
    assert run(cells, tmp_path, flaky, notify=messages.append) == (5, {})
    assert list(map(len, flaky.calls)) == [5, 5]
    assert messages == ["a batch of 5 cells failed (a hiccup); trying it again"]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_failing_cell_does_not_stop_the_others(cells, tmp_path, workers):
    bad = cells[2]
    outcome = run(cells, tmp_path, flaky := Flaky({bad}), workers=workers)
    assert outcome == (4, {bad: "no good"})
    assert list(map(len, flaky.calls)) == [5, 5, 1, 1, 1, 1, 1]
    assert "ValueError: no good" in (error(tmp_path, bad) or "") and state(tmp_path, cells) == (4, 1, 1)
    # Once the fault is removed, the same call computes the cell and removes the error.
    assert run(cells, tmp_path, Flaky(set())) == (5, {})
    assert error(tmp_path, bad) is None and state(tmp_path, cells) == (5, 0, 0)


def test_several_batches_at_a_time(cells, tmp_path):
    outcome = run(cells, tmp_path, Flaky({cells[0]}), workers=2, size=1)
    assert outcome.done == 4 and list(outcome.failed) == [cells[0]]


def test_an_impossible_split_fails_only_its_cell(dataset, cells, tmp_path):
    """In a batch with a valid cell, a share of labels that is less than one trajectory."""
    wrong = resolve({"dataset": dataset, **BASE, "fraction": 0.001}, SCALES["smoke"])
    fine = find_cell(cells, "baseline", 50)
    outcome = run([wrong, fine], tmp_path)
    assert outcome.done == 1 and "rounds to none" in outcome.failed[wrong]
    assert finished(tmp_path, fine) and "Traceback" in (error(tmp_path, wrong) or "")


def test_a_diverged_policy_fails_only_its_cell(cells, done, tmp_path, monkeypatch):
    bad, real, seen = cells[1], executor.evaluate_together, []

    def evaluate_together(plan, runs, trained, listener):
        if bad in runs:
            raise SsorlError("its training has diverged")
        return real(plan, runs, trained, listener)

    def fail_on_curves(*args):
        seen.append(args)
        raise SsorlError("an action that is not finite")

    monkeypatch.setattr(executor, "evaluate_together", evaluate_together)
    monkeypatch.setattr(scoring, "evaluate", fail_on_curves)
    fresh = []

    def progress(stage: str, n: int, note: str = "") -> None:
        if stage == "training" and note != "from a checkpoint":
            fresh.append(n)

    assert run(cells, tmp_path, progress=progress) == (4, {bad: "its training has diverged"})
    assert sum(fresh) == 5 * 20 + 20  # each cell once, and the bad cell again alone
    for cell in set(cells) - {bad}:
        here, there = (comparable(store, cell) for store in (tmp_path, done))
        assert here["returns"] == there["returns"] and "score" not in here["curve"]
    assert seen


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_EPISODES"])
def test_curves_do_not_depend_on_when_policies_are_evaluated(cells, done, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(learning_curves, limit, 0)
    calls, real = [], scoring.quick_scores
    monkeypatch.setattr(scoring, "quick_scores", lambda *args: calls.append(len(args[1])) or real(*args))
    assert run(cells, tmp_path) == (5, {})
    assert calls == [1] * 10  # five runs with two points each, one at a time; without the limit all ten at once
    assert all(comparable(tmp_path, cell) == comparable(done, cell) for cell in cells)


def test_curves_of_runs_in_one_program(cells, done, tmp_path, monkeypatch):
    """As on a GPU, where all runs are one group. Other rounding changes returns slightly."""
    calls, real = [], scoring.quick_scores
    monkeypatch.setattr(algorithm1, "train_many", partial(algorithm1.train_many, together=True))
    monkeypatch.setattr(scoring, "quick_scores", lambda *args: calls.append(len(args[1])) or real(*args))
    assert run(cells, tmp_path) == (5, {})
    assert calls == [10]
    for cell in cells:
        here, there = (np.array(comparable(store, cell)["curve"]["score"]) for store in (tmp_path, done))
        np.testing.assert_allclose(here, there, rtol=1e-3, atol=1e-3)
        assert here[0] != here[1]


def test_a_diverged_snapshot_costs_one_point_of_one_curve(cells, done, tmp_path, monkeypatch):
    """The policy of one run has diverged at its last snapshot, but its final weights are finite."""
    real, calls = scoring.evaluate, []

    def evaluate(players, *args):
        calls.append(len(players))
        if any(np.isnan(x).any() for player in players for x in jax.tree.leaves(player.params)):
            raise SsorlError("an action that is not finite")
        return real(players, *args)

    def snapshot_params(plan, snapshot):
        params = jax.device_get(jax.vmap(plan.agent.policy)(snapshot.state))
        return (
            jax.tree.map(lambda x: x * np.nan, params) if (snapshot.at, snapshot.runs) == (20, range(1, 2)) else params
        )

    monkeypatch.setattr(scoring, "evaluate", evaluate)
    monkeypatch.setattr(scoring, "snapshot_params", snapshot_params)
    assert run(cells, tmp_path) == (5, {})
    assert calls == [10] + [1] * 10
    curves = {cell: comparable(tmp_path, cell)["curve"]["score"] for cell in cells}
    wrong = [cell for cell in cells if curves[cell] != comparable(done, cell)["curve"]["score"]]
    assert len(wrong) == 1 and curves[wrong[0]][0] == comparable(done, wrong[0])["curve"]["score"][0]
    assert curves[wrong[0]][1] is None


def test_a_damaged_snapshot_costs_one_point_of_one_curve(cells, done, tmp_path, monkeypatch):
    real, bad = learning_curves.LearningCurves.evaluate, "20-1-2.npz"

    def evaluate(self, *args):
        raw = bytearray((self.folder / bad).read_bytes())
        raw[len(raw) // 2] ^= 1
        (self.folder / bad).write_bytes(raw)
        return real(self, *args)

    monkeypatch.setattr(learning_curves.LearningCurves, "evaluate", evaluate)
    assert run(cells, tmp_path) == (5, {})
    curves = [(comparable(tmp_path, cell), comparable(done, cell)) for cell in cells]
    assert sum(here == there for here, there in curves) == 4
    here, there = next(pair for pair in curves if pair[0] != pair[1])
    assert here["curve"]["score"] == [there["curve"]["score"][0], None] and here["returns"] == there["returns"]


def test_damaged_results_and_models_are_computed_again(done, cells, tmp_path):
    store = tmp_path / "s"
    shutil.copytree(done, store)
    (folder(store, cells[0]) / "result.json").write_text('{"schema": 1, "cell"')
    assert state(store, cells) == (4, 0, 1)
    model = next((store / "idms").iterdir())
    (model / "model" / "idm.json").write_text("{")
    assert run(cells, store) == (5, {})
    assert comparable(store, cells[0]) == comparable(done, cells[0])


def test_a_changed_dataset_raises(dataset, tmp_path, pointmass):
    """A store never mixes results of two versions of a dataset, whether or not cells are left to compute."""
    path, store = tmp_path / "mine.npz", tmp_path / "store"
    shutil.copy(dataset, path)
    both = Study("s", "s", (Grid({"dataset": str(path), **BASE}, {"variant": ("baseline", "oracle")}),)).cells("smoke")
    assert run(both[:1], store).done == 1
    path.touch()
    assert run(both[:1], store).done == 1  # a new modification time is no change
    save(pointmass[:41], path, force=True)
    for cells in (both, both[:1]):
        with pytest.raises(ChangedError, match=r"mine.npz: has changed since .* 40 trajectories, .* now 41 .* --store"):
            run(cells, store)
    assert state(store, both) == (1, 0, 1)  # no cell has failed
    assert run(both, tmp_path / "other").done == 2
    shutil.copy(dataset, path)
    assert run(both, store).done == 2


def test_a_model_of_other_data_is_not_used(dataset, tmp_path, pointmass):
    """A batch that is killed after its model leaves no result that records the data."""
    path = tmp_path / "mine.npz"
    shutil.copy(dataset, path)
    cells = Study("s", "s", (Grid({"dataset": str(path), **BASE}),)).cells("smoke")
    assert run(cells, tmp_path / "store").done == 1
    shutil.rmtree(tmp_path / "store" / "cells")
    save(pointmass[5:45], path, force=True)
    assert run(cells, tmp_path / "store").done == run(cells, tmp_path / "fresh").done == 1
    assert comparable(tmp_path / "store", cells[0]) == comparable(tmp_path / "fresh", cells[0])


def test_changed_metadata_of_a_dataset_raises(dataset, tmp_path, pointmass):
    path = tmp_path / "mine.npz"
    save(pointmass[:40], path)
    cells = Study("s", "s", (Grid({"dataset": str(path), **BASE}, {"variant": ("baseline",)}),)).cells("smoke")
    assert run(cells, tmp_path / "store").done == 1
    save(pointmass[:40].with_meta(expert_return=1e6), path, force=True)
    with pytest.raises(ChangedError, match=r"has changed since .* \(then expert_return 90.38, now 1000000"):
        run(cells, tmp_path / "store")


def test_a_diverged_run_leaves_the_curves_of_others(cells, tmp_path, monkeypatch):
    """As on a GPU, where one file holds the policies of all runs."""
    real, train_many = scoring.snapshot_policies, algorithm1.train_many

    def snapshot_policies(*args):
        first, *rest = real(*args)
        return [first._replace(params=jax.tree.map(lambda x: np.full_like(x, np.nan), first.params)), *rest]

    monkeypatch.setattr(
        algorithm1, "train_many", lambda *args, **more: train_many(*args, **(more | {"together": True}))
    )
    monkeypatch.setattr(scoring, "snapshot_policies", snapshot_policies)
    assert run(cells, tmp_path) == (5, {})
    curves = [comparable(tmp_path, cell)["curve"] for cell in cells]
    assert sum("score" in curve and None not in curve["score"] for curve in curves) == 4


def test_batch_size_of_a_missing_dataset(tmp_path, monkeypatch):
    """The size has a default; the batch raises the error."""
    gone = resolve({"dataset": str(tmp_path / "gone.npz"), **BASE}, SCALES["smoke"])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert scheduler.room([gone]) == scheduler.MAX_CELLS_ON_CPU


def test_errors_of_a_full_disk_are_recognised():
    try:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as err:
            raise SsorlError("x.npz: cannot be written") from err
    except SsorlError as err:
        assert scheduler._disk_was_full(err)
    assert scheduler._disk_was_full(RuntimeError("a worker: [Errno 28] No space left on device"))
    assert not scheduler._disk_was_full(SsorlError("gone.npz: no such file")) and not scheduler._disk_was_full(None)


def test_data_without_an_environment_fails(dataset, tmp_path, pointmass):
    save(pointmass[:40].with_meta(env=None), tmp_path / "lost.npz")
    lost = resolve({"dataset": str(tmp_path / "lost.npz"), **BASE}, SCALES["smoke"])
    assert "names no environment" in run([lost], tmp_path / "s").failed[lost]


def test_unknown_environments_raise_before_training(dataset, tmp_path):
    cells = [resolve({"dataset": dataset, **BASE, "env": env}, SCALES["smoke"]) for env in ("pointmass", "nowhere")]
    with pytest.raises(SsorlError, match="no environment 'nowhere'"):
        run(cells, tmp_path / "s")
    assert not list((tmp_path / "s").glob("cells/*/result.json"))


def test_results_of_labels_do_not_depend_on_the_environment(tmp_path, pointmass):
    """A study of agents writes the result of the labels on the scale of the data, as a study of labels does."""
    save(pointmass[:40].with_meta(env=None), tmp_path / "lost.npz")
    base = {"dataset": str(tmp_path / "lost.npz"), **BASE}
    ss, alone = (resolve({**base, **more}, SCALES["smoke"]) for more in ({"env": "pointmass"}, {"kind": "idm"}))
    assert run([ss], tmp_path / "both").failed == run([alone], tmp_path / "alone").failed == {}
    assert comparable(tmp_path / "both", alone) == comparable(tmp_path / "alone", alone)


def test_results_of_labels_that_another_process_locks_are_skipped(cells, tmp_path):
    ss = find_cell(cells, "ss", 50)
    assert ss.labels
    with lock_cells(tmp_path, [ss.labels]) as mine:
        assert run([ss], tmp_path).failed == {} and mine == [ss.labels] and not finished(tmp_path, ss.labels)
