"""Parquet folders in LeRobot's layout (v2: a file an episode; v3: many episodes a file).

Columns: state features (`observation.*` vectors of numbers, in alphabetical order), `action`, `episode_index`,
`frame_index`, `next.reward`, `next.done`. A frame holds the state before its action, so the state after the last action
is unknown and the last frame only lends its state to the one before, unless the file also has `next.observation.*`
(ssorl writes it) or `next.truncated` where a done frame was a time limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats import arrow
from ssorl.data.formats.npz import meta_from_json
from ssorl.data.stats import join_names
from ssorl.data.stream import Header, LabelledPart, PartReader, header_of
from ssorl.data.validate import (
    READ_ALL,
    Raw,
    ReadOptions,
    build,
    escaped,
    files_below,
    first_bytes,
    parser_errors,
    with_reader_notes,
)
from ssorl.utils.errors import DataError
from ssorl.utils.extras import require

KIND = "a LeRobot Parquet folder"
STATE, NEXT = "observation.", "next.observation."
COLUMNS = ("episode_index", "frame_index", "action", "next.reward", "next.done", "next.truncated")
LARGEST_RATIO = 100  # frames a byte: each has a state of its own, however well it is compressed


def sniff(path: Path) -> bool:
    """Whether it is a folder with meta/info.json and data/, or one Parquet file."""
    if path.is_dir():
        return (path / "meta" / "info.json").is_file() and (path / "data").is_dir()
    return first_bytes(path, 4) == b"PAR1"


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check one folder or file."""
    src = str(path)
    with parser_errors(src, KIND):
        pa, pq = _arrow()
        files, tables, left = _files(path, src), [], {}
        for file in files:
            with _opened(pq, file, src) as parquet:
                wanted = _wanted(parquet)  # read: also what begins with one of these names
                tables.append(parquet.read(wanted, use_threads=False).select(wanted))
                left |= dict.fromkeys(_left(parquet))
            _alike(file, tables[-1], files[0], tables[0])
        table = pa.concat_tables(tables, promote_options="permissive")
        meta = _meta(path, src, table.column_names, list(left))
        raw = _raw(_in_order(table, src), src, options)
        eps = build(*raw[:5], with_reader_notes(meta, raw.dropped), options)
        _check_counts(path, src, len(raw.lengths), table.num_rows)
        return eps


def open_parts(path: Path, options: ReadOptions = READ_ALL) -> PartReader:
    """The same, to be read some episodes at a time; they must lie in their order."""
    src = str(path)
    with parser_errors(src, KIND):
        pa, pq = _arrow()
        files, n_steps, columns, left = _files(path, src), 0, [], {}
        for file in files:
            with _opened(pq, file, src) as parquet:
                n_steps, columns = n_steps + parquet.metadata.num_rows, columns or _wanted(parquet)
                left |= dict.fromkeys(_left(parquet))
        meta = _meta(path, src, columns, list(left))

    def read(size: int) -> Iterator[Raw]:
        held, rows, episodes = [], 0, 0  # what has come of episodes that may not be whole yet, and how many were
        for file in files:
            with _opened(pq, file, src) as parquet:
                wanted = _wanted(parquet)
                for batch in parquet.iter_batches(size, columns=wanted, use_threads=False):
                    held.append(pa.Table.from_batches([batch]).select(wanted))
                    _alike(file, held[-1], files[0], held[0])
                    rows += len(held[-1])
                    if rows <= size:
                        continue
                    table = pa.concat_tables(held, promote_options="permissive")
                    cut = _last_begins(table, src)
                    if cut:
                        raw = _raw(table.slice(0, cut), src, options)
                        episodes += len(raw.lengths)
                        yield raw
                    held, rows = [table.slice(cut)], table.num_rows - cut
        table = pa.concat_tables(held, promote_options="permissive")
        _last_begins(table, src)
        raw = _raw(table, src, options)
        yield raw
        _check_counts(path, src, episodes + len(raw.lengths), n_steps)

    return PartReader(meta, n_steps, KIND, read)


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write a LeRobot folder: all episodes in one file, the next state beside each state, the extras as columns."""
    save_parts(header_of(eps), iter([(eps, extras)]), path)


def save_parts(what: Header, parts: Iterator[LabelledPart], path: Path) -> None:
    """Write the same from trajectories that come some at a time, each time into a file of its own."""
    pa, pq = _arrow()
    (path / "meta").mkdir(parents=True)
    features = {
        "observation.state": {"dtype": "float32", "shape": [what.n_obs]},
        "next.observation.state": {"dtype": "float32", "shape": [what.n_obs]},
        "action": {"dtype": "float32", "shape": [what.n_act]},
    }
    episode = frame = 0
    for number, (eps, extras) in enumerate(parts):
        file = path / "data" / f"chunk-{number // 1000:03d}" / f"file-{number % 1000:03d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(_columns(pa, eps, extras, episode, frame)), file)
        features |= {n: {"dtype": str(x.dtype), "shape": list(x.shape[1:]) or [1]} for n, x in extras.items()}
        episode, frame = episode + eps.n_episodes, frame + eps.n_steps
    info = {
        "codebase_version": "v3.0",
        "total_episodes": what.n_episodes,
        "total_frames": what.n_steps,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "features": features,
        "ssorl": asdict(what.meta),
    }
    (path / "meta" / "info.json").write_text(json.dumps(info, indent=1))


def _columns(pa, eps: Episodes, extras: dict[str, np.ndarray], episode: int, frame: int) -> dict:
    """One file's columns; its first episode and frame have these numbers."""
    step = np.arange(eps.n_steps)
    act = (
        pa.FixedSizeListArray.from_arrays(pa.array(eps.act.reshape(-1)), eps.n_act, mask=pa.array(~eps.labelled))
        if eps.n_act
        else None
    )
    return {
        "observation.state": arrow.vectors(pa, eps.obs[eps.obs_row]),
        "next.observation.state": arrow.vectors(pa, eps.obs[eps.obs_row + 1]),
        **({"action": act} if act is not None else {}),
        "episode_index": eps.episode_of_step + episode,
        "frame_index": step - np.repeat(eps.start[:-1], eps.lengths),
        "index": step + frame,
        "next.reward": eps.rew,
        "next.done": eps.terminated | eps.truncated,
        "next.truncated": eps.truncated,
        **{name: arrow.vectors(pa, rows) if rows.ndim == 2 else rows for name, rows in extras.items()},
    }


