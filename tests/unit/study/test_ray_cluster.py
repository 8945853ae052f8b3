"""Studies on a real Ray cluster of several nodes on this machine: the same results, whatever becomes of a node."""

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
from ssorl.study.ray_cluster import Cluster, connected, do_batch, run
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


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


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
    """What this process alone comes to."""
    store = tmp_path_factory.mktemp("store")
    assert scheduler.run(cells, store) == (4, {})
    return store


class Nodes:
    """A cluster in a process of its own: a head that does nothing itself and two nodes with a core each."""

    def __init__(self, home: str) -> None:
        env = {**os.environ, "RAY_TMPDIR": home, "RAY_USAGE_STATS_ENABLED": "0", "SSORL_CACHE": f"{home}/cache"}
        pipes: dict = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([sys.executable, "-c", NODES], env=env, text=True, **pipes)
        self.address = self.ask("")

    def ask(self, line: str) -> str:
        """Have an expression evaluated there."""
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
    home = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: names of sockets have a limit
    made = Nodes(home)
    yield made
    made.process.communicate(timeout=patience())
    shutil.rmtree(home, ignore_errors=True)


def told(store: Path, cell: Cell) -> dict:
    """All of a result that is no matter of time."""
    found = result(store, cell)
    assert found is not None
    return {k: v for k, v in found.items() if k != "timings"}


def begun(store: Path) -> list[Path]:
    return list((store / "work").glob("*/cells.json"))


def holding(store: Path) -> list[tuple[int, str]]:
    """Which processes have which cells in hand."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            file = link.readlink()
            if file.name == ".lock" and file.parent.parent == store / "cells":
                found.append((int(link.parts[2]), file.parent.name))
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def alone(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


# On several nodes ------------------------------------------------------------------------------------------


def waits_at_the_gate(text: str) -> str:
    """Do a batch, but wait with its cells in hand as long as the file `gate` beside the store is locked."""
    from ssorl.study import executor
    from ssorl.study.ray_cluster import do_batch

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
def test_a_node_lost_in_the_middle(cells, done, nodes, tmp_path, monkeypatch):
    """A node is killed while it has a batch in hand, which is then done by the other one, and nothing is done twice."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
    monkeypatch.setattr(clusters, "do_batch", waits_at_the_gate)
    tmp_path = tmp_path / "store"
    tmp_path.mkdir()
    gate = tmp_path.with_name("gate").open("w")
    fcntl.flock(gate, fcntl.LOCK_EX)
    lost, kept, written, over = [], [], set(), threading.Event()

    def kill() -> None:
        with gate:
            until(lambda: len(begun(tmp_path)) == 2)
            lost.extend(locked := holding(tmp_path))
            at = f"[n.all_processes['raylet'][0].process.pid for n in nodes].index({parent(locked[0][0])})"
            assert nodes.ask(f"made.remove_node(nodes.pop({at}), allow_graceful=False)") == "None"
            kept.extend(cell.hash for cell in cells if finished(tmp_path, cell))
        while not over.wait(0.01):  # a result that is written again is another file of the same name
            written.update((path, path.stat().st_ino) for path in (tmp_path / "cells").glob("*/result.json"))

    killer, heard, said = alone(kill), [], []
    outcome = run(cells, tmp_path, Cluster(nodes.address), lambda *what: heard.append(what), said.append)
    over.set()
    killer.join(patience())
    assert outcome == (4, {})
    assert len(gone := {name for pid, name in lost if pid == lost[0][0]}) == 2 and not gone & set(kept)
    assert [told(tmp_path, cell) for cell in cells] == [told(done, cell) for cell in cells]
    assert len(written) == 4 + 2  # and what two cells tell of their labels
    assert sum(n for what, n, _ in heard if what == "cells") == 4
    assert said == ["Ray: 3 machines, 0 GPUs, 2 CPUs; 2 batches at a time with 0 GPUs and 1 CPU each"]
    left = *tmp_path.glob("work/*"), *tmp_path.glob(".cluster-*"), *tmp_path.rglob(".tmp-*")
    assert left == ()


@pytest.fixture(scope="module")
def joined(nodes) -> Iterator[Any]:
    """One connection for what follows: workers, which are slow to start, stay."""
    with connected(nodes.address) as ray:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
        there = int(nodes.ask("len(made.list_all_nodes())"))
        until(lambda: sum(node["Alive"] for node in ray.nodes()) == there)  # a lost one is missed after a while
        yield ray


