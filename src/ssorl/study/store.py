"""Where results lie: a folder a cell, whole or not there, and the locks by which each is made once.

STORE/cells/HASH/  cell.json (what it is, made where and when), result.json (written last), error.txt (of the last try)
STORE/idms/HASH/   an inverse dynamics model and its report, shared by the agents on one split
STORE/work/HASH/   checkpoints of a batch that is not through
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
OTHER = "choose another --store"


class State(NamedTuple):
    """How far some cells are."""

    done: int
    failed: int  # at the last try
    left: int


def folder(store: Path, cell: Cell) -> Path:
    """Where a cell is."""
    return store / "cells" / cell.hash


def finished(store: Path, cell: Cell) -> bool:
    """Whether its result is there; a result that cannot be read is none."""
    return result(store, cell) is not None


def result(store: Path, cell: Cell) -> dict[str, Any] | None:
    """What a cell came to; None: not yet."""
    return read(folder(store, cell))[0]


def read(home: Path) -> tuple[dict | None, str]:
    """The result in a cell's folder, or none and why."""
    path = home / "result.json"
    try:
        told = read_json(path)
    except FileNotFoundError:
        return None, _failure(home)
    except DamagedError as err:
        why = type(err.__cause__).__name__ if err.__cause__ else "its checksum is wrong"
        return None, f"result.json is not readable ({why}); run the study again"
    except OSError as err:
        return None, f"result.json is not readable ({type(err).__name__}); delete the folder and run the study again"
    if not isinstance(told, dict) or told.get("schema") != SCHEMA:
        return None, "result.json is of another version; delete the folder and run the study again"
    return told, ""


def _failure(home: Path) -> str:
    if (text := _error(home)) is None:
        return "not run yet"
    told = [line.strip() for line in text.split("\n") if line.strip()]
    return f"failed: {told[-1][:200]}" if told else "failed"


def error(store: Path, cell: Cell) -> str | None:
    """Why the last try failed; None: it did not, or another one went well since."""
    return _error(folder(store, cell))


def _error(home: Path) -> str | None:
    with suppress(OSError):
        return (home / "error.txt").read_text(encoding="utf-8", errors="replace")
    return None


def write(store: Path, cell: Cell, told: dict[str, Any], about: dict[str, Any]) -> None:
    """Write a result: whole or not at all, and what it is of first."""
    path, told_cell = folder(store, cell), cell.as_json()
    write_json(path / "cell.json", {"cell": told_cell, "revisions": cell.revisions.as_json(), **about})
    write_json(path / "result.json", {"schema": SCHEMA, "cell": told_cell, **told})
    (path / "error.txt").unlink(missing_ok=True)


def data_of(store: Path, dataset: str) -> dict[str, Any] | None:
    """What the results of a dataset were made from, by the first that tells; None: it has none yet."""
    for path in (store / "cells").glob("*/cell.json"):
        with suppress(OSError, SsorlError, KeyError, TypeError):
            told = read_json(path)
            if told["cell"]["dataset"] == dataset and told["data"]["digest"] and (path.parent / "result.json").exists():
                return told["data"]
    return None


def write_error(store: Path, cell: Cell, text: str) -> None:
    """Keep why it failed, if that is possible: the reason may be a full disk."""
    with suppress(SsorlError, OSError):
        write_text(folder(store, cell) / "error.txt", text)


def state(store: Path, cells: Iterable[Cell]) -> State:
    """Count finished, failed and unfinished cells."""
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
    """Those of the cells that are not finished and that no other process has, for this process alone."""
    with ExitStack() as held:
        mine = []
        for cell in cells:
            if not finished(store, cell) and held.enter_context(folder_lock(folder(store, cell), False, OTHER)):
                if finished(store, cell):  # it became so while we asked
                    continue
                mine.append(cell)
        yield mine


@contextmanager
def holding(folders: Iterable[Path]) -> Iterator[None]:
    """Wait for some folders and have them alone; always in one order, so that two never wait for each other."""
    with ExitStack() as held:
        for path in sorted(set(folders)):
            held.enter_context(folder_lock(path, True, OTHER))
        yield


# Work in progress ------------------------------------------------------------------------------------------


def work(store: Path, cells: Sequence[Cell]) -> Path:
    """Where a batch of cells keeps its checkpoints: the same cells find them again."""
    return store / "work" / digest(sorted(cell.hash for cell in cells))


def begin_work(store: Path, cells: Sequence[Cell]) -> Path:
    """Note which cells the checkpoints to come are of, so that a batch is taken up as it was."""
    path = work(store, cells)
    if not (path / "cells.json").is_file():
        write_text(path / "cells.json", json.dumps([cell.as_json() for cell in cells]))
    return path


def clear_work(path: Path) -> None:
    """Remove a batch's checkpoints, the note of whose they are last: without it nobody would find the rest."""
    for one in path.iterdir() if path.is_dir() else ():
        if one.name != "cells.json":
            shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def begun(store: Path) -> list[list[Cell]]:
    """The batches that were begun and not ended; of those that turn out to be through the checkpoints are removed."""
    found = []
    for path in sorted((store / "work").glob("*/cells.json")):
        try:
            cells = [Cell.from_json(told) for told in json.loads(path.read_text())]
        except (OSError, ValueError, TypeError, AttributeError, RecursionError, SsorlError):
            continue  # of another version, or not ours
        if all(finished(store, cell) for cell in cells):
            clear_work(path.parent)
        else:
            found.append(cells)
    return found


def wait_for_others(store: Path, cells: Sequence[Cell], every: float = 2.0) -> None:
    """Wait until another process has finished one of the cells that it holds, or has let go of it."""
    while True:
        with lock_cells(store, cells) as mine:
            if mine or any(finished(store, cell) for cell in cells):
                return
        time.sleep(every)
