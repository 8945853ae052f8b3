"""The store of results: one folder for each cell, complete or absent, with locks so that each is computed once.

STORE/cells/HASH/  cell.json (settings, provenance), result.json (written last), error.txt (error of the last attempt)
STORE/idms/HASH/   an inverse dynamics model and its report, shared by the agents on one split
STORE/work/HASH/   checkpoints of an unfinished batch
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ssorl.study.cell import Cell, digest
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import DamagedError, read_json, write_json, write_text
from ssorl.utils.locks import folder_lock

SCHEMA = 1
CURE = "choose another --store"  # cure for a folder that cannot be written


class State(NamedTuple):
    """Numbers of cells by progress."""

    done: int
    failed: int  # cells that failed at the last attempt; `left` counts them, too
    left: int  # not finished


def folder(store: Path, cell: Cell) -> Path:
    """Return the folder of a cell.

    Args:
        store: the store's folder.
        cell: the cell.
    """
    return store / "cells" / cell.hash


def finished(store: Path, cell: Cell) -> bool:
    """Return whether a cell has a result that can be read."""
    return result(store, cell) is not None


def result(store: Path, cell: Cell) -> dict[str, Any] | None:
    """Return the content of a cell's result.json, or None if the cell is not finished."""
    return read(folder(store, cell))[0]


def read(home: Path) -> tuple[dict | None, str]:
    """Return the result in a cell's folder and "", or None and the reason.

    Args:
        home: the cell's folder.
    """
    path = home / "result.json"
    try:
        stored = read_json(path)
    except FileNotFoundError:
        return None, _failure(home)
    except DamagedError as err:
        why = type(err.__cause__).__name__ if err.__cause__ else "its checksum is wrong"
        return None, f"result.json is not readable ({why}); run the study again"
    except OSError as err:
        return None, f"result.json is not readable ({type(err).__name__}); delete the folder and run the study again"
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA:
        return None, "result.json is of another version; delete the folder and run the study again"
    return stored, ""


def _failure(home: Path) -> str:
    if (text := _error(home)) is None:
        return "not run yet"
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return f"failed: {lines[-1][:200]}" if lines else "failed"


def error(store: Path, cell: Cell) -> str | None:
    """Return the traceback of a cell's last attempt, or None if it did not fail."""
    return _error(folder(store, cell))


def _error(home: Path) -> str | None:
    with suppress(OSError):
        return (home / "error.txt").read_text(encoding="utf-8", errors="replace")
    return None


def write(store: Path, cell: Cell, values: dict[str, Any], about: dict[str, Any]) -> None:
    """Write a cell's result atomically, after its provenance.

    Args:
        store: the store's folder.
        cell: the cell.
        values: content of result.json besides the cell.
        about: content of cell.json besides the cell: versions, hardware, data, seconds.
    """
    path, settings = folder(store, cell), cell.as_json()
    write_json(path / "cell.json", {"cell": settings, "revisions": cell.revisions.as_json(), **about})
    write_json(path / "result.json", {"schema": SCHEMA, "cell": settings, **values})
    (path / "error.txt").unlink(missing_ok=True)


def recorded_data(store: Path, dataset: str) -> dict[str, Any] | None:
    """Return the record (digest, sizes, metadata) of the data that a store's results were computed from.

    Args:
        store: the store's folder.
        dataset: name of the dataset.

    Returns:
        The record in the first finished cell of the dataset, or None if there is none.
    """
    for path in (store / "cells").glob("*/cell.json"):
        with suppress(OSError, SsorlError, KeyError, TypeError):
            about = read_json(path)
            same = about["cell"]["dataset"] == dataset
            if same and about["data"]["digest"] and (path.parent / "result.json").exists():
                return about["data"]
    return None


def write_error(store: Path, cell: Cell, text: str) -> None:
    """Write the traceback of a failed cell, if possible: the error may be that the disk is full."""
    with suppress(SsorlError, OSError):
        write_text(folder(store, cell) / "error.txt", text)


def state(store: Path, cells: Iterable[Cell]) -> State:
    """Return the numbers of finished, failed and unfinished cells."""
    done = failed = left = 0
    for cell in cells:
        if finished(store, cell):
            done += 1
        else:
            left += 1
            failed += error(store, cell) is not None
    return State(done, failed, left)


# Locks -----------------------------------------------------------------------------------------------------


@contextmanager
def lock_cells(store: Path, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Lock the unfinished cells that no other process has locked, and yield them; the block never waits."""
    with ExitStack() as held:
        mine = []
        for cell in cells:
            if not finished(store, cell) and held.enter_context(folder_lock(folder(store, cell), False, CURE)):
                if finished(store, cell):  # another process finished it before we had the lock
                    continue
                mine.append(cell)
        yield mine


@contextmanager
def lock_folders(folders: Iterable[Path]) -> Iterator[None]:
    """Wait for the locks of folders and hold them; the order is fixed, so that two processes cannot deadlock."""
    with ExitStack() as held:
        for path in sorted(set(folders)):
            held.enter_context(folder_lock(path, True, CURE))
        yield


# Checkpoints of unfinished batches -------------------------------------------------------------------------


def work_folder(store: Path, cells: Sequence[Cell]) -> Path:
    """Return the folder of a batch's checkpoints; its name depends only on the set of cells."""
    return store / "work" / digest(sorted(cell.hash for cell in cells))


def begin_work(store: Path, cells: Sequence[Cell]) -> Path:
    """Create the folder of a batch's checkpoints, record the batch's cells in it, and return it."""
    path = work_folder(store, cells)
    if not (path / "cells.json").is_file():
        write_text(path / "cells.json", json.dumps([cell.as_json() for cell in cells]))
    return path


def clear_work(path: Path) -> None:
    """Remove a batch's checkpoints; cells.json goes last, so that an interrupted removal can be completed later.

    Args:
        path: the folder that `begin_work` returned.
    """
    for entry in path.iterdir() if path.is_dir() else ():
        if entry.name != "cells.json":
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def unfinished_batches(store: Path) -> list[list[Cell]]:
    """Return the batches with checkpoints and unfinished cells; remove the checkpoints of finished batches."""
    batches = []
    for path in sorted((store / "work").glob("*/cells.json")):
        try:
            cells = [Cell.from_json(stored) for stored in json.loads(path.read_text())]
        except (OSError, ValueError, TypeError, AttributeError, RecursionError, SsorlError):
            continue  # written by another version or by another program
        if all(finished(store, cell) for cell in cells):
            clear_work(path.parent)
        else:
            batches.append(cells)
    return batches


def wait_for_others(store: Path, cells: Sequence[Cell], every: float = 2.0) -> None:
    """Wait until a cell is finished or no other process holds its lock.

    Args:
        store: the store's folder.
        cells: unfinished cells.
        every: seconds between checks.
    """
    while True:
        with lock_cells(store, cells) as mine:
            if mine or any(finished(store, cell) for cell in cells):
                return
        time.sleep(every)
