"""Functions that a Ray worker runs: compute a batch, and measure how many cells fit on its device.

Orders and answers are JSON. A worker needs nothing else from the machine that started the study.
"""

from __future__ import annotations

import json
import os
import platform
import traceback
from pathlib import Path
from typing import Any

from ssorl.study import scheduler
from ssorl.study.cell import Cell, digest
from ssorl.study.remote_store import RemoteStore
from ssorl.study.scheduler import MAX_CELLS_ON_CPU
from ssorl.study.store import finished, wait_for_others
from ssorl.utils.cache import root
from ssorl.utils.errors import SsorlError
from ssorl.utils.registry import TrustedName
from ssorl.utils.version import __version__


def do_batch(text: str) -> str:
    """Compute the unfinished cells of a batch.

    Args:
        text: the order as JSON: cells, store, and the state of the machine that started the study.

    Returns:
        JSON with the machine's name, the hashes of the finished cells (`done`) and, after an error, its message (`why`)
        and traceback (`trace`).
    """
    order = json.loads(text)
    answer: dict[str, Any] = {"machine": platform.node(), "done": []}
    cells, store = [Cell.from_json(stored) for stored in order["cells"]], Path(order["store"])
    try:
        _set_up(order)
        if order["share"]:
            store = root() / "cluster" / digest(order["share"])
            _do_in_own_store(cells, store, RemoteStore(order["share"]))
        else:
            from ssorl.study.executor import run_batch

            if not (store / order["mark"]).is_file():
                raise SsorlError(
                    f"{store} on {platform.node()} is not the folder of that name where the study was started; "
                    "give --store a folder that all machines see, or name a --ray-share"
                )
            run_batch(cells, store)
    except KeyboardInterrupt:
        # The task was cancelled. If JAX was interrupted while it started, no other task may use this process.
        os._exit(130)
    except Exception as err:
        answer |= {"why": f"{err}" or type(err).__name__, "trace": traceback.format_exc()}
    answer["done"] = [cell.hash for cell in cells if finished(store, cell)]
    return json.dumps(answer)


def _do_in_own_store(cells: list[Cell], store: Path, share: RemoteStore) -> None:
    """Compute cells in a store of this machine; send finished results to the share, even if other cells fail."""
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
    """Return how many cells of a shape fit on the device of this worker.

    Args:
        text: the order as JSON: one cell of the shape and the number of cells.

    Returns:
        The number of cells. If it cannot be measured, for example because the dataset cannot be loaded, a default: the
        batch will raise the error.
    """
    order = json.loads(text)
    try:
        _set_up(order)
        return scheduler.room([Cell.from_json(order["cell"])] * order["n"])
    except Exception:
        return MAX_CELLS_ON_CPU


def _set_up(order: dict[str, Any]) -> None:
    """Check the version, and set device, working directory and registries as on the machine that sent the order."""
    if order["version"] != __version__:
        raise SsorlError(
            f"{platform.node()} has ssorl {__version__}, but the study was started with ssorl {order['version']}; "
            "install the same version on both machines"
        )
    if order["cpu"]:
        os.environ["JAX_PLATFORMS"] = "cpu"  # the task has no GPU; JAX reads this when it is first imported
    if os.path.isdir(order["cwd"]):
        os.chdir(order["cwd"])
    if order.get("agents") or order.get("idms"):
        from ssorl.agents import AGENTS
        from ssorl.idm import IDMS

        for name, path in order["agents"].items():
            AGENTS.register(name, AGENTS.find(TrustedName(path)))
        for path in order["idms"].values():  # a cell names the IDM's family, so import the module that registers it
            IDMS.find(TrustedName(path))
