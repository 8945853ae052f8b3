"""Parquet tables with a row for each frame: which columns they have, and trajectories from their rows.

A frame holds the state before its action. The state after the last action is unknown, so the last frame of an episode
only gives its state to the frame before it, unless the table also has the next states (`next.` before the name of each
state column, which ssorl writes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssorl.data.formats import arrow
from ssorl.data.formats.columns import Roles, from_rows
from ssorl.data.stats import join_names
from ssorl.data.validate import Raw, ReadOptions, escaped, files_below, parser_errors
from ssorl.utils.errors import DataError
from ssorl.utils.extras import require

LARGEST_RATIO = 100  # frames per byte: each has a state of its own, however well it is compressed
NEXT = "next."
BATCH = 1 << 17  # rows that are converted together


class Layout(NamedTuple):
    """The columns that are read, by what they are for."""

    roles: Roles
    after: list[str]  # next states, one column for each of the state; empty: not stored
    frame: str | None  # number of the frame in its episode
    done: str | None  # whether the episode ended after this frame
    truncated: str | None  # whether a time limit ended it

    @property
    def columns(self) -> list[str]:
        """All of them, in alphabetical order."""
        single = (self.roles.reward, self.roles.episode, self.frame, self.done, self.truncated)
        return sorted({*self.roles.state, *self.roles.action, *self.after, *(name for name in single if name)})


def layout(roles: Roles, names: Sequence[str]) -> Layout:
    """Return the columns to read; the names of the fields besides `roles` are LeRobot's."""
    after = [NEXT + name for name in roles.state]
    known = [name if name in names else None for name in ("frame_index", "next.done", "next.truncated")]
    return Layout(roles, after if all(name in names for name in after) else [], *known)


def pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and its module for Parquet."""
    require("parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa, pq


def parquet_files(path: Path, folder: Path, src: str) -> list[Path]:
    """Return the Parquet files below a folder, or the file itself."""
    files = [f for f in files_below(folder) if f.suffix == ".parquet"] if path.is_dir() else [path]
    if not files:
        where = f"{folder.relative_to(path)}/" if folder != path else "it"
        raise DataError(f"{src}: has no .parquet file under {where}; nothing can be learnt from an empty folder")
    return files


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Open a Parquet file, after its number of frames is compared with its size."""
    _, pq = pyarrow()
    with parser_errors(str(file), "Parquet"):
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        n, size = parquet.metadata.num_rows, file.stat().st_size
        if n > LARGEST_RATIO * size:
            raise DataError(f"{file}: claims {n} frames in {size} bytes, which no robot fills; write it again")
    with parquet:
        yield parquet


def numeric_names(parquet: Any) -> list[str]:
    """The columns of numbers, or of vectors of numbers, and text that may name episodes, in the order of the file."""
    return [f.name for f in parquet.schema_arrow if arrow.is_numeric(f.type)]


def check_numeric(parquet: Any, names: Sequence[str], src: str) -> None:
    """Raise DataError if one of these columns is there and holds something other than numbers."""
    for field in parquet.schema_arrow:
        if field.name in names and not arrow.is_numeric(field.type) and not arrow.is_empty(field.type):
            raise DataError(
                f"{src}: column {field.name} is of type {field.type}; numbers or vectors of numbers are due"
            )


def text_names(parquet: Any) -> list[str]:
    """The columns of text."""
    return [f.name for f in parquet.schema_arrow if arrow.is_text(f.type)]


def read_all(files: Sequence[Path], plan: Layout, src: str, options: ReadOptions) -> tuple[Raw, int]:
    """Return the trajectories of all files, and the number of rows.

    Rows that are in order are converted batch by batch, since a whole table takes several times their memory.
    """
    pa, _ = pyarrow()
    keys = [name for name in (plan.roles.episode, plan.frame) if name]
    rows, is_text, tables = 0, False, []
    for file in files:
        with opened(file) as parquet:
            check_alike(parquet, file, files[0], plan)
            is_text |= plan.roles.episode in text_names(parquet)
            rows += parquet.metadata.num_rows
            tables.append(parquet.read(keys, use_threads=False).select(keys) if keys else None)
    if not rows:
        raise no_frames(src)
    index = pa.concat_tables(tables) if keys else None
    if not is_text and (index is None or is_in_order(index, plan, src)):
        n_episodes = 1 if index is None else 1 + int((np.diff(_episodes(index, plan, src)) != 0).sum())
        del tables, index
        n_steps = rows if plan.after else rows - n_episodes
        return join_parts(read_parts(files, plan, src, options, BATCH), n_steps, n_episodes, src), rows
    return to_raw(read_whole(files, plan, src), plan, src, options)._replace(number=None), rows


