"""Studies as they are run: what a result holds, nothing done twice, killed and gone on with, failures kept apart."""

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
from ssorl.pipeline import algorithm1, scoring
from ssorl.runs.run import run as run_alone
from ssorl.study import executor as execute
from ssorl.study import learning_curves, scheduler
from ssorl.study import store as store_of
from ssorl.study.executor import run_batch
from ssorl.study.grid import Cell, Grid, Study, resolve
from ssorl.study.scales import SCALES
from ssorl.study.scheduler import batches, run, shape
from ssorl.study.store import error, finished, folder, lock_cells, result, state
from ssorl.training import memory
from ssorl.utils.errors import ChangedError, SsorlError

SETTINGS = {"hidden": (8,), "batch": 16, "updates": 20}
IDM = {"hidden": (8,), "steps": 40, "validate_every": 20, "batch": 32, "lr": 1e-3}
BASE = {"agent": "bc", "fraction": 0.2, "settings": SETTINGS, "idm_settings": IDM, "episodes": 2}
AXES = {"quality": (50, 100), "variant": ("baseline", "ss", "oracle")}

# Runs all cells of a file in a store. Told a name and a number, it dies as by `kill -9` when that file is written for
# the so-manieth time, before or after; else it notes on standard output which results it wrote. Told to wait "until",
# it says "held" instead of dying and goes on when a line comes in. It says "waits" when others have the rest in hand.
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
cells = [Cell.from_json(told) for told in json.loads(Path(file).read_text())]
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
    """A store where all of them were run at once."""
    store = tmp_path_factory.mktemp("store")
    heard = []
    outcome = run(cells, store, tell=lambda what, n, note="": heard.append((what, n)))
    assert outcome == (5, {}) and len(cells) == 5
    assert sum(n for what, n in heard if what == "cells") == 5
    assert sum(n for what, n in heard if what == "training") == 5 * 20
    assert sum(n for what, n in heard if what == "fitting") == 2 * 40
    return store


def told(store: Path, cell: Cell) -> dict:
    """All of a result that is no matter of time."""
    found = result(store, cell)
    assert found is not None
    return {k: v for k, v in found.items() if k != "timings"}


def one(cells: list[Cell], variant: str, quality: float | None = None) -> Cell:
    return next(c for c in cells if c.variant == variant and quality in (None, dict(c.recipe).get("quality")))


# What a result holds ---------------------------------------------------------------------------------------


def test_a_result_holds_what_its_readers_want(done, cells):
    for cell in cells:
        found, about = result(done, cell), json.loads((folder(done, cell) / "cell.json").read_text())
        assert Cell.from_json(found["cell"]) == Cell.from_json(about["cell"]) == cell
        assert {"versions", "hardware", "commit", "started", "seconds", "data"} <= set(about)
        assert len(found["returns"]) == 2 and found["all_returns"]["last"] == found["returns"]
        raw = np.array(found["returns"])
        np.testing.assert_allclose(found["normalised"], 100 * (raw - 14.10) / (90.38 - 14.10))
        assert found["score"] == found["scores"]["last"] == pytest.approx(np.mean(found["normalised"]))
        assert found["scores"]["average"] != found["score"]
        curve = found["curve"]
        assert curve["at"] == [10, 20] and len(curve["score"]) == len(curve["actor_loss"]) == 2
        assert (found["labelled_return"] is None) == (cell.variant == "oracle")
        assert (found["idm"] is None) == (cell.variant != "ss")
    best, half = (result(done, one(cells, "ss", q)) for q in (100, 50))
    assert half["labelled_return"] < best["labelled_return"]
    assert best["idm"]["mse"] > 0 and best["idm"]["validation_mse"] > 0 and best["idm"]["by_round"] == []


def test_it_is_what_a_run_alone_finds(done, cells, dataset, tmp_path, monkeypatch):
    """The same settings by `ssorl run`: the same split, labels, weights and episodes, to the bit."""
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
        here = result(done, one(cells, variant, None if variant == "oracle" else 50))
        assert here["normalised"] == alone.scores[variant]["returns"][0]


