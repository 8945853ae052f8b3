"""Run studies on a Ray cluster: each batch of cells is a task on a machine that has room for it.

A task receives its cells as JSON and the place of the results. It loads the data itself and skips finished cells, so
Ray can repeat it on another machine if a machine is lost.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssorl.study import scheduler
from ssorl.study.cell import Cell
from ssorl.study.ray_worker import do_batch, room_for
from ssorl.study.remote_store import RemoteStore
from ssorl.study.scheduler import MAX_CELLS_ON_CPU, Outcome, shape
from ssorl.study.store import finished
from ssorl.utils.errors import SsorlError
from ssorl.utils.extras import require
from ssorl.utils.version import __version__

RETRIES = 3  # attempts after the machine or process of a task was lost
MAX_TASKS = 256  # batches that are submitted to Ray at a time
GRACE = 10.0  # seconds that a cancelled task has before its process is ended
VISIBLE_AFTER = 60.0  # seconds until this machine sees another machine's file; network folders cache its absence


@dataclass(frozen=True)
class Cluster:
    """A cluster, and the resources of each batch."""

    address: str | None = None  # address of a Ray cluster; None: Ray on this machine, which is started if necessary
    gpus: float | None = None  # GPUs of one batch; None: 1 if the cluster has GPUs, else 0
    cpus: float = 1.0  # CPUs of one batch
    share: str | None = None  # fsspec path for results; None: the store is a folder that all machines see


def run(
    cells: Sequence[Cell],
    store: Path | str,
    cluster: Cluster | None = None,
    progress: Callable[[str, int, str], None] | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Compute all unfinished cells on a cluster, as `scheduler.run` does on this machine.

    Args:
        cells: cells of a study.
        store: the store's folder.
        cluster: the cluster; None: Ray on this machine.
        progress: called with the number of finished cells.
        notify: called with a sentence about the cluster and about each failure.

    Raises:
        SsorlError: the cluster, the store or the share cannot be used.
    """
    cluster, store = cluster or Cluster(), Path(store).absolute()
    share = None if cluster.share is None else RemoteStore(cluster.share)
    with connected(cluster.address) as ray, _marked(store) as mark:
        if share:
            share.pull(cells, store)
        tasks = _Tasks(ray, cluster, share, mark)
        notify(tasks.summary)
        left = [cell for cell in dict.fromkeys(cells) if not finished(store, cell)]
        size = tasks.size(left)
        return scheduler.run(cells, store, tasks.do, MAX_TASKS, size, progress, notify, tasks.cancel)


class LostError(Exception):
    """A batch failed on another machine; the note holds that machine's traceback."""


