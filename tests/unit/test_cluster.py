"""Studies on a real Ray cluster of several nodes on this machine: the same results, whatever becomes of a node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ssorl.data import save
from ssorl.errors import SsorlError
from ssorl.study import cluster as clusters
from ssorl.study import schedule
from ssorl.study.cells import error, finished, folder, result, state
from ssorl.study.cluster import Cluster, do_batch, run
from ssorl.study.grid import Cell, Grid, Study, resolve
from ssorl.study.scales import SCALES
from ssorl.study.share import Share

IDM = {"hidden": (8,), "steps": 40, "validate_every": 20, "batch": 32, "lr": 1e-3}
BASE = {
    "agent": "bc",
    "fraction": 0.2,
    "settings": {"hidden": (8,), "batch": 16, "updates": 20},
    "idm_settings": IDM,
    "episodes": 2,
}


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
    assert schedule.run(cells, store) == (4, {})
    return store


class Nodes:
    """A cluster in a process of its own: a head that does nothing itself and two nodes with a core each."""

    def __init__(self, home: str) -> None:
        env = {**os.environ, "RAY_TMPDIR": home, "RAY_USAGE_STATS_ENABLED": "0"}
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
    made.process.communicate(timeout=60)
    shutil.rmtree(home, ignore_errors=True)


def told(store: Path, cell: Cell) -> dict:
    """All of a result that is no matter of time."""
    found = result(store, cell)
    assert found is not None
    return {k: v for k, v in found.items() if k != "timings"}


def until(there: Callable[[], object], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def begun(store: Path) -> list[Path]:
    return list((store / "work").glob("*/cells.json"))


def alone(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


# On several nodes ------------------------------------------------------------------------------------------


def test_a_node_lost_in_the_middle(cells, done, nodes, tmp_path):
    """Both nodes have a batch in hand when one is killed: its batch is done by the other, and nothing twice."""
    at_kill: dict[str, Any] = {}

    def kill() -> None:
        until(lambda: len(begun(tmp_path)) == 2)
        nodes.ask("made.remove_node(nodes.pop(), allow_graceful=False)")
        at_kill["done"] = state(tmp_path, cells).done
        at_kill["time"] = time.time()

    killer, heard, said = alone(kill), [], []
    outcome = run(cells, tmp_path, Cluster(nodes.address), lambda *what: heard.append(what), said.append)
    killer.join(10)
    assert outcome == (4, {}) and at_kill["done"] <= 2
    assert [told(tmp_path, cell) for cell in cells] == [told(done, cell) for cell in cells]
    assert said == ["Ray: 3 machines, 0 GPUs, 2 CPUs; 2 batches at a time with 0 GPUs and 1 CPUs each"]
    assert sum(n for what, n, _ in heard if what == "cells") == 4
    after = [cell for cell in cells if (folder(tmp_path, cell) / "result.json").stat().st_mtime > at_kill["time"]]
    assert len(after) == 4 - at_kill["done"] >= 2
    assert not any(map(list, ((tmp_path / "work").iterdir(), tmp_path.glob(".cluster-*"), tmp_path.rglob(".tmp-*"))))