def test_a_cell_does_not_depend_on_its_company(done, cells, tmp_path):
    for cell in (one(cells, "ss", 50), one(cells, "oracle")):
        run([cell], tmp_path)
        assert told(tmp_path, cell) == told(done, cell)


def test_models_and_data_have_results_too(dataset, cells, tmp_path, done):
    scale = SCALES["smoke"]
    base = {"dataset": dataset, "fraction": 0.2, "idm_settings": IDM}
    plain = resolve({**base, "kind": "idm"}, scale)
    trained = resolve({**base, "kind": "idm", "rounds": 2, "members": 2}, scale)
    split = resolve({"dataset": dataset, "fraction": 0.2, "kind": "data"}, scale)
    whole = resolve({"dataset": dataset, "setup": None, "kind": "data"}, scale)
    assert run([plain, trained, split, whole], tmp_path).failed == {}
    # The model that the agents of the split had is the one that is measured here.
    assert result(tmp_path, plain)["idm"] == result(done, one(cells, "ss", 50))["idm"]
    # So that question has its answer where they were trained.
    there, here = (told(store, plain) for store in (done, tmp_path))
    assert one(cells, "ss", 50).labels == plain and there == here
    assert one(cells, "baseline", 50).labels is None
    assert len(result(tmp_path, trained)["idm"]["by_round"]) == 3
    assert result(tmp_path, trained)["score"] is None
    both, every = result(tmp_path, split)["data"], result(tmp_path, whole)["data"]
    assert len(both["labelled"]) == 8 and len(both["unlabelled"]) == 32 and both["normalised"]
    assert sorted(both["labelled"] + both["unlabelled"]) == sorted(every["labelled"])
    assert np.mean(both["labelled"]) == pytest.approx(result(tmp_path, split)["labelled_return"], abs=1e-3)


def test_models_that_train_themselves_do_so_together_on_a_gpu(dataset, tmp_path, monkeypatch):
    base = {"dataset": dataset, "fraction": 0.2, "idm_settings": IDM, "kind": "idm", "rounds": 2, "members": 2}
    some = [resolve({**base, "quality": q, "seed": s}, SCALES["smoke"]) for q, s in ((50, 0), (100, 0), (100, 1))]
    groups, real = [], algorithm1.self_train_many
    monkeypatch.setattr(algorithm1, "self_train_many", lambda asked, *a: groups.append(len(asked)) or real(asked, *a))
    assert run(some[:1], tmp_path / "one").failed == {} and run(some, tmp_path / "alone", size=3).failed == {}
    assert groups == [1, 1, 1, 1]
    shutil.copytree(tmp_path / "one", tmp_path / "many")
    with monkeypatch.context() as patch:  # asked what it runs on, `label` hears of a GPU
        patch.setattr(algorithm1, "jax", SimpleNamespace(default_backend=lambda: "gpu"))
        assert run(some, tmp_path / "many", size=3).failed == {}
    assert groups[4:] == [2]  # one was there
    for cell in some:
        assert told(tmp_path / "many", cell) == told(tmp_path / "alone", cell)


def test_thirds(dataset, tmp_path):
    """Cells of different trajectories in one batch."""
    base = {**BASE, "dataset": dataset, "setup": "decoupled"}
    base = {k: v for k, v in base.items() if k != "fraction"} | {"labelled_fraction": 0.1, "unlabelled_fraction": 0.2}
    axis = {"low": {"labelled": "low"}, "high": {"labelled": "high", "variant": "baseline"}}
    some = Study("s", "s", (Grid(base, {"labelled": axis}),)).cells("smoke")
    assert len(batches(some, tmp_path)) == 1
    assert run(some, tmp_path) == (2, {})
    low, high = (result(tmp_path, cell)["labelled_return"] for cell in some)
    assert low < high


# Nothing twice ---------------------------------------------------------------------------------------------


