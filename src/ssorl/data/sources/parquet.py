"""Parquet folders in LeRobot's layout (v2: a file an episode; v3: many episodes a file).

Columns: state features (`observation.*` vectors of numbers), `action`, `episode_index`, `frame_index`, `next.reward`,
`next.done`. A frame holds the state before its action, so the state after the last action is unknown and the last
frame only lends its state to the one before, unless the file also has `next.observation.*` (ssorl writes it) or
`next.truncated` where a done frame was a time limit.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ssorl.data.check import ANY, Wish, build, dropped_note, head, reading
from ssorl.data.episodes import Episodes, Meta
from ssorl.data.sources.npz import meta_from_json
from ssorl.errors import DataError, SsorlError

STATE, NEXT = "observation.", "next.observation."
COLUMNS = ("episode_index", "frame_index", "action", "next.reward", "next.done", "next.truncated")
LARGEST_RATIO = 100  # frames a byte: each has a state of its own, however well it is compressed


def sniff(path: Path) -> bool:
    """Whether it is a folder with meta/info.json and data/, or one Parquet file."""
    if path.is_dir():
        return (path / "meta" / "info.json").is_file() and (path / "data").is_dir()
    return head(path, 4) == b"PAR1"


def load(path: Path, wish: Wish = ANY) -> Episodes:
    """Read and check one folder or file."""
    src = str(path)
    with reading(src, "a LeRobot Parquet folder"):
        pa, pq = _arrow()
        files = sorted((path / "data").rglob("*.parquet")) if path.is_dir() else [path]
        if not files:
            raise DataError(f"{src}: has no .parquet file under data/; nothing can be learnt from an empty folder")
        tables = [_read(pq, f) for f in files]
        columns = tables[0].column_names
        for file, table in zip(files, tables, strict=True):
            if table.column_names != columns:
                raise DataError(f"{file}: has other columns than {files[0]}; all files of a folder must agree")
        table = pa.concat_tables(tables, promote_options="permissive")
        return _episodes(table, path, src, wish)


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write a LeRobot folder: all episodes in one file, the next state beside each state, the extras as columns."""
    pa, pq = _arrow()
    (path / "data" / "chunk-000").mkdir(parents=True)
    (path / "meta").mkdir()
    step = np.arange(eps.n_steps)
    done = eps.terminated | eps.truncated
    act = (
        pa.FixedSizeListArray.from_arrays(pa.array(eps.act.reshape(-1)), eps.n_act, mask=pa.array(~eps.labelled))
        if eps.n_act
        else None
    )
    columns = {
        "observation.state": _vectors(pa, eps.obs[eps.obs_row]),
        "next.observation.state": _vectors(pa, eps.obs[eps.obs_row + 1]),
        **({"action": act} if act is not None else {}),
        "episode_index": eps.episode_of_step,
        "frame_index": step - np.repeat(eps.start[:-1], eps.lengths),
        "index": step,
        "next.reward": eps.rew,
        "next.done": done,
        "next.truncated": eps.truncated,
        **{name: _vectors(pa, rows) if rows.ndim == 2 else rows for name, rows in extras.items()},
    }
    pq.write_table(pa.table(columns), path / "data" / "chunk-000" / "file-000.parquet")
    info = {
        "codebase_version": "v3.0",
        "total_episodes": eps.n_episodes,
        "total_frames": eps.n_steps,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "features": {
            "observation.state": {"dtype": "float32", "shape": [eps.n_obs]},
            "next.observation.state": {"dtype": "float32", "shape": [eps.n_obs]},
            "action": {"dtype": "float32", "shape": [eps.n_act]},
            **{name: {"dtype": str(x.dtype), "shape": list(x.shape[1:]) or [1]} for name, x in extras.items()},
        },
        "ssorl": asdict(eps.meta),
    }
    (path / "meta" / "info.json").write_text(json.dumps(info, indent=1))


def _arrow():
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as err:
        raise SsorlError("Parquet files need pyarrow; install it with: pip install 'ssorl[parquet]'") from err
    return pa, pq


def _read(pq, file: Path):
    """The columns of one file that matter here: images, if any, stay on the disk."""
    with reading(str(file), "Parquet"), pq.ParquetFile(file) as parquet:
        n, size = parquet.metadata.num_rows, file.stat().st_size
        if n > LARGEST_RATIO * size:
            raise DataError(f"{file}: claims {n} frames in {size} bytes, which no robot fills; write it again")
        fields = [parquet.schema_arrow.field(i) for i in range(len(parquet.schema_arrow))]
        state = [f.name for f in fields if f.name.startswith((STATE, NEXT)) and _is_numeric(f.type)]
        wanted = [f.name for f in fields if f.name in COLUMNS or f.name in state]
        return parquet.read(wanted, use_threads=False).select(wanted)  # read: also what begins with one of these names


def _vectors(pa, array: np.ndarray):
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])