def _arrow():
    require("parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa, pq


def _files(path: Path, src: str) -> list[Path]:
    files = [f for f in files_below(path / "data") if f.suffix == ".parquet"] if path.is_dir() else [path]
    if not files:
        raise DataError(f"{src}: has no .parquet file under data/; nothing can be learnt from an empty folder")
    return files


@contextmanager
def _opened(pq, file: Path, src: str):
    """One file, after its number of frames is found to be possible."""
    with parser_errors(str(file), "Parquet"):
        parquet = pq.ParquetFile(file)
        n, size = parquet.metadata.num_rows, file.stat().st_size
        if n > LARGEST_RATIO * size:
            raise DataError(f"{file}: claims {n} frames in {size} bytes, which no robot fills; write it again")
    with parquet:
        yield parquet


def _wanted(parquet) -> list[str]:
    """The columns that matter here, in alphabetical order: two folders of one robot may not have theirs in the same.

    Images, if any, stay on the disk.
    """
    fields = list(parquet.schema_arrow)
    state = [f.name for f in fields if f.name.startswith((STATE, NEXT)) and arrow.is_numeric(f.type)]
    return sorted(f.name for f in fields if f.name in COLUMNS or f.name in state)


def _left(parquet) -> list[str]:
    """The columns of observations that are no numbers or vectors of them, and so not taken."""
    fields = list(parquet.schema_arrow)
    return sorted(escaped(f.name) for f in fields if f.name.startswith(STATE) and not arrow.is_numeric(f.type))


def _alike(file: Path, table, first: Path, other) -> None:
    if table.column_names != other.column_names:
        raise DataError(f"{file}: has other columns than {first}; all files of a folder must agree")


def _in_order(table, src: str):
    """The rows by episode, then by frame."""
    _check_columns(table, src)
    episode = arrow.index(table, "episode_index", src)
    frame = arrow.index(table, "frame_index", src) if "frame_index" in table.column_names else np.arange(len(episode))
    order = np.lexsort((frame, episode))
    return table if (order == np.arange(len(order))).all() else table.take(order)


def _last_begins(table, src: str) -> int:
    """The row where the last episode begins, which may go on in what is still to be read."""
    _check_columns(table, src)
    episode = arrow.index(table, "episode_index", src)
    back = np.flatnonzero(np.diff(episode) < 0)
    if back.size:
        at = back[0]
        raise DataError(
            f"{src}: episode {episode[at + 1]} comes after episode {episode[at]}, so the folder cannot be read in "
            "parts; sort it, or leave out --stream"
        )
    return int(np.searchsorted(episode, episode[-1]))


def _check_columns(table, src: str) -> None:
    names = table.column_names
    if not any(n.startswith(STATE) for n in names) or "episode_index" not in names:
        raise DataError(f"{src}: has no numeric observation.* column or no episode_index; is it in LeRobot's layout?")
    if table.num_rows == 0:
        raise DataError(f"{src}: holds no frames; nothing can be learnt from an empty file")


def _raw(table, src: str, options: ReadOptions) -> Raw:
    """Rows that lie in order as trajectories end to end."""
    names = table.column_names
    states = [n for n in names if n.startswith(STATE)]
    episode = arrow.index(table, "episode_index", src)
    frame = arrow.index(table, "frame_index", src) if "frame_index" in names else np.arange(len(episode))
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(episode)) + 1, [len(episode)]])
    lengths = np.diff(bounds)
    skipped = np.flatnonzero((np.diff(frame) != 1) & (np.diff(episode) == 0))
    if skipped.size:
        at = skipped[0]
        raise DataError(
            f"{src}: episode {episode[at]} jumps from frame {frame[at]} to {frame[at + 1]}; "
            "every frame must be there once"
        )
    obs = np.concatenate([arrow.column(table, n, src) for n in states], axis=1)
    wanted = options.actions and "action" in names and arrow.is_sized(table.column("action"))
    act = arrow.column(table, "action", src, nullable=True) if wanted else None
    rew = (
        arrow.column(table, "next.reward", src)[:, 0] if "next.reward" in names else np.zeros(len(episode), np.float32)
    )
    ended = arrow.column(table, "next.done", src)[:, 0] > 0 if "next.done" in names else np.zeros(len(episode), bool)
    if "next.truncated" in names:
        ended &= ~(arrow.column(table, "next.truncated", src)[:, 0] > 0)
    after = [NEXT + n.removeprefix(STATE) for n in states]
    if all(n in names for n in after):
        last = bounds[1:] - 1
        flat = np.empty((len(obs) + len(lengths), obs.shape[1]), obs.dtype)
        flat[np.arange(len(obs)) + np.repeat(np.arange(len(lengths)), lengths)] = obs
        tail = np.concatenate([arrow.column(table.take(last), n, src) for n in after], axis=1)
        if tail.shape[1] != obs.shape[1]:
            raise DataError(
                f"{src}: next.observation.* has size {tail.shape[1]}, observation.* has size {obs.shape[1]}; they must "
                "agree"
            )
        flat[last + np.arange(1, len(lengths) + 1)] = tail
        return Raw(flat, act, rew, ended, lengths)
    keep = np.ones(len(obs), bool)
    keep[bounds[1:] - 1] = False
    ended[bounds[1:] - 1] = False
    act = None if act is None else act[keep]
    return Raw(obs, act, rew[keep], ended[keep], lengths - 1, dropped=len(lengths))