class _Tasks:
    """The Ray tasks of one call of `run`."""

    def __init__(self, ray: Any, cluster: Cluster, share: RemoteStore | None, mark: str) -> None:
        self.ray, self.share = ray, share
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        total = {kind: sum(machine.get(kind, 0) for machine in machines) for kind in ("GPU", "CPU")}
        self.gpus = float(total["GPU"] > 0) if cluster.gpus is None else cluster.gpus
        if self.gpus < 0 or not cluster.cpus > 0:
            raise SsorlError(
                f"--ray-gpus {self.gpus:g} --ray-cpus {cluster.cpus:g}: give GPUs from 0 up and CPUs above 0"
            )
        from ssorl.agents import AGENTS
        from ssorl.idm import IDMS

        self.slots = sum(_slots(machine, self.gpus, cluster.cpus) for machine in machines)
        need = f"{_count(self.gpus, 'GPU')} and {_count(cluster.cpus, 'CPU')}"
        if not self.slots:
            raise SsorlError(f"no machine of the cluster has {need}; ask for less by --ray-gpus and --ray-cpus")
        have = ", ".join([_count(len(machines), "machine"), *(_count(n, kind) for kind, n in total.items())])
        self.summary = f"Ray: {have}; {_count(self.slots, 'batch', 'batches')} at a time with {need} each"
        options = {"num_gpus": self.gpus, "num_cpus": cluster.cpus, "max_retries": RETRIES}
        self.batch, self.room = (ray.remote(**options)(function) for function in (do_batch, room_for))
        self.order = {
            "version": __version__,
            "cwd": os.getcwd(),  # paths of datasets may be relative to it
            "cpu": self.gpus == 0,
            "share": cluster.share,
            "mark": None if share else mark,
            # Agents and IDMs of other packages, so that the task can import them too.
            "agents": AGENTS.importable(),
            "idms": IDMS.importable(),
        }
        self.refs, self.lock, self.stopped = set(), threading.Lock(), False

    def size(self, left: Sequence[Cell]) -> Callable[[list[Cell]], int]:
        """Return a function that gives the batch size of a shape: what a device holds, at most an even share."""
        even = max(1, math.ceil(len(left) / self.slots))
        room: dict[tuple, Any] = {}
        for key, group in _by_shape(left).items():
            if self.gpus and group[0].kind == "return" and even > 1:
                order = {**self.order, "cell": group[0].as_json(), "n": len(group)}
                room[key] = self.room.remote(json.dumps(order))

        def size(group: list[Cell]) -> int:
            fits = MAX_CELLS_ON_CPU
            if (ref := room.get(shape(group[0]))) is not None:
                with suppress(self.ray.exceptions.RayError):  # the batch itself will report the error
                    fits = self.ray.get(ref)
            return min(even, fits)

        return size

    def do(self, cells: Sequence[Cell], store: Path, progress: Any = None) -> None:
        """Submit a batch and wait for it; a `scheduler.Executor`."""
        order = {**self.order, "store": str(store), "cells": [cell.as_json() for cell in cells]}
        with self.lock:
            if self.stopped:
                raise KeyboardInterrupt
            ref = self.batch.remote(json.dumps(order))
            self.refs.add(ref)
        try:
            answer = json.loads(self.ray.get(ref))
        except self.ray.exceptions.RayError as err:
            if self.stopped:
                raise KeyboardInterrupt from None
            if isinstance(err, self.ray.exceptions.RayTaskError):  # the task did not start
                raise LostError(f"a machine of the cluster cannot run ssorl; is it installed there? ({err})") from err
            raise LostError(f"its machine or process was lost, {RETRIES + 1} times ({err})") from err
        finally:
            self.refs.discard(ref)
        if self.share:
            self.share.pull(cells, store)
        if "why" in answer:
            err = LostError(answer["why"])
            err.add_note(f"on {answer['machine']}:\n{answer['trace']}")
            raise err
        _wait_until_visible([cell for cell in cells if cell.hash in answer["done"]], store, answer["machine"])

    def cancel(self) -> None:
        """Stop all submitted tasks; results and checkpoints that are written stay."""
        with self.lock:
            self.stopped = True
            refs = list(self.refs)
        for ref in refs:
            self.ray.cancel(ref)
        late = self.ray.wait(refs, num_returns=len(refs), timeout=GRACE)[1] if refs else []
        for ref in late:
            self.ray.cancel(ref, force=True)


# Connection ------------------------------------------------------------------------------------------------


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the future default; without it, Ray warns
    require("ray", "ray")
    import ray
    import ray.exceptions

    return ray


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """Connect to a cluster and yield the package Ray. A cluster that this function starts ends with the block.

    Enter the block before JAX computes anything: Ray starts processes by fork, about which JAX warns.

    Args:
        address: address of the cluster; None: the environment variable RAY_ADDRESS, or Ray on this machine.

    Raises:
        SsorlError: Ray is not installed, or the cluster does not answer.
    """
    ray = _ray()
    _check_reachable(address or os.environ.get("RAY_ADDRESS"))
    if ray.is_initialized():  # by the caller, who also ends it
        yield ray
        return
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as err:
        where = f"--ray-address {address}" if address else "--ray"
        raise SsorlError(
            f"{where}: no connection to Ray ({' '.join(str(err).split())}); check with `ray status` whether a cluster "
            "runs, and remove the remains of a crashed one with `ray stop`"
        ) from err
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Raise if nothing answers at an address; Ray itself would try for many minutes."""
    if address in (None, "auto", "local"):
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as err:
        raise SsorlError(
            f"--ray-address {address}: nothing answers there ({err}); give HOST:PORT as `ray start --head` printed it"
        ) from err


@contextmanager
def _marked(store: Path) -> Iterator[str]:
    """Create a file in the store, by which a worker can check that it sees the same folder; yield its name."""
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


def _wait_until_visible(cells: Sequence[Cell], store: Path, machine: str) -> None:
    """Wait until this machine sees results that another machine has written."""
    until = time.monotonic() + VISIBLE_AFTER
    while not all(finished(store, cell) for cell in cells):
        if time.monotonic() > until:
            raise SsorlError(
                f"{store}: this machine does not see the results that {machine} wrote; give --store a folder that all "
                "machines see, or name a --ray-share"
            )
        time.sleep(0.5)


def _by_shape(cells: Sequence[Cell]) -> dict[tuple, list[Cell]]:
    groups: dict[tuple, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(shape(cell), []).append(cell)
    return groups


def _slots(machine: dict[str, float], gpus: float, cpus: float) -> int:
    """Return how many batches a machine can run at a time."""
    by_cpu = machine.get("CPU", 0) / cpus
    return int(min(by_cpu, machine.get("GPU", 0) / gpus) if gpus else by_cpu)


def _count(n: float, singular: str, plural: str = "") -> str:
    return f"{n:g} {singular if n == 1 else plural or singular + 's'}"
