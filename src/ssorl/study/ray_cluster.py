"""Studies on a cluster: each batch of cells is a Ray task, done by whichever machine has room for it.

A task is told its cells as JSON and where results go. It loads or makes the data itself and skips what is done, so it
may be run again anywhere: Ray does so when a machine is lost.
"""

from __future__ import annotations

import json
import math
import os
import platform
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssorl.study import scheduler
from ssorl.study.cell import Cell, digest
from ssorl.study.remote_store import RemoteStore
from ssorl.study.scheduler import MOST_ON_CPU, Outcome, shape
from ssorl.study.store import finished, wait_for_others
from ssorl.utils.cache import root
from ssorl.utils.errors import SsorlError
from ssorl.utils.extras import require
from ssorl.utils.registry import TrustedName
from ssorl.utils.version import __version__

RETRIES = 3  # of a task whose machine or process was lost
AT_ONCE = 256  # batches that Ray is told of at a time
GRACE = 10.0  # seconds that a task has to stop before its process is ended
SEEN = (
    60.0  # seconds until a file that another machine wrote is seen here; network folders remember absence for so long
)


@dataclass(frozen=True)
class Cluster:
    """Where to run, and what each batch has of it."""

    address: str | None = None  # of a Ray cluster; None: the Ray of this machine, started if there is none
    gpus: float | None = None  # for a batch; None: one, if the cluster has any
    cpus: float = 1.0  # for a batch
    share: str | None = None  # an fsspec path for results; None: the store is a folder that all machines see