def _episodes(table, path: Path, src: str, wish: Wish) -> Episodes:
    names = table.column_names
    states = [n for n in names if n.startswith(STATE)]
    if not states or "episode_index" not in names:
        raise DataError(f"{src}: has no numeric observation.* column or no episode_index; is it in LeRobot's layout?")
    if table.num_rows == 0:
        raise DataError(f"{src}: holds no frames; nothing can be learnt from an empty file")
    episode = _index(table, "episode_index", src)
    frame = _index(table, "frame_index", src) if "frame_index" in names else np.arange(len(episode))
    order = np.lexsort((frame, episode))
    if not (order == np.arange(len(order))).all():
        table, episode, frame = table.take(order), episode[order], frame[order]
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(episode)) + 1, [len(episode)]])
    lengths = np.diff(bounds)
    skipped = np.flatnonzero((np.diff(frame) != 1) & (np.diff(episode) == 0))
    if skipped.size:
        at = skipped[0]
        raise DataError(
            f"{src}: episode {episode[at]} jumps from frame {frame[at]} to {frame[at + 1]}; "
            "every frame must be there once"
        )
    obs = np.concatenate([_column(table, n, src) for n in states], axis=1)
    wanted = wish.actions and "action" in names and _sized(table.column("action"))
    act = _column(table, "action", src, nullable=True) if wanted else None
    meta = _meta(path, src)
    if "next.reward" in names:
        rew = _column(table, "next.reward", src)[:, 0]
    else:
        rew = np.zeros(len(episode), np.float32)
        meta = meta.noting("there is no next.reward column: rewards are 0, so only labelling and cloning make sense")
    ended = _column(table, "next.done", src)[:, 0] > 0 if "next.done" in names else np.zeros(len(episode), bool)
    if "next.truncated" in names:
        ended &= ~(_column(table, "next.truncated", src)[:, 0] > 0)
    after = [NEXT + n.removeprefix(STATE) for n in states]
    if all(n in names for n in after):
        last = bounds[1:] - 1
        flat = np.empty((len(obs) + len(lengths), obs.shape[1]), np.float32)
        flat[np.arange(len(obs)) + np.repeat(np.arange(len(lengths)), lengths)] = obs
        tail = np.concatenate([_column(table.take(last), n, src) for n in after], axis=1)
        if tail.shape[1] != obs.shape[1]:
            raise DataError(
                f"{src}: next.observation.* has size {tail.shape[1]}, observation.* has size {obs.shape[1]}; they must "
                "agree"
            )
        flat[last + np.arange(1, len(lengths) + 1)] = tail
        return build(flat, act, rew, ended, lengths, meta, wish)
    keep = np.ones(len(obs), bool)
    keep[bounds[1:] - 1] = False
    ended[bounds[1:] - 1] = False
    meta = meta.noting(dropped_note(len(lengths)))
    return build(obs, None if act is None else act[keep], rew[keep], ended[keep], lengths - 1, meta, wish)


def _is_numeric(kind) -> bool:
    import pyarrow.types as t

    if t.is_list(kind) or t.is_fixed_size_list(kind) or t.is_large_list(kind):
        kind = kind.value_type
    return t.is_floating(kind) or t.is_integer(kind) or t.is_boolean(kind)


def _sized(column) -> bool:
    """Whether a column tells the size of its vectors: one that is empty throughout may not."""
    import pyarrow.types as t

    return column.null_count < len(column) or t.is_fixed_size_list(column.type)


def _index(table, name: str, src: str) -> np.ndarray:
    """A column of whole numbers, [rows] int64."""
    import pyarrow as pa

    column = table.column(name)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise DataError(f"{src}: column {name} is of type {column.type} or has empty rows; number the rows throughout")
    return column.to_numpy().astype(np.int64)


def _column(table, name: str, src: str, nullable: bool = False) -> np.ndarray:
    """One column as [rows, size] float32; rows without a value are NaN where that is allowed."""
    import pyarrow as pa

    column = table.column(name).combine_chunks()
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not _is_numeric(column.type):
        raise DataError(f"{src}: column {name} is of type {column.type}; numbers or vectors of numbers are due")
    if column.null_count and not nullable:
        raise DataError(f"{src}: column {name} has {column.null_count} empty rows; only actions may be missing")
    if not hasattr(column, "flatten") or isinstance(column, pa.StructArray) or not pa.types.is_nested(column.type):
        return column.to_numpy(zero_copy_only=False).astype(np.float32)[:, None]
    there = ~np.asarray(column.is_null())
    if not there.any():
        return np.full((len(column), column.type.list_size), np.nan, np.float32)
    flat = column.drop_null().flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    widths = np.asarray(column.drop_null().value_lengths())
    size = int(widths[0])
    if (widths != size).any():
        raise DataError(f"{src}: the vectors in column {name} are not all of one size; put other robots in other files")
    out = np.full((len(column), size), np.nan, np.float32)
    out[there] = flat.reshape(-1, size)
    return out


def _meta(path: Path, src: str) -> Meta:
    file = path / "meta" / "info.json"
    if file.is_file():
        info = json.loads(file.read_text())
        if isinstance(info, dict) and isinstance(info.get("ssorl"), dict):
            return meta_from_json(json.dumps(info["ssorl"]), src)
    return Meta(source=src)