def never(*args) -> None:
    raise AssertionError("nothing was left to do")


def test_data_whose_actions_are_missing_already(dataset, tmp_path, pointmass):
    """As it is: SS learns from proxies, the baseline from what is known, and nobody has an oracle."""
    act = pointmass[:40].act.copy()
    act[200:] = np.nan
    path = tmp_path / "gaps.npz"
    save(pointmass[:40].with_actions(act), path)
    base = {**{k: v for k, v in BASE.items() if k != "fraction"}, "dataset": str(path), "setup": None}
    some = {v: resolve({**base, "variant": v}, SCALES["smoke"]) for v in ("baseline", "ss", "oracle")}
    outcome = run(list(some.values()), tmp_path / "store")
    assert outcome.done == 2 and list(outcome.failed) == [some["oracle"]]
    assert "nobody knows its missing actions, so it has no oracle" in outcome.failed[some["oracle"]]
    ours, alone = (told(tmp_path / "store", some[v]) for v in ("ss", "baseline"))
    assert ours["score"] != alone["score"] and ours["idm"]["validation_mse"] > 0 and ours["idm"]["mse"] is None
    assert alone["idm"] is None
    # Of whole data nothing is to be filled in.
    whole = resolve({**base, "dataset": dataset, "variant": "ss"}, SCALES["smoke"])
    assert run([whole], tmp_path / "other").failed == {} and told(tmp_path / "other", whole)["idm"] is None


def test_finished_cells_are_not_run_again(done, cells):
    before = {cell: (folder(done, cell) / "result.json").stat().st_mtime_ns for cell in cells}
    assert run(cells, done, executor=never) == (5, {})
    run_batch(cells, done)
    assert before == {cell: (folder(done, cell) / "result.json").stat().st_mtime_ns for cell in cells}
    assert not any((done / "work").iterdir())  # checkpoints are of use until the results are there


def test_another_agent_finds_the_models(done, cells, dataset, tmp_path):
    shutil.copytree(done, tmp_path / "s")
    before = {path: path.read_bytes() for path in (tmp_path / "s" / "idms").rglob("report.json")}
    other = {"dataset": dataset, **BASE, "settings": {**SETTINGS, "hidden": (4,)}}
    more = Study("t", "t", (Grid(other, {"quality": (50, 100)}),)).cells("smoke")
    heard: set[str] = set()
    assert run(more, tmp_path / "s", tell=lambda what, n, note="": heard.add(what)).failed == {}
    assert "fitting" not in heard and len(before) == 2
    assert {path: path.read_bytes() for path in (tmp_path / "s" / "idms").rglob("report.json")} == before


def test_batches_are_of_one_shape_and_no_larger_than_the_device(cells, dataset, tmp_path):
    other = [resolve({"dataset": dataset, **BASE, "agent": "td3bc", "seed": seed}, SCALES["smoke"]) for seed in (0, 1)]
    found = batches([*cells, *other], tmp_path, size=3)
    assert sorted(map(len, found)) == [2, 2, 3]
    assert all(len({shape(cell) for cell in batch}) == 1 for batch in found)
    assert sorted(c.hash for batch in found for c in batch) == sorted(c.hash for c in [*cells, *other])
    assert len(batches(cells, tmp_path, size=lambda group: len(group))) == 1


def test_a_batch_fits_the_device_and_is_no_larger_than_pays(cells, dataset, monkeypatch):
    assert scheduler.room(cells) == scheduler.MOST_ON_CPU
    eps = execute.dataset(dataset).eps
    agent = replace(execute.plan_of(cells[0], eps).agent, half=True)  # as on a GPU
    need = memory.sizes(agent, eps.n_steps, len(eps), eps.n_obs, eps.n_act)
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    for free, room in ((need.table + 3.5 * need.run, 3), (need.table, 1), (1e12, 5)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free / memory.SPARE)
        assert scheduler.room(cells) == room
    monkeypatch.setattr(scheduler, "ENOUGH", 2 * need.work)
    assert scheduler.room(cells) == 2