def join_parts(parts: Iterable[Raw], n_steps: int, n_episodes: int, src: str) -> Raw:
    """Return trajectories end to end, copied part by part into arrays of their final size."""
    rows, steps, dropped, lengths = 0, 0, 0, []
    obs = np.empty((0, 0), np.float32)
    act: np.ndarray | None = None
    rew, ended = np.full(n_steps, np.nan, np.float32), np.zeros(n_steps, bool)
    for part in parts:
        if not lengths:
            obs = np.empty((n_steps + n_episodes, part.obs.shape[1]), part.obs.dtype)
        if act is None and part.act is not None and len(part.act):
            act = np.full((n_steps, part.act.shape[1]), np.nan, part.act.dtype)
        if part.obs.shape[1] != obs.shape[1] or (
            act is not None and part.act is not None and len(part.act) and part.act.shape[1] != act.shape[1]
        ):
            raise DataError(f"{src}: its rows differ in the size of states or actions; give each robot its own folder")
        obs = obs.astype(np.result_type(obs, part.obs), copy=False)
        n_rows, n = len(part.obs), len(part.rew)
        obs[rows : rows + n_rows], rew[steps : steps + n] = part.obs, part.rew
        ended[steps : steps + n] = part.terminated
        if act is not None and part.act is not None:
            act = act.astype(np.result_type(act, part.act), copy=False)
            act[steps : steps + n] = part.act
        rows, steps, dropped = rows + n_rows, steps + n, dropped + part.dropped
        lengths.append(part.lengths)
    return Raw(obs, act, rew, ended, np.concatenate(lengths), dropped=dropped)


def read_whole(files: Sequence[Path], plan: Layout, src: str) -> Any:
    """Return the columns of all files as one table, by episode and frame."""
    pa, _ = pyarrow()
    tables = []
    for file in files:
        with opened(file) as parquet:
            check_alike(parquet, file, files[0], plan)
            # `read` also reads columns whose name begins with one of these.
            tables.append(parquet.read(plan.columns, use_threads=False).select(plan.columns))
    return in_order(pa.concat_tables(tables, promote_options="permissive"), plan, src)


def read_parts(files: Sequence[Path], plan: Layout, src: str, options: ReadOptions, size: int) -> Iterator[Raw]:
    """Yield the trajectories of files whose episodes are in order, about `size` frames at a time."""
    pa, _ = pyarrow()
    held, rows = [], 0  # batches whose last episode may continue in the next one
    for file in files:
        with opened(file) as parquet:
            check_alike(parquet, file, files[0], plan)
            for batch in parquet.iter_batches(size, columns=plan.columns, use_threads=False):
                held.append(pa.Table.from_batches([batch]).select(plan.columns))
                rows += len(held[-1])
                if rows <= size:
                    continue
                table = pa.concat_tables(held, promote_options="permissive")
                cut = _last_begins(table, plan, src)
                if cut:
                    yield to_raw(table.slice(0, cut), plan, src, options)
                held, rows = [table.slice(cut)], table.num_rows - cut
    table = pa.concat_tables(held, promote_options="permissive") if held else None
    if table is None or not table.num_rows:
        raise no_frames(src)
    _last_begins(table, plan, src)
    yield to_raw(table, plan, src, options)


def check_alike(parquet: Any, file: Path, first: Path, plan: Layout) -> None:
    """Raise DataError if a file lacks a column that the first file has."""
    names = {f.name for f in parquet.schema_arrow}
    if lacking := [name for name in plan.columns if name not in names]:
        raise DataError(
            f"{file}: has other columns than {first}; all files of a folder must agree (it has no "
            f"{join_names([escaped(n) for n in lacking])})"
        )


def no_frames(src: str) -> DataError:
    """The error where there is nothing to read."""
    return DataError(f"{src}: holds no frames; nothing can be learnt from an empty file")


