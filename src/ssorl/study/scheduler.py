"""Which cells are done together, in what order, and what happens when some fail."""

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
from ssorl.study.store import begun, finished, wait_for_others, write_error
from ssorl.utils.errors import ChangedError, SsorlError

MOST = 64  # cells in a batch for each device: more gain no speed, and a batch is what a failure takes with it
ENOUGH = 8 << 30  # bytes that updates work on at once; that much keeps a device busy: four DTs, eight CQLs
MOST_ON_CPU = 16  # where they go one after another anyhow
FULL = 32 << 20  # bytes; with less left on the disk it is no use to go on

# Does one batch: called with its cells, the store and who is told of progress; `execute.run_batch` is one.
Executor = Callable[[Sequence[Cell], Path, Callable[[str, int, str], None] | None], None]


class Outcome(NamedTuple):
    """What a run over a study came to."""

    done: int  # cells that are finished, new and old
    failed: dict[Cell, str]  # why, in a line


def shape(cell: Cell) -> tuple:
    """Cells of one shape can be one batch: the same data and, where they train, the same agent and evaluation."""
    same = (cell.kind, cell.dataset, cell.agent, cell.settings, cell.env, cell.episodes, cell.policy, cell.looks)
    return same if cell.kind == "return" else (cell.kind, cell.dataset)