def run(
    cells: Sequence[Cell],
    store: Path | str,
    cluster: Cluster | None = None,
    tell: Callable[[str, int, str], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Do all cells that are not done, as `schedule.run` does, by the machines of a cluster."""
    cluster, store = cluster or Cluster(), Path(store).absolute()
    share = None if cluster.share is None else RemoteStore(cluster.share)
    with connected(cluster.address) as ray, _marked(store) as mark:
        if share:
            share.pull(cells, store)
        tasks = _Tasks(ray, cluster, share, mark)
        say(tasks.words)
        left = [cell for cell in dict.fromkeys(cells) if not finished(store, cell)]
        return scheduler.run(cells, store, tasks.do, AT_ONCE, tasks.size(left), tell, say, tasks.cancel)


class LostError(Exception):
    """A batch that failed on another machine; the note has what was seen there."""


class _Tasks:
    """The tasks of one run over a study."""

    def __init__(self, ray: Any, cluster: Cluster, share: RemoteStore | None, mark: str) -> None:
        self.ray, self.share = ray, share
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        total = {kind: sum(machine.get(kind, 0) for machine in machines) for kind in ("GPU", "CPU")}
        self.gpus = float(total["GPU"] > 0) if cluster.gpus is None else cluster.gpus
        if self.gpus < 0 or not cluster.cpus > 0:
            raise SsorlError(f"--ray-gpus {self.gpus:g} --ray-cpus {cluster.cpus:g}: a batch needs a part of a CPU")
        from ssorl.agents import AGENTS
        from ssorl.idm import IDMS

        self.slots = sum(_fits(machine, self.gpus, cluster.cpus) for machine in machines)
        need = f"{_count(self.gpus, 'GPU')} and {_count(cluster.cpus, 'CPU')}"
        if not self.slots:
            raise SsorlError(f"no machine of the cluster has {need}; ask for less by --ray-gpus and --ray-cpus")
        have = ", ".join([_count(len(machines), "machine"), *(_count(n, kind) for kind, n in total.items())])
        self.words = f"Ray: {have}; {_count(self.slots, 'batch', 'batches')} at a time with {need} each"
        options = {"num_gpus": self.gpus, "num_cpus": cluster.cpus, "max_retries": RETRIES}
        self.batch, self.room = (ray.remote(**options)(what) for what in (do_batch, room_for))
        self.order = {
            "version": __version__,
            "cwd": os.getcwd(),  # datasets may be named from here
            "cpu": self.gpus == 0,
            "share": cluster.share,
            "mark": None if share else mark,
            # What is known here, so that the task may import it too.
            "agents": AGENTS.importable(),
            "idms": IDMS.importable(),
        }
        self.refs, self.lock, self.stopped = set(), threading.Lock(), False

    def size(self, left: Sequence[Cell]) -> Callable[[list[Cell]], int]:
        """How many cells a batch has: what its device holds, and no more than gives every device its part."""
        even = max(1, math.ceil(len(left) / self.slots))
        asked: dict[tuple, Any] = {}
        for key, group in _by_shape(left).items():
            if self.gpus and group[0].kind == "return" and even > 1:
                order = {**self.order, "cell": group[0].as_json(), "n": len(group)}
                asked[key] = self.room.remote(json.dumps(order))

        def size(group: list[Cell]) -> int:
            holds = MOST_ON_CPU
            if (ref := asked.get(shape(group[0]))) is not None:
                with suppress(self.ray.exceptions.RayError):  # the batch itself will tell
                    holds = self.ray.get(ref)
            return min(even, holds)

        return size

    def do(self, cells: Sequence[Cell], store: Path, tell: Any = None) -> None:
        """Have a batch done, and wait; an `Executor`."""
        order = {**self.order, "store": str(store), "cells": [cell.as_json() for cell in cells]}
        with self.lock:
            if self.stopped:
                raise KeyboardInterrupt
            ref = self.batch.remote(json.dumps(order))
            self.refs.add(ref)
        try:
            told = json.loads(self.ray.get(ref))
        except self.ray.exceptions.RayError as err:
            if self.stopped:
                raise KeyboardInterrupt from None
            if isinstance(err, self.ray.exceptions.RayTaskError):  # it does not even start
                raise LostError(f"a machine of the cluster cannot run ssorl; is it installed there? ({err})") from err
            raise LostError(f"its machine or process was lost, {RETRIES + 1} times ({err})") from err
        finally:
            self.refs.discard(ref)
        if self.share:
            self.share.pull(cells, store)
        if "why" in told:
            err = LostError(told["why"])
            err.add_note(f"on {told['machine']}:\n{told['trace']}")
            raise err
        _await([cell for cell in cells if cell.hash in told["done"]], store, told["machine"])

    def cancel(self) -> None:
        """Stop what is under way; results and checkpoints that are written stay."""
        with self.lock:
            self.stopped = True
            refs = list(self.refs)
        for ref in refs:
            self.ray.cancel(ref)
        late = self.ray.wait(refs, num_returns=len(refs), timeout=GRACE)[1] if refs else []
        for ref in late:
            self.ray.cancel(ref, force=True)


# In a worker -----------------------------------------------------------------------------------------------


def do_batch(text: str) -> str:
    """Do what is not done of a batch. Tells which of its cells are finished, and why the others are not."""
    order = json.loads(text)
    told: dict[str, Any] = {"machine": platform.node(), "done": []}
    cells, store = [Cell.from_json(one) for one in order["cells"]], Path(order["store"])
    try:
        _settle(order)
        if order["share"]:
            store = root() / "cluster" / digest(order["share"])
            _do_apart(cells, store, RemoteStore(order["share"]))
        else:
            from ssorl.study.executor import run_batch

            if not (store / order["mark"]).is_file():
                raise SsorlError(
                    f"{store} on {platform.node()} is not the folder of that name where the study was started; "
                    "give --store a folder that all machines see, or name a --ray-share"
                )
            run_batch(cells, store)
    except (
        KeyboardInterrupt
    ):  # cancelled; no other task may have this process: JAX interrupted at its start stays broken
        os._exit(130)
    except Exception as err:
        told |= {"why": f"{err}" or type(err).__name__, "trace": traceback.format_exc()}
    told["done"] = [cell.hash for cell in cells if finished(store, cell)]
    return json.dumps(told)


def _do_apart(cells: list[Cell], store: Path, share: RemoteStore) -> None:
    """In a store of this machine's own; what is finished is sent away, even if the rest fails."""
    from ssorl.study.executor import run_batch

    share.pull(cells, store)
    share.pull_models([cell for cell in cells if not finished(store, cell)], store)
    try:
        while left := [cell for cell in cells if not finished(store, cell)]:
            run_batch(cells, store)
            if any(not finished(store, cell) for cell in left):
                wait_for_others(store, left)
    finally:
        share.push_models(cells, store)
        share.push(cells, store)


def room_for(text: str) -> int:
    """How many cells of a shape this device holds at once; data that cannot be loaded is the batch's to tell of."""
    order = json.loads(text)
    try:
        _settle(order)
        return scheduler.room([Cell.from_json(order["cell"])] * order["n"])
    except Exception:
        return MOST_ON_CPU


def _settle(order: dict[str, Any]) -> None:
    if order["version"] != __version__:
        raise SsorlError(
            f"{platform.node()} has ssorl {__version__}, the machine that asks {order['version']}; install one on both"
        )
    if order["cpu"]:
        os.environ["JAX_PLATFORMS"] = "cpu"  # the task was given no GPU; read when JAX is first imported
    if os.path.isdir(order["cwd"]):
        os.chdir(order["cwd"])
    if order.get("agents") or order.get("idms"):
        from ssorl.agents import AGENTS
        from ssorl.idm import IDMS

        for name, path in order["agents"].items():
            AGENTS.register(name, AGENTS.find(TrustedName(path)))
        for path in order["idms"].values():  # a cell names the family, not the model
            IDMS.find(TrustedName(path))


# Around ----------------------------------------------------------------------------------------------------


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns that this will be so
    require("ray", "ray")
    import ray
    import ray.exceptions

    return ray


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """With Ray, the package, once it is connected to a cluster; one that was started for this ends with it.

    To be entered before JAX computes anything: a Ray that is started is started by forks, which JAX warns of.
    """
    ray = _ray()
    _reach(address or os.environ.get("RAY_ADDRESS"))
    if ray.is_initialized():  # the caller's own
        yield ray
        return
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as err:
        where = f"--ray-address {address}" if address else "--ray"
        raise SsorlError(
            f"{where}: no connection to Ray ({' '.join(str(err).split())}); `ray status` tells whether one runs, and "
            "`ray stop` clears away the traces of one that crashed"
        ) from err
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str | None) -> None:
    """Refuse an address where nothing answers: Ray would try for many minutes."""
    if address in (None, "auto", "local"):
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as err:
        raise SsorlError(
            f"--ray-address {address}: nothing answers there ({err}); give HOST:PORT as `ray start --head` told it"
        ) from err


@contextmanager
def _marked(store: Path) -> Iterator[str]:
    """A file in the store by which a worker knows that it sees the same folder."""
    name = f".cluster-{uuid.uuid4().hex[:12]}"
    try:
        store.mkdir(parents=True, exist_ok=True)
        (store / name).touch()
    except OSError as err:
        raise SsorlError(f"{store}: cannot be written ({err.strerror}); choose another --store") from err
    try:
        yield name
    finally:
        (store / name).unlink(missing_ok=True)


def _await(cells: Sequence[Cell], store: Path, machine: str) -> None:
    """Wait until results that are written are seen."""
    until = time.monotonic() + SEEN
    while not all(finished(store, cell) for cell in cells):
        if time.monotonic() > until:
            raise SsorlError(f"{store}: results that {machine} wrote there are not seen here; is it the same folder?")
        time.sleep(0.5)


def _by_shape(cells: Sequence[Cell]) -> dict[tuple, list[Cell]]:
    groups: dict[tuple, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(shape(cell), []).append(cell)
    return groups


def _fits(machine: dict[str, float], gpus: float, cpus: float) -> int:
    """Batches that a machine has room for."""
    by_cpu = machine.get("CPU", 0) / cpus
    return int(min(by_cpu, machine.get("GPU", 0) / gpus) if gpus else by_cpu)


def _count(n: float, what: str, many: str = "") -> str:
    return f"{n:g} {what if n == 1 else many or what + 's'}"