def in_order(table: Any, plan: Layout, src: str) -> Any:
    """Return the rows by episode, then by frame."""
    if table.num_rows == 0:
        raise no_frames(src)
    order = _order(table, plan, src)
    return table if _rises(order) else table.take(order)


def is_in_order(table: Any, plan: Layout, src: str) -> bool:
    """Return whether the rows are by episode, then by frame."""
    return _rises(_order(table, plan, src))


def _order(table: Any, plan: Layout, src: str) -> np.ndarray:
    episode = _episodes(table, plan, src)
    frame = arrow.index(table, plan.frame, src) if plan.frame else np.arange(len(episode))
    return np.lexsort((frame, episode))


def _rises(order: np.ndarray) -> bool:
    return bool((order == np.arange(len(order))).all())


def _episodes(table: Any, plan: Layout, src: str) -> np.ndarray:
    return arrow.index(table, plan.roles.episode, src) if plan.roles.episode else np.zeros(table.num_rows, np.int64)


def _last_begins(table: Any, plan: Layout, src: str) -> int:
    """Return the row where the last episode begins, which may continue in what is still to be read."""
    episode = _episodes(table, plan, src)
    back = np.flatnonzero(np.diff(episode) < 0)
    if back.size:
        at = back[0]
        raise DataError(
            f"{src}: episode {episode[at + 1]} comes after episode {episode[at]}, so the folder cannot be read in "
            "parts; sort it, or leave out --stream"
        )
    return int(np.searchsorted(episode, episode[-1]))


def to_raw(table: Any, plan: Layout, src: str, options: ReadOptions) -> Raw:
    """Return rows that are in order as trajectories end to end."""
    roles, episode = plan.roles, _episodes(table, plan, src)
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(episode)) + 1, [len(episode)]])
    lengths, last = np.diff(bounds), bounds[1:] - 1
    if plan.frame:
        frame = arrow.index(table, plan.frame, src)
        skipped = np.flatnonzero((np.diff(frame) != 1) & (np.diff(episode) == 0))
        if skipped.size:
            at = skipped[0]
            raise DataError(
                f"{src}: episode {episode[at]} jumps from frame {frame[at]} to {frame[at + 1]}; "
                "every frame must be there once"
            )
    obs = _joined(table, roles.state, src)
    wanted = options.actions and roles.action and all(arrow.is_sized(table.column(n)) for n in roles.action)
    act = _joined(table, roles.action, src, nullable=True) if wanted else None
    rew = arrow.column(table, roles.reward, src, nullable=True)[:, 0] if roles.reward else None
    ended = np.zeros(len(episode), bool)
    if plan.done:
        ended = arrow.column(table, plan.done, src)[:, 0] > 0
        if plan.truncated:
            ended &= ~(arrow.column(table, plan.truncated, src)[:, 0] > 0)
    if not plan.after:
        return from_rows(obs, act, rew, lengths)
    rew = np.full(len(episode), np.nan, np.float32) if rew is None else rew
    flat = np.empty((len(obs) + len(lengths), obs.shape[1]), obs.dtype)
    flat[np.arange(len(obs)) + np.repeat(np.arange(len(lengths)), lengths)] = obs
    tail = _joined(table.take(last), plan.after, src)
    if tail.shape[1] != obs.shape[1]:
        raise DataError(
            f"{src}: the next states ({join_names(plan.after)}) have size {tail.shape[1]}, the states size "
            f"{obs.shape[1]}; they must agree"
        )
    flat[last + np.arange(1, len(lengths) + 1)] = tail
    return Raw(flat, act, rew, ended, lengths)


def _joined(table: Any, names: Sequence[str], src: str, nullable: bool = False) -> np.ndarray:
    arrays = [arrow.column(table, name, src, nullable) for name in names]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


def part_sizes(table_or_schema: Any, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return each column with the size of its vectors, as far as the first row tells; 0 where it is empty."""
    out = []
    for name in names:
        column = table_or_schema.column(name)
        first = next((v for v in column.slice(0, 1).to_pylist() if v is not None), None)
        size = getattr(column.type, "list_size", None)
        out.append((name, size if isinstance(size, int) and size > 0 else len(first) if isinstance(first, list) else 1))
    return out