def test_a_failing_cell_is_kept_apart(cells, done, joined, dataset, tmp_path):
    wrong = resolve({"dataset": dataset, **BASE, "variant": "baseline", "fraction": 0.001}, SCALES["smoke"])
    said: list[str] = []
    outcome = run([wrong, *cells], tmp_path, say=said.append)
    assert outcome.done == 4 and list(outcome.failed) == [wrong] and "rounds to none" in outcome.failed[wrong]
    assert [told(tmp_path, cell) for cell in cells] == [told(done, cell) for cell in cells]
    assert "in _tasks" in (error(tmp_path, wrong) or "")  # what was seen over there
    assert re.match(r"a batch of [235] cells failed \(.*once more$", said[1]) and said[2].startswith("it failed again")
    assert said[3].startswith(f"cell {wrong.hash} failed: ") and len(said) == 4


def dies(text: str) -> str:
    with (Path(json.loads(text)["store"]) / "tries").open("a") as file:
        file.write("1")
    os.kill(os.getpid(), signal.SIGKILL)
    return text


def test_a_process_that_dies_each_time(cells, joined, tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "do_batch", dies)
    monkeypatch.setattr(clusters, "RETRIES", 1)
    outcome = run(cells[:1], tmp_path)
    assert outcome.done == 0 and "was lost, 2 times" in outcome.failed[cells[0]]
    assert len((tmp_path / "tries").read_text()) == 2 * 2  # Ray tries twice, and so does the scheduler


def free(store: Path, cell: Cell) -> bool:
    with lock_cells(store, [cell]) as mine:
        return mine == [cell]