def batches(
    cells: Iterable[Cell], store: Path, size: int | Callable[[list[Cell]], int] = MOST_ON_CPU
) -> list[list[Cell]]:
    """The unfinished cells in batches of at most `size`; those begun before come first and as they were."""
    todo = dict.fromkeys(cell for cell in cells if not finished(store, cell))
    out = []
    for batch in begun(store):
        left = [cell for cell in batch if not finished(store, cell)]
        if all(cell in todo for cell in left):
            out.append(batch)
            for cell in left:
                del todo[cell]
    groups: dict[tuple, list[Cell]] = {}
    for cell in todo:
        groups.setdefault(shape(cell), []).append(cell)
    # Dataset after dataset, so that each is loaded once.
    for group in sorted(groups.values(), key=lambda group: group[0].dataset):
        # Baseline beside SS: each batch has the same mixture, and so the same compiled program.
        group.sort(key=lambda cell: (cell.seed, cell.variant == "oracle", cell.recipe, cell.variant or ""))
        n = -(-len(group) // (size if isinstance(size, int) else size(group)))
        cuts = [round(i * len(group) / n) for i in range(n + 1)]
        out += [group[a:b] for a, b in pairwise(cuts)]
    return out


def room(group: list[Cell]) -> int:
    """How many cells of a shape the devices of this machine hold at once."""
    import jax

    from ssorl.study.executor import dataset, lengths_left, plan_of
    from ssorl.training.engine import settled
    from ssorl.training.memory import fitting, sizes, table_bytes
    from ssorl.training.tables import rounded

    if jax.default_backend() == "cpu" or group[0].kind != "return":
        return MOST_ON_CPU
    try:
        eps = dataset(group[0].dataset).eps
        agent, own = settled(plan_of(group[0], eps).agent), 0
    except SsorlError:  # the batch's to tell of
        return MOST_ON_CPU
    need = sizes(agent, eps.n_steps, len(eps), eps.n_obs, eps.n_act)
    if apart := {(cell.recipe, cell.seed): cell for cell in group if cell.setup == "decoupled"}:
        left = [lengths_left(cell, eps) for cell in apart.values()]
        n_steps = max(int(lengths.sum()) for lengths in left)
        own = 2 * table_bytes(n_steps, n_steps + max(map(len, left)), eps.n_obs)  # rounding does not double it
        shared = any(cell.setup != "decoupled" for cell in group)
        longest = rounded(max(n_steps, eps.n_steps * shared))
        need = sizes(agent, longest, 0, eps.n_obs, eps.n_act)._replace(table=2 * need.table * shared)
    some = max(1, min(MOST, ENOUGH // need.work)) * len(jax.local_devices())
    return fitting(need, min(len(group), some), own)


def run(
    cells: Sequence[Cell],
    store: Path | str,
    executor: Executor | None = None,
    workers: int = 1,
    size: int | Callable[[list[Cell]], int] = room,
    tell: Callable[[str, int, str], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], None] = lambda: None,
) -> Outcome:
    """Do all cells that are not done, batch after batch, or `workers` batches at a time.

    A batch that fails is tried once more, then its cells one by one; whatever fails again keeps its error and the rest
    goes on. Cells that another process has in hand are waited for. `tell` hears of progress, `say` of what went wrong.
    `stop` is to end batches that other threads wait for, when it makes no sense to go on: Ctrl-C, a full disk.
    """
    from ssorl.envs import require_trusted
    from ssorl.envs.registry import horizon
    from ssorl.study.executor import BY_ID_ALONE, check_data, run_batch

    store = Path(store)
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise SsorlError(f"{store}: cannot be written ({err.strerror}); choose another --store") from err
    job = _Job(list(dict.fromkeys(cells)), store, executor or run_batch, tell or (lambda what, n, note="": None), say)
    waiting = batches(job.cells, store, size)
    for name in {cell.dataset for cell in job.cells} - {cell.dataset for batch in waiting for cell in batch}:
        if Path(name).exists():  # nothing is left to do with it: has it changed since?
            check_data(store, name)
    if executor is None:  # a wrong name is told now, not after the hours that batches before it take
        for env in sorted({cell.env for batch in waiting for cell in batch if cell.env}):
            horizon(require_trusted(env, f"a cell of {store}", BY_ID_ALONE))
    while waiting:
        if workers == 1:
            for batch in waiting:
                job.attempt(batch)
        else:
            with ThreadPoolExecutor(workers) as pool:
                try:
                    list(pool.map(job.attempt, waiting))
                except BaseException:
                    stop()
                    raise
        waiting = [left for batch in waiting if (left := job.left(batch))]
        if waiting:
            wait_for_others(store, [cell for batch in waiting for cell in batch])
    return Outcome(sum(finished(store, cell) for cell in job.cells), job.failed)


class _Job:
    """One run over some cells."""

    def __init__(self, cells: list[Cell], store: Path, executor: Executor, tell: Any, say: Any) -> None:
        self.cells, self.store, self.executor, self.tell, self.say = cells, store, executor, tell, say
        self.failed: dict[Cell, str] = {}
        self.counted = {cell for cell in cells if finished(store, cell)}
        self.lock = threading.Lock()

    def left(self, batch: Sequence[Cell]) -> list[Cell]:
        """Those that are neither finished nor failed."""
        return [cell for cell in batch if cell not in self.failed and not finished(self.store, cell)]

    def attempt(self, batch: Sequence[Cell]) -> None:
        """A batch, twice if need be, then what is left of it cell by cell."""
        try:
            for last in (False, True):
                err = self._try(batch)
                if err is None:
                    return
                if last and len(batch) == 1:
                    self._give_up(batch[0], err)
                elif last:
                    self.say(f"it failed again ({_line(err)}); its cells are run one by one")
                    self._one_by_one(batch)
                else:
                    self.say(f"a batch of {len(batch)} cells failed ({_line(err)}); once more")
        finally:
            self._count(batch)

    def _one_by_one(self, batch: Sequence[Cell]) -> None:
        for cell in self.left(batch):
            if err := self._try([cell]):
                self._give_up(cell, err)

    def _try(self, batch: Sequence[Cell]) -> Exception | None:
        try:
            self.executor(batch, self.store, self.tell)
        except ChangedError:  # of all cells alike
            raise
        except Exception as err:
            if _unwritten(err) and shutil.disk_usage(self.store).free < FULL:
                raise SsorlError(
                    f"{self.store}: the disk is full ({_line(err)}); make room and give the same command again, which "
                    "goes on from here"
                ) from err
            return err
        return None

    def _give_up(self, cell: Cell, err: Exception) -> None:
        self.failed[cell] = _line(err)
        write_error(self.store, cell, "".join(traceback.format_exception(err)))
        self.say(f"cell {cell.hash} failed: {_line(err)}")

    def _count(self, batch: Sequence[Cell]) -> None:
        with self.lock:
            new = {cell for cell in batch if cell not in self.counted and finished(self.store, cell)}
            self.counted |= new
            if new:
                self.tell("cells", len(new), "")


def _unwritten(err: BaseException | None) -> bool:
    """Whether it came of a disk without room; what a worker elsewhere raised comes as text."""
    while err is not None:
        if getattr(err, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        if any(os.strerror(n) in str(err) for n in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
            return True
        err = err.__cause__ or err.__context__
    return False


def _line(err: Exception) -> str:
    return " ".join(str(err).split())[:300] or type(err).__name__