def test_a_batch_is_as_large_as_half_the_precision_allows(dataset, monkeypatch):
    """As the training on a GPU will have it."""
    wide = {**BASE, "dataset": dataset, "agent": "td3bc", "settings": {"hidden": (256, 256), "batch": 512}}
    cells = [resolve({**wide, "seed": seed}, SCALES["smoke"]) for seed in range(9)]
    eps = execute.dataset(dataset).eps
    agent = execute.plan_of(cells[0], eps).agent
    need = {
        half: memory.sizes(replace(agent, half=half), eps.n_steps, len(eps), eps.n_obs, eps.n_act).work
        for half in (True, False)
    }
    assert need[True] < need[False]
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1e12)
    monkeypatch.setattr(scheduler, "ENOUGH", 5 * need[True])
    assert scheduler.room(cells) == 5 > 5 * need[True] // need[False]


def test_a_batch_of_different_trajectories_fits_the_device(dataset, monkeypatch):
    """Each cell brings its own to the table: those that its split leaves, at the length that rounding may give them."""
    base = {**BASE, "dataset": dataset, "setup": "decoupled", "unlabelled_fraction": 0.5}
    base = {k: v for k, v in base.items() if k != "fraction"}
    cells = [resolve({**base, "seed": seed}, SCALES["smoke"]) for seed in range(6)]
    eps = execute.dataset(dataset).eps
    agent = replace(execute.plan_of(cells[0], eps).agent, half=True)
    left = [execute._tasks([cell], eps)[cell].data for cell in cells]
    n_steps, n_rows = max(one.n_steps for one in left), max(one.n_steps + len(one) for one in left)
    assert n_steps < eps.n_steps
    table, need = memory.table_bytes(n_steps, n_rows, eps.n_obs), memory.sizes(agent, n_steps, 0, eps.n_obs, eps.n_act)
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    for free, room in ((8 * (need.run + 2 * table), 6), (2.1 * (2 * need.run + 2 * table), 2), (need.run, 1)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free / memory.SPARE)
        assert scheduler.room(cells) == room
    # Beside them some whose trajectories are all.
    whole = [resolve({**BASE, "dataset": dataset, "seed": seed}, SCALES["smoke"]) for seed in range(2)]
    assert shape(whole[0]) == shape(cells[0])
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1e12)
    assert scheduler.room([*cells, *whole]) == 8
    # One that cannot be drawn is its batch's to tell of.
    odd = resolve({**base, "labelled_fraction": 1e-9, "seed": 0}, SCALES["smoke"])
    assert scheduler.room([odd]) == 1


def test_what_another_process_holds_is_left_and_waited_for(cells, tmp_path, monkeypatch, done):
    """While it is held nothing runs; once the other is through its results are taken."""
    waits, wait = threading.Event(), scheduler.wait_for_others

    def noted(*args):
        waits.set()
        wait(*args, every=0.05)

    monkeypatch.setattr(scheduler, "wait_for_others", noted)
    with lock_cells(tmp_path, cells) as mine, lock_cells(tmp_path, cells) as theirs:
        assert mine == cells and theirs == []
        run_batch(cells, tmp_path)  # at once: there is nothing for it
        assert state(tmp_path, cells) == (0, 0, 5)
        other = threading.Thread(target=run, args=(cells, tmp_path))
        other.start()
        assert waits.wait(patience()) and state(tmp_path, cells) == (0, 0, 5)
        for cell in cells:
            shutil.copy(folder(done, cell) / "result.json", folder(tmp_path, cell))
    other.join(patience())
    assert not other.is_alive() and state(tmp_path, cells) == (5, 0, 0)


# Killed ----------------------------------------------------------------------------------------------------


