"""Studies on a real Ray cluster of several nodes on this machine: equal results, even if a node is lost."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.clock import patience, until
from support.paths import ROOT

from ssorl import __version__
from ssorl.cli import main
from ssorl.data import save
from ssorl.study import ray_cluster as clusters
from ssorl.study import scheduler
from ssorl.study.grid import Cell, Grid, Study, resolve
from ssorl.study.ray_cluster import Cluster, connected, run
from ssorl.study.ray_worker import do_batch
from ssorl.study.remote_store import RemoteStore
from ssorl.study.scales import SCALES
from ssorl.study.store import error, finished, folder, lock_cells, result, state
from ssorl.utils.errors import SsorlError

IDM = {"hidden": (8,), "steps": 40, "validate_every": 20, "batch": 32, "lr": 1e-3}
BASE = {
    "agent": "bc",
    "fraction": 0.2,
    "settings": {"hidden": (8,), "batch": 16, "updates": 20},
    "idm_settings": IDM,
    "episodes": 2,
}


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads processes from /proc")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, pointmass) -> str:
    path = tmp_path_factory.mktemp("data") / "small.npz"
    save(pointmass[:40], path)
    return str(path)


@pytest.fixture(scope="module")
def cells(dataset) -> list[Cell]:
    axes = {"quality": (50, 100), "variant": ("baseline", "ss")}
    return Study("s", "s", (Grid({"dataset": dataset, **BASE}, axes),)).cells("smoke")


@pytest.fixture(scope="module")
def done(tmp_path_factory, cells) -> Path:
    """Return a store with results that this process computed."""
    store = tmp_path_factory.mktemp("store")
    assert scheduler.run(cells, store) == (4, {})
    return store


class Nodes:
    """A cluster in another process: a head without CPUs and two nodes with one CPU each."""

    def __init__(self, home: str) -> None:
        env = {**os.environ, "RAY_TMPDIR": home, "RAY_USAGE_STATS_ENABLED": "0", "SSORL_CACHE": f"{home}/cache"}
        pipes: dict = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([sys.executable, "-c", NODES], env=env, text=True, **pipes)
        self.address = self.ask("")

    def ask(self, line: str) -> str:
        """Evaluate an expression in the cluster's process and return its text."""
        assert self.process.stdin and self.process.stdout
        print(line, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()


NODES = """
import sys
from ray.cluster_utils import Cluster
made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
add = lambda: made.add_node(num_cpus=1)
nodes = [add(), add()]
for line in sys.stdin:
    print(eval(line) if line.strip() else made.address, flush=True)
made.shutdown()
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    home = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a short path, because names of sockets have a limit
    made = Nodes(home)
    yield made
    made.process.communicate(timeout=patience())
    shutil.rmtree(home, ignore_errors=True)


def comparable(store: Path, cell: Cell) -> dict:
    """Return a result without its timings."""
    stored = result(store, cell)
    assert stored is not None
    return {k: v for k, v in stored.items() if k != "timings"}


def begun_batches(store: Path) -> list[Path]:
    return list((store / "work").glob("*/cells.json"))


def locked_cells(store: Path) -> list[tuple[int, str]]:
    """Return the process ids and hashes of locked cells."""
    locks = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            file = link.readlink()
            if file.name == ".lock" and file.parent.parent == store / "cells":
                locks.append((int(link.parts[2]), file.parent.name))
    return locks


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def in_thread(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


# On several nodes ------------------------------------------------------------------------------------------


def do_batch_at_gate(text: str) -> str:
    """Compute a batch, but wait with its cells locked until the file `gate` beside the store is unlocked."""
    from ssorl.study import executor
    from ssorl.study.ray_worker import do_batch

    real, gate = executor.begin_work, Path(json.loads(text)["store"]).with_name("gate")

    def begin_work(*args: Any, **more: Any) -> Any:
        path = real(*args, **more)
        with gate.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
        return path

    executor.begin_work = begin_work
    try:
        return do_batch(text)
    finally:
        executor.begin_work = real


@linux
def test_a_lost_node(cells, done, nodes, tmp_path, monkeypatch):
    """A node is killed while it computes a batch. The other node computes the batch, and no cell is computed twice."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
    monkeypatch.setattr(clusters, "do_batch", do_batch_at_gate)
    tmp_path = tmp_path / "store"
    tmp_path.mkdir()
    gate = tmp_path.with_name("gate").open("w")
    fcntl.flock(gate, fcntl.LOCK_EX)
    lost, finished_before, written, over = [], [], set(), threading.Event()

    def kill() -> None:
        with gate:
            until(lambda: len(begun_batches(tmp_path)) == 2)
            lost.extend(locked := locked_cells(tmp_path))
            at = f"[n.all_processes['raylet'][0].process.pid for n in nodes].index({parent(locked[0][0])})"
            assert nodes.ask(f"made.remove_node(nodes.pop({at}), allow_graceful=False)") == "None"
            finished_before.extend(cell.hash for cell in cells if finished(tmp_path, cell))
        while not over.wait(0.01):  # a result that is written again has another inode
            written.update((path, path.stat().st_ino) for path in (tmp_path / "cells").glob("*/result.json"))

    killer, events, messages = in_thread(kill), [], []
    outcome = run(cells, tmp_path, Cluster(nodes.address), lambda *event: events.append(event), messages.append)
    over.set()
    killer.join(patience())
    assert outcome == (4, {})
    assert len(gone := {name for pid, name in lost if pid == lost[0][0]}) == 2 and not gone & set(finished_before)
    assert [comparable(tmp_path, cell) for cell in cells] == [comparable(done, cell) for cell in cells]
    assert len(written) == 4 + 2  # and the results of the labels of two cells
    assert sum(n for stage, n, _ in events if stage == "cells") == 4
    assert messages == ["Ray: 3 machines, 0 GPUs, 2 CPUs; 2 batches at a time with 0 GPUs and 1 CPU each"]
    assert not [*tmp_path.glob("work/*"), *tmp_path.glob(".cluster-*"), *tmp_path.rglob(".tmp-*")]


@pytest.fixture(scope="module")
def joined(nodes) -> Iterator[Any]:
    """Return one connection for the following tests, so that workers, which are slow to start, are reused."""
    with connected(nodes.address) as ray:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
        n_nodes = int(nodes.ask("len(made.list_all_nodes())"))
        until(lambda: sum(node["Alive"] for node in ray.nodes()) == n_nodes)  # Ray notices a lost node after a while
        yield ray


def test_a_failing_cell_does_not_stop_the_others(cells, done, joined, dataset, tmp_path):
    wrong = resolve({"dataset": dataset, **BASE, "variant": "baseline", "fraction": 0.001}, SCALES["smoke"])
    messages: list[str] = []
    outcome = run([wrong, *cells], tmp_path, notify=messages.append)
    assert outcome.done == 4 and list(outcome.failed) == [wrong] and "rounds to none" in outcome.failed[wrong]
    assert [comparable(tmp_path, cell) for cell in cells] == [comparable(done, cell) for cell in cells]
    assert "in _tasks" in (error(tmp_path, wrong) or "")  # the traceback of the worker
    assert re.match(r"a batch of [235] cells failed \(.*trying it again$", messages[1])
    assert messages[2].startswith("the batch failed again")
    assert messages[3].startswith(f"cell {wrong.hash} failed: ") and len(messages) == 4


def kill_itself(text: str) -> str:
    with (Path(json.loads(text)["store"]) / "tries").open("a") as file:
        file.write("1")
    os.kill(os.getpid(), signal.SIGKILL)
    return text


def test_a_process_that_is_always_lost(cells, joined, tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "do_batch", kill_itself)
    monkeypatch.setattr(clusters, "RETRIES", 1)
    outcome = run(cells[:1], tmp_path)
    assert outcome.done == 0 and "was lost, 2 times" in outcome.failed[cells[0]]
    assert len((tmp_path / "tries").read_text()) == 2 * 2  # Ray tries twice, and so does the scheduler


def is_unlocked(store: Path, cell: Cell) -> bool:
    with lock_cells(store, [cell]) as locked:
        return locked == [cell]


def test_ctrl_c(cells, done, joined, dataset, tmp_path):
    """Running tasks end, no cell counts as failed, and other cells can be computed afterwards."""
    long = resolve({"dataset": dataset, **BASE, "settings": {**BASE["settings"], "updates": 10**8}}, SCALES["smoke"])
    in_thread(lambda: (until(lambda: begun_batches(tmp_path)), os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        run([long], tmp_path)
    assert state(tmp_path, [long]) == (0, 0, 1)
    until(lambda: is_unlocked(tmp_path, long))
    assert run(cells[:1], tmp_path) == (1, {})
    assert comparable(tmp_path, cells[0]) == comparable(done, cells[0])


def ignore_interrupts(text: str) -> str:
    (Path(json.loads(text)["store"]) / "pid").write_text(str(os.getpid()))
    while True:
        with suppress(KeyboardInterrupt):
            signal.pause()


@linux
def test_ctrl_c_kills_tasks_that_ignore_it(cells, joined, tmp_path, monkeypatch):
    """For example, while the device computes many updates."""
    monkeypatch.setattr(clusters, "do_batch", ignore_interrupts)
    monkeypatch.setattr(clusters, "GRACE", 0.5)
    pid = tmp_path / "pid"
    in_thread(lambda: (until(lambda: pid.is_file() and pid.read_text()), os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        run(cells, tmp_path)
    assert state(tmp_path, cells) == (0, 0, 4)
    until(lambda: not Path(f"/proc/{pid.read_text()}").exists())


def test_results_through_a_share(cells, done, joined, tmp_path):
    """Workers with their own stores send results to a share, from which another machine reads them."""
    place, events = f"file://{tmp_path}/share", []
    assert run(cells, tmp_path / "a", Cluster(share=place)) == (4, {})
    assert [comparable(tmp_path / "a", cell) for cell in cells] == [comparable(done, cell) for cell in cells]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["cells"]
    assert len(list((tmp_path / "share" / "idms").glob("*/report.json"))) == 2
    labels = [cell.labels for cell in cells if cell.labels]
    assert len(labels) == 2
    for wanted, store in ((labels, tmp_path / "a"), (cells, tmp_path / "b")):
        outcome = run(wanted, store, Cluster(share=place), lambda *event: events.append(event))
        assert outcome == (len(wanted), {})
    assert events == []


def test_tasks_request_gpus_if_the_cluster_has_them(cells, done, nodes, joined, tmp_path):
    """The GPU exists only in Ray's accounts; the tasks compute on the CPU."""
    nodes.ask("made.add_node(num_cpus=1, num_gpus=1)")
    until(lambda: joined.cluster_resources().get("GPU"))
    messages: list[str] = []
    assert run(cells[:2], tmp_path, notify=messages.append) == (2, {})
    assert messages[0].endswith(" CPUs; 1 batch at a time with 1 GPU and 1 CPU each") and len(messages) == 1
    assert [comparable(tmp_path, cell) for cell in cells[:2]] == [comparable(done, cell) for cell in cells[:2]]


TOML = """
title = "Mine"
base = {{ kind = "data", dataset = "{data}", fraction = 0.2 }}
axes = {{ quality = [50, 100] }}
figure = "density"
"""


@linux
def test_ray_is_started_and_stopped_by_the_command(dataset, tmp_path):
    """Without a running cluster, `ssorl study run FILE --ray` starts Ray and stops it at the end."""
    (tmp_path / "mine.toml").write_text(TOML.format(data=dataset))
    home = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    env = {**os.environ, "RAY_TMPDIR": home, "HOME": home, "PYTHONWARNINGS": "error::RuntimeWarning"}
    args = [sys.executable, "-c", "from ssorl.cli import main; main()"]
    args += ["study", "run", "mine.toml", "--store", "here", "--ray"]
    ended = subprocess.run(args, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=patience())
    assert ended.returncode == 0, ended.stderr
    assert "Ray: 1 machine" in ended.stderr and "2 of 2 cells are done" in ended.stderr
    assert "warn" not in ended.stderr.lower() and ended.stdout.strip() == "here/reports/mine-smoke.html"
    lines = [path.read_bytes().replace(b"\0", b" ") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(home.encode() in line and b"raylet" in line for line in lines)
    shutil.rmtree(home, ignore_errors=True)


# Errors --------------------------------------------------------------------------------------------------


def test_workers_detect_another_store_and_another_version(cells, tmp_path):
    """The worker sees a folder of the same name, without the mark."""
    order = {
        "version": __version__,
        "cwd": os.getcwd(),
        "cpu": True,
        "share": None,
        "mark": ".cluster-0",
        "store": "/tmp",
    }
    text = json.dumps({**order, "cells": [cell.as_json() for cell in cells]})
    answer = json.loads(do_batch(text))
    assert "/tmp on" in answer["why"] and "--ray-share" in answer["why"] and answer["done"] == []
    answer = json.loads(do_batch(text.replace(__version__, "0.0.7")))
    assert f"has ssorl {__version__}, but the study was started with ssorl 0.0.7" in answer["why"]


def test_requests_that_no_node_can_fulfil(cells, joined, tmp_path):
    with pytest.raises(SsorlError, match="no machine of the cluster has 2 GPUs and 1 CPU; ask for less"):
        run(cells, tmp_path, Cluster(gpus=2))
    with pytest.raises(SsorlError, match="--ray-cpus 0: give GPUs from 0 up and CPUs above 0"):
        run(cells, tmp_path, Cluster(cpus=0))
    assert not list(tmp_path.iterdir())


def test_ray_is_not_installed(cells, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SsorlError, match=r"pip install 'ssorl\[ray\]'"):
        run(cells, tmp_path)


def test_unreachable_addresses_and_shares(cells, tmp_path):
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "here"):
        with pytest.raises(SsorlError, match=f"--ray-address {address}: nothing answers there .* give HOST:PORT"):
            run(cells, tmp_path, Cluster(address))
    with pytest.raises(SsorlError, match=r"--ray-share nowhere://x: cannot be reached \(Protocol not known"):
        run(cells, tmp_path, Cluster(share="nowhere://x"))


# The share -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory://study/", "file"])
def test_a_share_holds_the_files_of_a_store(cells, done, tmp_path, place):
    url = f"{tmp_path}/share" if place == "file" else place
    share, files = RemoteStore(url), ["cell.json", "result.json"]
    share.pull(cells, tmp_path / "a")  # the share is empty
    share.push(cells, done)
    share.push_models(cells, done)
    share.pull(cells[:3], tmp_path / "a")
    assert [finished(tmp_path / "a", cell) for cell in cells] == [True, True, True, False]
    for cell in cells[:3]:
        for name in files:
            assert (folder(tmp_path / "a", cell) / name).read_bytes() == (folder(done, cell) / name).read_bytes()
    share.pull_models(cells, tmp_path / "a")
    for path in (p for p in (done / "idms").rglob("*") if p.is_file() and p.name != ".lock"):
        assert (tmp_path / "a" / path.relative_to(done)).read_bytes() == path.read_bytes()


def test_results_that_are_cut_short_count_as_missing(cells, done, tmp_path):
    share = RemoteStore(str(tmp_path / "share"))
    share.push(cells[:1], done)
    path = folder(tmp_path / "share", cells[0]) / "result.json"
    path.write_bytes(path.read_bytes()[:100])
    share.pull(cells[:1], tmp_path / "a")
    assert not finished(tmp_path / "a", cells[0])
    share.push(cells[:1], done)
    share.pull(cells[:1], tmp_path / "a")
    assert finished(tmp_path / "a", cells[0])


def test_the_file_that_marks_completeness_is_sent_last(cells, done, monkeypatch):
    share, names = RemoteStore("memory://order"), []
    monkeypatch.setattr(share.files, "find", lambda path: [][1])
    with pytest.raises(SsorlError, match="--ray-share memory://order: cannot be read"):
        share.push(cells, done)
    monkeypatch.undo()
    monkeypatch.setattr(share, "_send", lambda name, path: names.append(Path(name).name))
    share.push(cells, done)
    assert names == ["cell.json", "result.json"] * 6  # two of them results of labels
    names.clear()
    share.push_models(cells, done)
    assert names.count("report.json") == 2 and names[-1] == "report.json" == names[len(names) // 2 - 1]


def test_docs_page_names_every_option(capsys):
    main(["study", "run", "--help"])
    flags = set(re.findall(r"--ray[a-z-]*", capsys.readouterr().out))
    page = (ROOT / "docs" / "clusters.md").read_text()
    assert len(flags) == 5 and [flag for flag in sorted(flags) if f"| `{flag}` |" not in page] == []