def test_ctrl_c(cells, done, joined, dataset, tmp_path):
    """What is under way ends, nothing counts as failed, and the rest can go on."""
    long = resolve({"dataset": dataset, **BASE, "settings": {**BASE["settings"], "updates": 10**8}}, SCALES["smoke"])
    alone(lambda: (until(lambda: begun(tmp_path)), os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        run([long], tmp_path)
    assert state(tmp_path, [long]) == (0, 0, 1)
    until(lambda: free(tmp_path, long))
    assert run(cells[:1], tmp_path) == (1, {})
    assert told(tmp_path, cells[0]) == told(done, cells[0])


def stubborn(text: str) -> str:
    (Path(json.loads(text)["store"]) / "pid").write_text(str(os.getpid()))
    while True:
        with suppress(KeyboardInterrupt):
            signal.pause()


@linux
def test_ctrl_c_ends_what_does_not_stop(cells, joined, tmp_path, monkeypatch):
    """As where the device is in the middle of many updates."""
    monkeypatch.setattr(clusters, "do_batch", stubborn)
    monkeypatch.setattr(clusters, "GRACE", 0.5)
    pid = tmp_path / "pid"
    alone(lambda: (until(lambda: pid.is_file() and pid.read_text()), os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        run(cells, tmp_path)
    assert state(tmp_path, cells) == (0, 0, 4)
    until(lambda: not Path(f"/proc/{pid.read_text()}").exists())


def test_results_by_another_way(cells, done, joined, tmp_path):
    """Workers with stores of their own send results through a share; a second machine finds them there."""
    place, heard = f"file://{tmp_path}/share", []
    assert run(cells, tmp_path / "a", Cluster(share=place)) == (4, {})
    assert [told(tmp_path / "a", cell) for cell in cells] == [told(done, cell) for cell in cells]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["cells"]
    assert len(list((tmp_path / "share" / "idms").glob("*/report.json"))) == 2
    asked = [cell.labels for cell in cells if cell.labels]
    assert len(asked) == 2 and run(asked, tmp_path / "a", Cluster(share=place), lambda *what: heard.append(what)) == (
        2,
        {},
    )
    assert run(cells, tmp_path / "b", Cluster(share=place), lambda *what: heard.append(what)) == (4, {})
    assert heard == []


def test_gpus_are_asked_for_where_there_are_some(cells, done, nodes, joined, tmp_path):
    """As far as a machine without any can tell: Ray counts what it is told, and the tasks compute on the CPU."""
    nodes.ask("made.add_node(num_cpus=1, num_gpus=1)")
    until(lambda: joined.cluster_resources().get("GPU"))
    said: list[str] = []
    assert run(cells[:2], tmp_path, say=said.append) == (2, {})
    assert said[0].endswith(" CPUs; 1 batch at a time with 1 GPU and 1 CPU each") and len(said) == 1
    assert [told(tmp_path, cell) for cell in cells[:2]] == [told(done, cell) for cell in cells[:2]]


TOML = """
title = "Mine"
base = {{ kind = "data", dataset = "{data}", fraction = 0.2 }}
axes = {{ quality = [50, 100] }}
figure = "density"
"""


@linux
def test_a_ray_is_started_for_the_command(dataset, tmp_path):
    """`ssorl study run FILE --ray` where none runs: it works and leaves none behind."""
    (tmp_path / "mine.toml").write_text(TOML.format(data=dataset))
    home = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    env = {**os.environ, "RAY_TMPDIR": home, "HOME": home, "PYTHONWARNINGS": "error::RuntimeWarning"}
    args = [sys.executable, "-c", "from ssorl.cli import main; main()"]
    args += ["study", "run", "mine.toml", "--store", "here", "--ray"]
    told = subprocess.run(args, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=patience())
    assert told.returncode == 0, told.stderr
    assert "Ray: 1 machine" in told.stderr and "2 of 2 cells are done" in told.stderr
    assert "warn" not in told.stderr.lower() and told.stdout.strip() == "here/reports/mine-smoke.html"
    lines = [path.read_bytes().replace(b"\0", b" ") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(home.encode() in line and b"raylet" in line for line in lines)
    shutil.rmtree(home, ignore_errors=True)


# What is wrong is said -------------------------------------------------------------------------------------


def test_a_store_that_workers_do_not_see(cells, tmp_path):
    """A folder of the same name on another machine."""
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
    assert f"has ssorl {__version__}, the machine that asks 0.0.7" in answer["why"]


def test_more_than_any_node_has(cells, joined, tmp_path):
    with pytest.raises(SsorlError, match="no machine of the cluster has 2 GPUs and 1 CPU; ask for less"):
        run(cells, tmp_path, Cluster(gpus=2))
    with pytest.raises(SsorlError, match="a batch needs a part of a CPU"):
        run(cells, tmp_path, Cluster(cpus=0))
    assert not list(tmp_path.iterdir())


def test_ray_is_not_installed(cells, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SsorlError, match=r"pip install 'ssorl\[ray\]'"):
        run(cells, tmp_path)


def test_places_that_cannot_be(cells, tmp_path):
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "here"):
        with pytest.raises(SsorlError, match=f"--ray-address {address}: nothing answers there .* give HOST:PORT"):
            run(cells, tmp_path, Cluster(address))
    with pytest.raises(SsorlError, match=r"--ray-share nowhere://x: cannot be reached \(Protocol not known"):
        run(cells, tmp_path, Cluster(share="nowhere://x"))


# The share -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory://study/", "file"])
def test_a_share_holds_what_a_store_does(cells, done, tmp_path, place):
    url = f"{tmp_path}/share" if place == "file" else place
    share, files = RemoteStore(url), ["cell.json", "result.json"]
    share.pull(cells, tmp_path / "a")  # there is nothing yet
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


def test_what_is_cut_short_counts_as_none(cells, done, tmp_path):
    share = RemoteStore(str(tmp_path / "share"))
    share.push(cells[:1], done)
    path = folder(tmp_path / "share", cells[0]) / "result.json"
    path.write_bytes(path.read_bytes()[:100])
    share.pull(cells[:1], tmp_path / "a")
    assert not finished(tmp_path / "a", cells[0])
    share.push(cells[:1], done)
    share.pull(cells[:1], tmp_path / "a")
    assert finished(tmp_path / "a", cells[0])


def test_results_go_last(cells, done, monkeypatch):
    share, names = RemoteStore("memory://order"), []
    monkeypatch.setattr(share.files, "find", lambda path: [][1])
    with pytest.raises(SsorlError, match="--ray-share memory://order: cannot be read"):
        share.push(cells, done)
    monkeypatch.undo()
    monkeypatch.setattr(share, "_send", lambda name, path: names.append(Path(name).name))
    share.push(cells, done)
    assert names == ["cell.json", "result.json"] * 6  # two of them of labels
    names.clear()
    share.push_models(cells, done)
    assert names.count("report.json") == 2 and names[-1] == "report.json" == names[len(names) // 2 - 1]


def test_the_page_names_every_choice(capsys):
    main(["study", "run", "--help"])
    flags = set(re.findall(r"--ray[a-z-]*", capsys.readouterr().out))
    page = (ROOT / "docs" / "clusters.md").read_text()
    assert len(flags) == 5 and [flag for flag in sorted(flags) if f"| `{flag}` |" not in page] == []