def worker(cells: list[Cell], store: Path, when: str = "", name: str = "", count: int = 0, size: int = 16):
    store.mkdir(exist_ok=True)
    file = store.parent / "cells.json"
    file.write_text(json.dumps([cell.as_json() for cell in cells]))
    args = [sys.executable, "-c", WORKER, file, store, when, name, count, size]
    return subprocess.Popen(list(map(str, args)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("when", "name", "count", "there"),
    [("before", "report.json", 2, 0), ("after", "run-2.npz", 1, 0), ("before", "result.json", 5, 2)],
    ids=["while models are fitted", "while agents train", "while results are written"],
)
def test_a_kill_loses_nothing(cells, done, tmp_path, when, name, count, there):
    store = tmp_path / "s"
    with worker(cells, store, when, name, count) as killed:
        killed.communicate(timeout=patience())
    assert killed.returncode == -signal.SIGKILL
    assert state(store, cells) == (there, 0, 5 - there)
    kept = {path: path.stat().st_mtime_ns for path in (store / "cells").glob("*/result.json")}
    trained = []
    outcome = run(cells, store, tell=lambda what, n, note="": trained.append((what, n, note)))
    assert outcome == (5, {})
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())
    for cell in cells:
        assert told(store, cell) == told(done, cell)
    if name == "run-2.npz":  # two runs were through, and the third at its first look
        assert sum(n for what, n, note in trained if note == "from a checkpoint") == 20 + 20 + 10
    if name == "result.json":  # nothing was trained again
        assert sum(n for what, n, note in trained if note == "from a checkpoint") == 5 * 20
    assert not list(store.rglob(".tmp-*"))


def test_two_schedulers_run_no_cell_twice(cells, done, tmp_path):
    """The first is held in the middle of a batch until the second has done what is left and waits for the first."""
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
    assert all(told(tmp_path / "s", cell) == told(done, cell) for cell in cells)


def test_a_disk_that_takes_no_more(cells, done, tmp_path, monkeypatch):
    """No file of more than 3 kB gets onto it: models and checkpoints do not fit. Afterwards all is well again."""
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
    assert all(told(tmp_path, cell) == told(done, cell) for cell in cells)


def test_a_full_disk_stops_it_at_once(cells, tmp_path, monkeypatch):
    calls = []

    def fails(batch, store, tell):
        calls.append(batch)
        raise SsorlError("x: cannot be written (No space left on device)")

    real = shutil.disk_usage("/")
    monkeypatch.setattr(scheduler.shutil, "disk_usage", lambda path: real._replace(free=0))
    with pytest.raises(SsorlError, match=r"the disk is full .* goes on from here"):
        run(cells, tmp_path, executor=fails, size=1)
    assert len(calls) == 1


# Failures --------------------------------------------------------------------------------------------------


class Flaky:
    """Does nothing but note, and fails as it is told: batches with a bad cell always, others the first time."""

    def __init__(self, bad: set[Cell], once: bool = False) -> None:
        self.bad, self.once, self.calls = bad, once, []

    def __call__(self, batch, store, tell) -> None:
        self.calls.append(list(batch))
        if self.once and len(self.calls) == 1:
            raise RuntimeError("a hiccup")
        if self.bad & set(batch):
            raise ValueError("no good")
        for cell in batch:
            store_of.write(Path(store), cell, {"score": 1.0}, {})


def test_a_batch_that_fails_is_tried_once_more(cells, tmp_path):
    executor, said = Flaky(set(), once=True), []
    assert run(cells, tmp_path, executor, say=said.append) == (5, {})
    assert list(map(len, executor.calls)) == [5, 5]
    assert said == ["a batch of 5 cells failed (a hiccup); once more"]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_failing_cell_is_kept_apart(cells, tmp_path, workers):
    bad = cells[2]
    outcome = run(cells, tmp_path, executor := Flaky({bad}), workers=workers)
    assert outcome == (4, {bad: "no good"})
    assert list(map(len, executor.calls)) == [5, 5, 1, 1, 1, 1, 1]
    assert "ValueError: no good" in (error(tmp_path, bad) or "") and state(tmp_path, cells) == (4, 1, 1)
    # Once it is mended the same call does it, and the error goes.
    assert run(cells, tmp_path, Flaky(set())) == (5, {})
    assert error(tmp_path, bad) is None and state(tmp_path, cells) == (5, 0, 0)


