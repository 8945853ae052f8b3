"""Schedule cells: group them into batches, run the batches in order, and retry those that fail."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ssorl.study.cell import Cell
from ssorl.study.store import finished, unfinished_batches, wait_for_others, write_error
from ssorl.utils.errors import ChangedError, SsorlError

MAX_CELLS = 64  # in a batch for each device; larger batches are not faster, and a failure costs the whole batch
BUSY_BYTES = 8 << 30  # working set of updates that keeps a device busy: four DTs, eight CQLs
MAX_CELLS_ON_CPU = 16  # a CPU trains one cell after another
MIN_FREE_BYTES = 32 << 20  # with less space on the disk, a failure to write stops the study

# Computes one batch: called with its cells, the store and a progress callback, as `executor.run_batch`.
Executor = Callable[[Sequence[Cell], Path, Callable[[str, int, str], None] | None], None]


class Outcome(NamedTuple):
    """The result of `run`."""

    done: int  # finished cells, including those that were finished before
    failed: dict[Cell, str]  # error of each failed cell, in one line


def shape(cell: Cell) -> tuple:
    """Return what the cells of a batch must have in common: the data and, if they train, the agent and evaluation."""
    same = (cell.kind, cell.dataset, cell.agent, cell.settings, cell.env, cell.episodes, cell.policy, cell.looks)
    return same if cell.kind == "return" else (cell.kind, cell.dataset)


def batches(
    cells: Iterable[Cell], store: Path, size: int | Callable[[list[Cell]], int] = MAX_CELLS_ON_CPU
) -> list[list[Cell]]:
    """Return the unfinished cells in batches of one shape; interrupted batches come first and stay as they were.

    Args:
        cells: cells of a study.
        store: the store's folder.
        size: largest number of cells in a batch, or a function that returns it for the cells of one shape.
    """
    todo = dict.fromkeys(cell for cell in cells if not finished(store, cell))
    out = []
    for batch in unfinished_batches(store):
        left = [cell for cell in batch if not finished(store, cell)]
        if all(cell in todo for cell in left):
            out.append(batch)
            for cell in left:
                del todo[cell]
    groups: dict[tuple, list[Cell]] = {}
    for cell in todo:
        groups.setdefault(shape(cell), []).append(cell)
    # Sort by dataset, so that each is loaded once.
    for group in sorted(groups.values(), key=lambda group: group[0].dataset):
        # Batches mix baseline and SS alike, so that they share a compiled program.
        group.sort(key=lambda cell: (cell.seed, cell.variant == "oracle", cell.recipe, cell.variant or ""))
        n = -(-len(group) // (size if isinstance(size, int) else size(group)))
        cuts = [round(i * len(group) / n) for i in range(n + 1)]
        out += [group[a:b] for a, b in pairwise(cuts)]
    return out


def room(group: list[Cell]) -> int:
    """Return how many cells of a shape fit on the devices of this machine at once.

    Args:
        group: cells of one shape.
    """
    import jax

    from ssorl.study.executor import dataset, plan_of, split_lengths
    from ssorl.training.engine import settled
    from ssorl.training.memory import max_runs, sizes, table_bytes
    from ssorl.training.tables import round_up

    if jax.default_backend() == "cpu" or group[0].kind != "return":
        return MAX_CELLS_ON_CPU
    try:
        eps = dataset(group[0].dataset).eps
        agent, own = settled(plan_of(group[0], eps).agent), 0
    except SsorlError:  # the batch will raise the same error
        return MAX_CELLS_ON_CPU
    need = sizes(agent, eps.n_steps, len(eps), eps.n_obs, eps.n_act)
    # A decoupled split leaves out trajectories, so each of its cells has a data table of its own.
    if by_split := {(cell.recipe, cell.seed): cell for cell in group if cell.setup == "decoupled"}:
        lengths = [split_lengths(cell, eps) for cell in by_split.values()]
        n_steps = max(int(own_lengths.sum()) for own_lengths in lengths)
        own = 2 * table_bytes(n_steps, n_steps + max(map(len, lengths)), eps.n_obs)  # rounding up at most doubles it
        shared = any(cell.setup != "decoupled" for cell in group)
        longest = round_up(max(n_steps, eps.n_steps * shared))
        need = sizes(agent, longest, 0, eps.n_obs, eps.n_act)._replace(table=2 * need.table * shared)
    useful = max(1, min(MAX_CELLS, BUSY_BYTES // need.work)) * len(jax.local_devices())
    return max_runs(need, min(len(group), useful), own)


def run(
    cells: Sequence[Cell],
    store: Path | str,
    executor: Executor | None = None,
    workers: int = 1,
    size: int | Callable[[list[Cell]], int] = room,
    progress: Callable[[str, int, str], None] | None = None,
    notify: Callable[[str], None] = lambda text: None,
    cancel: Callable[[], None] = lambda: None,
) -> Outcome:
    """Compute all unfinished cells, batch by batch.

    A batch that fails is tried again, and then its cells one by one. The errors of cells that fail again are written to
    the store, and the other cells continue. Cells that another process computes are waited for.

    Args:
        cells: cells of a study.
        store: the store's folder.
        executor: computes one batch; None: `executor.run_batch` in this process.
        workers: number of batches at a time.
        size: largest number of cells in a batch, or a function that returns it for the cells of one shape.
        progress: called with a stage, the number of further updates, steps or cells, and a note.
        notify: called with a sentence about each failure.
        cancel: called to end the batches of other threads after Ctrl-C or if the disk is full.

    Raises:
        SsorlError: the store cannot be written, the disk is full, or a cell names an unknown environment.
        ChangedError: a dataset has changed since results were computed from it.
    """
    from ssorl.envs import require_trusted
    from ssorl.envs.registry import horizon
    from ssorl.study.datasets import check_unchanged
    from ssorl.study.executor import WITHOUT_MODULE, run_batch

    store = Path(store)
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise SsorlError(f"{store}: cannot be written ({err.strerror}); choose another --store") from err
    progress = progress or (lambda stage, n, note="": None)
    job = _Job(list(dict.fromkeys(cells)), store, executor or run_batch, progress, notify)
    waiting = batches(job.cells, store, size)
    for name in {cell.dataset for cell in job.cells} - {cell.dataset for batch in waiting for cell in batch}:
        if Path(name).exists():  # no batch will check this file, because all its cells are finished
            check_unchanged(store, name)
    if executor is None:  # raise on unknown environments before the first batch starts
        for env in sorted({cell.env for batch in waiting for cell in batch if cell.env}):
            horizon(require_trusted(env, f"a cell of {store}", WITHOUT_MODULE))
    while waiting:
        if workers == 1:
            for batch in waiting:
                job.attempt(batch)
        else:
            with ThreadPoolExecutor(workers) as pool:
                try:
                    list(pool.map(job.attempt, waiting))
                except BaseException:
                    cancel()
                    raise
        waiting = [left for batch in waiting if (left := job.left(batch))]
        if waiting:
            wait_for_others(store, [cell for batch in waiting for cell in batch])
    return Outcome(sum(finished(store, cell) for cell in job.cells), job.failed)


class _Job:
    """The state of one call of `run`."""

    def __init__(self, cells: list[Cell], store: Path, executor: Executor, progress: Any, notify: Any) -> None:
        self.cells, self.store, self.executor, self.progress, self.notify = cells, store, executor, progress, notify
        self.failed: dict[Cell, str] = {}
        self.counted = {cell for cell in cells if finished(store, cell)}
        self.lock = threading.Lock()

    def left(self, batch: Sequence[Cell]) -> list[Cell]:
        """Return the cells of a batch that are neither finished nor failed."""
        return [cell for cell in batch if cell not in self.failed and not finished(self.store, cell)]

    def attempt(self, batch: Sequence[Cell]) -> None:
        """Run a batch, at most twice, and then its unfinished cells one by one."""
        try:
            for is_retry in (False, True):
                err = self._try(batch)
                if err is None:
                    return
                if is_retry and len(batch) == 1:
                    self._give_up(batch[0], err)
                elif is_retry:
                    self.notify(f"the batch failed again ({_line(err)}); running its cells one by one")
                    self._one_by_one(batch)
                else:
                    self.notify(f"a batch of {len(batch)} cells failed ({_line(err)}); trying it again")
        finally:
            self._count(batch)

    def _one_by_one(self, batch: Sequence[Cell]) -> None:
        for cell in self.left(batch):
            if err := self._try([cell]):
                self._give_up(cell, err)

    def _try(self, batch: Sequence[Cell]) -> Exception | None:
        try:
            self.executor(batch, self.store, self.progress)
        except ChangedError:  # it would stop every cell of the dataset
            raise
        except Exception as err:
            if _disk_was_full(err) and shutil.disk_usage(self.store).free < MIN_FREE_BYTES:
                raise SsorlError(
                    f"{self.store}: the disk is full ({_line(err)}); free some space and repeat the command, which "
                    "continues from here"
                ) from err
            return err
        return None

    def _give_up(self, cell: Cell, err: Exception) -> None:
        self.failed[cell] = _line(err)
        write_error(self.store, cell, "".join(traceback.format_exception(err)))
        self.notify(f"cell {cell.hash} failed: {_line(err)}")

    def _count(self, batch: Sequence[Cell]) -> None:
        with self.lock:
            new = {cell for cell in batch if cell not in self.counted and finished(self.store, cell)}
            self.counted |= new
            if new:
                self.progress("cells", len(new), "")


def _disk_was_full(err: BaseException | None) -> bool:
    """Return whether a full disk caused an error; errors of remote workers are recognised by their text."""
    while err is not None:
        if getattr(err, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        if any(os.strerror(n) in str(err) for n in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
            return True
        err = err.__cause__ or err.__context__
    return False


def _line(err: Exception) -> str:
    return " ".join(str(err).split())[:300] or type(err).__name__