def _info(path: Path) -> dict:
    """What meta/info.json says, if it is there."""
    file = path / "meta" / "info.json"
    info = json.loads(file.read_text()) if file.is_file() else {}
    return info if isinstance(info, dict) else {}


def _check_counts(path: Path, src: str, episodes: int, frames: int) -> None:
    """Refuse a folder that lacks some of what its meta/info.json counts, or has more."""
    info = _info(path)
    for what, there in (("episodes", episodes), ("frames", frames)):
        due = info.get(f"total_{what}")
        if type(due) is int and due > 0 and due != there:
            raise DataError(
                f"{src}: meta/info.json counts {due} {what} but {there} are under data/; fetch the folder again, or "
                f"correct total_{what} in meta/info.json"
            )


def _meta(path: Path, src: str, columns: list[str], left: list[str]) -> Meta:
    own = _info(path).get("ssorl")
    meta = meta_from_json(json.dumps(own), src) if isinstance(own, dict) else Meta(source=src)
    if left:
        verb = "was" if len(left) == 1 else "were"
        meta = meta.with_notes(f"{join_names(left)} {verb} left out: only numbers and vectors of numbers are read")
    if "next.reward" in columns:
        return meta
    return meta.with_notes("there is no next.reward column: rewards are 0, so only labelling and cloning make sense")