def test_several_batches_at_a_time(cells, tmp_path):
    executor = Flaky({cells[0]})
    outcome = run(cells, tmp_path, executor, workers=2, size=1)
    assert outcome.done == 4 and list(outcome.failed) == [cells[0]]


def test_a_failure_deep_inside_keeps_the_rest(dataset, cells, tmp_path):
    """A share of labels that comes to no trajectory, in a batch with others that are fine."""
    wrong = resolve({"dataset": dataset, **BASE, "fraction": 0.001}, SCALES["smoke"])
    fine = one(cells, "baseline", 50)
    outcome = run([wrong, fine], tmp_path)
    assert outcome.done == 1 and "rounds to none" in outcome.failed[wrong]
    assert finished(tmp_path, fine) and "Traceback" in (error(tmp_path, wrong) or "")


def test_a_policy_that_cannot_be_played_does_not_cost_the_others_their_training(cells, done, tmp_path, monkeypatch):
    bad, real, seen = cells[1], execute.play, []

    def play(plan, runs, trained, watch):
        if bad in runs:
            raise SsorlError("its training has diverged")
        return real(plan, runs, trained, watch)

    def no_look(*args):
        seen.append(args)
        raise SsorlError("an action that is not finite")

    monkeypatch.setattr(execute, "play", play)
    monkeypatch.setattr(scoring, "evaluate", no_look)
    fresh = []

    def tell(what: str, n: int, note: str = "") -> None:
        if what == "training" and note != "from a checkpoint":
            fresh.append(n)

    assert run(cells, tmp_path, tell=tell) == (4, {bad: "its training has diverged"})
    assert sum(fresh) == 5 * 20 + 20  # all once, and the bad one again alone
    for cell in set(cells) - {bad}:
        here, there = (told(store, cell) for store in (tmp_path, done))
        assert here["returns"] == there["returns"] and "score" not in here["curve"]
    assert seen


@pytest.mark.parametrize("limit", ["LARGEST", "LANES"])
def test_policies_that_play_at_each_look_or_in_smaller_parts_earn_the_same(cells, done, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(learning_curves, limit, 0)
    calls, real = [], scoring.quick_scores
    monkeypatch.setattr(scoring, "quick_scores", lambda *args: calls.append(len(args[1])) or real(*args))
    assert run(cells, tmp_path) == (5, {})
    assert calls == [1] * 10  # five runs, one after another here, two looks each; else all ten at once
    assert all(told(tmp_path, cell) == told(done, cell) for cell in cells)


def test_the_looks_at_runs_in_one_program_are_each_ones_own(cells, done, tmp_path, monkeypatch):
    """As on a GPU, where all runs are one group; in other bits, so that a return may differ by a little."""
    calls, real = [], scoring.quick_scores
    monkeypatch.setattr(algorithm1, "train_many", partial(algorithm1.train_many, together=True))
    monkeypatch.setattr(scoring, "quick_scores", lambda *args: calls.append(len(args[1])) or real(*args))
    assert run(cells, tmp_path) == (5, {})
    assert calls == [10]
    for cell in cells:
        here, there = (np.array(told(store, cell)["curve"]["score"]) for store in (tmp_path, done))
        np.testing.assert_allclose(here, there, rtol=1e-3, atol=1e-3)
        assert here[0] != here[1]


def test_a_look_that_cannot_be_played_costs_the_others_nothing(cells, done, tmp_path, monkeypatch):
    """The policy of one run has diverged at its last look, and is well again when all play at the end."""
    real, calls = scoring.evaluate, []

    def evaluate(players, *args):
        calls.append(len(players))
        if any(np.isnan(x).any() for player in players for x in jax.tree.leaves(player.params)):
            raise SsorlError("an action that is not finite")
        return real(players, *args)

    def snapshot_params(plan, look):
        params = jax.device_get(jax.vmap(plan.agent.policy)(look.state))
        return jax.tree.map(lambda x: x * np.nan, params) if (look.at, look.runs) == (20, range(1, 2)) else params

    monkeypatch.setattr(scoring, "evaluate", evaluate)
    monkeypatch.setattr(scoring, "snapshot_params", snapshot_params)
    assert run(cells, tmp_path) == (5, {})
    assert calls == [10] + [1] * 10
    curves = {cell: told(tmp_path, cell)["curve"]["score"] for cell in cells}
    wrong = [cell for cell in cells if curves[cell] != told(done, cell)["curve"]["score"]]
    assert len(wrong) == 1 and curves[wrong[0]][0] == told(done, wrong[0])["curve"]["score"][0]
    assert curves[wrong[0]][1] is None


def test_a_damaged_look_is_missing_from_its_curve_alone(cells, done, tmp_path, monkeypatch):
    real, bad = learning_curves.LearningCurves.play, "20-1-2.npz"

    def play(self, *args):
        raw = bytearray((self.folder / bad).read_bytes())
        raw[len(raw) // 2] ^= 1
        (self.folder / bad).write_bytes(raw)
        return real(self, *args)

    monkeypatch.setattr(learning_curves.LearningCurves, "play", play)
    assert run(cells, tmp_path) == (5, {})
    curves = [(told(tmp_path, cell), told(done, cell)) for cell in cells]
    assert sum(here == there for here, there in curves) == 4
    here, there = next(pair for pair in curves if pair[0] != pair[1])
    assert here["curve"]["score"] == [there["curve"]["score"][0], None] and here["returns"] == there["returns"]


def test_a_result_that_cannot_be_read_is_made_again(done, cells, tmp_path):
    store = tmp_path / "s"
    shutil.copytree(done, store)
    (folder(store, cells[0]) / "result.json").write_text('{"schema": 1, "cell"')
    assert state(store, cells) == (4, 0, 1)
    model = next((store / "idms").iterdir())
    (model / "model" / "idm.json").write_text("{")
    assert run(cells, store) == (5, {})
    assert told(store, cells[0]) == told(done, cells[0])


def test_a_file_that_has_changed_is_refused(dataset, tmp_path, pointmass):
    """Results of two versions of a dataset never stand side by side, whether cells are left to do or none is."""
    path, store = tmp_path / "mine.npz", tmp_path / "store"
    shutil.copy(dataset, path)
    some = Study("s", "s", (Grid({"dataset": str(path), **BASE}, {"variant": ("baseline", "oracle")}),)).cells("smoke")
    assert run(some[:1], store).done == 1
    path.touch()
    assert run(some[:1], store).done == 1  # a date is no change
    save(pointmass[:41], path, force=True)
    for cells in (some, some[:1]):
        with pytest.raises(ChangedError, match=r"mine.npz: has changed since .* 40 trajectories, .* now 41 .* --store"):
            run(cells, store)
    assert state(store, some) == (1, 0, 1)  # nobody is to blame
    assert run(some, tmp_path / "other").done == 2
    shutil.copy(dataset, path)
    assert run(some, store).done == 2


def test_a_model_of_other_data_is_fitted_anew(dataset, tmp_path, pointmass):
    """A batch that was killed between its model and its first result leaves no result that would tell."""
    path = tmp_path / "mine.npz"
    shutil.copy(dataset, path)
    cells = Study("s", "s", (Grid({"dataset": str(path), **BASE}),)).cells("smoke")
    assert run(cells, tmp_path / "store").done == 1
    shutil.rmtree(tmp_path / "store" / "cells")
    save(pointmass[5:45], path, force=True)
    assert run(cells, tmp_path / "store").done == run(cells, tmp_path / "fresh").done == 1
    assert told(tmp_path / "store", cells[0]) == told(tmp_path / "fresh", cells[0])


def test_a_file_that_means_something_else_is_refused(dataset, tmp_path, pointmass):
    path = tmp_path / "mine.npz"
    save(pointmass[:40], path)
    cells = Study("s", "s", (Grid({"dataset": str(path), **BASE}, {"variant": ("baseline",)}),)).cells("smoke")
    assert run(cells, tmp_path / "store").done == 1
    save(pointmass[:40].with_meta(expert_return=1e6), path, force=True)
    with pytest.raises(ChangedError, match=r"has changed since .* \(then expert_return 90.38, now 1000000"):
        run(cells, tmp_path / "store")


def test_a_diverged_run_takes_no_other_s_curve(cells, tmp_path, monkeypatch):
    """As on a GPU, where the policies of all runs at a look are in one file."""
    real, train_many = scoring.snapshot_policies, algorithm1.train_many

    def snapshot_policies(*args):
        first, *rest = real(*args)
        return [first._replace(params=jax.tree.map(lambda x: np.full_like(x, np.nan), first.params)), *rest]

    monkeypatch.setattr(algorithm1, "train_many", lambda *args, **how: train_many(*args, **(how | {"together": True})))
    monkeypatch.setattr(scoring, "snapshot_policies", snapshot_policies)
    assert run(cells, tmp_path) == (5, {})
    curves = [told(tmp_path, cell)["curve"] for cell in cells]
    assert sum("score" in curve and None not in curve["score"] for curve in curves) == 4


def test_data_that_cannot_be_read_is_its_batch_s_to_tell(tmp_path, monkeypatch):
    """Where a device's memory is asked after first, too."""
    gone = resolve({"dataset": str(tmp_path / "gone.npz"), **BASE}, SCALES["smoke"])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert scheduler.room([gone]) == scheduler.MOST_ON_CPU


def test_only_what_was_not_written_makes_a_disk_full():
    try:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as err:
            raise SsorlError("x.npz: cannot be written") from err
    except SsorlError as err:
        assert scheduler._unwritten(err)
    assert scheduler._unwritten(RuntimeError("a worker: [Errno 28] No space left on device"))
    assert not scheduler._unwritten(SsorlError("gone.npz: no such file")) and not scheduler._unwritten(None)


def test_data_without_a_place_to_play(dataset, tmp_path, pointmass):
    save(pointmass[:40].with_meta(env=None), tmp_path / "lost.npz")
    lost = resolve({"dataset": str(tmp_path / "lost.npz"), **BASE}, SCALES["smoke"])
    assert "names no environment" in run([lost], tmp_path / "s").failed[lost]


def test_a_place_that_is_not_there_is_told_before_anything_is_trained(dataset, tmp_path):
    cells = [resolve({"dataset": dataset, **BASE, "env": env}, SCALES["smoke"]) for env in ("pointmass", "nowhere")]
    with pytest.raises(SsorlError, match="no environment 'nowhere'"):
        run(cells, tmp_path / "s")
    assert not list((tmp_path / "s").glob("cells/*/result.json"))


def test_how_good_labels_are_does_not_depend_on_where_policies_play(tmp_path, pointmass):
    """Returns are told as the study of the labels alone tells them, which knows no place to play."""
    save(pointmass[:40].with_meta(env=None), tmp_path / "lost.npz")
    base = {"dataset": str(tmp_path / "lost.npz"), **BASE}
    ss, alone = (resolve({**base, **more}, SCALES["smoke"]) for more in ({"env": "pointmass"}, {"kind": "idm"}))
    assert run([ss], tmp_path / "both").failed == run([alone], tmp_path / "alone").failed == {}
    assert told(tmp_path / "both", alone) == told(tmp_path / "alone", alone)


def test_labels_that_another_process_asks_for_are_left_to_it(cells, tmp_path):
    ss = one(cells, "ss", 50)
    assert ss.labels
    with lock_cells(tmp_path, [ss.labels]) as mine:
        assert run([ss], tmp_path).failed == {} and mine == [ss.labels] and not finished(tmp_path, ss.labels)
