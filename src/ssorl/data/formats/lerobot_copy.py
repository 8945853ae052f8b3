"""A copy of a LeRobot dataset in which missing actions are filled: `ssorl label DATASET --into COPY`.

Every row, task, timestamp, video and foreign column is kept. Missing actions are filled; known ones stay as they are.
Two features are added: `action_is_proxy` and `action_std`. Statistics of these and of the action are computed again.
Videos are hard links if the disk allows it; all other files are copied. The version of the layout stays the same.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.formats import arrow, frames
from ssorl.data.formats.columns import ACTIONS, group, without_parts
from ssorl.data.formats.last_frame import predict_last
from ssorl.data.formats.lerobot import PROXY, STD, read_info
from ssorl.data.formats.lerobot_restat import rewrite_stats
from ssorl.data.validate import files_below, parser_errors
from ssorl.utils.errors import DataError

LINKED = ("videos", "images")  # folders whose files are linked: nothing writes to them in place


class LeRobotCopy:
    """A copy to be written: it stands in for a format, whose `save` fills in the actions."""

    def __init__(self, source: Path, target: Path, min_length: int, force: bool) -> None:
        """Check all that can be checked before a long fit.

        Args:
            source: the dataset.
            target: where the copy will be.
            min_length: the shortest trajectory that is labelled, in steps; see `ReadOptions`.
            force: whether a dataset at `target` may be replaced.

        Raises:
            DataError: the source is no LeRobot dataset of v2 or v3, the target exists or lies inside the source.
            OSError: the disk is too small.
        """
        self.source, self.min_length = source, min_length
        version = str(read_info(source).get("codebase_version", "")) if source.is_dir() else ""
        if not (source / "data").is_dir() or not version.startswith(("v2.", "v3.")):
            raise DataError(
                f"{source}: is not a LeRobot dataset of v2 or v3, which --into copies; choose --out instead"
            )
        here, there = Path(os.path.realpath(source)), Path(os.path.realpath(target))
        if here == there or here in there.parents or there in here.parents:
            raise DataError(f"{target}: is the dataset itself or a folder around or inside it; choose another --into")
        if target.exists() and not force:
            raise DataError(f"{target}: exists already; choose another name or pass --force")
        if target.exists() and not (target / "meta" / "info.json").is_file():
            raise DataError(f"{target}: is not a LeRobot dataset, so nothing replaces it; choose another name")
        self._check_space(target)

    def _check_space(self, target: Path) -> None:
        parent = next(p for p in target.absolute().parents if p.exists())
        device, need = parent.stat().st_dev, 1 << 20
        for file in files_below(self.source):
            stat = file.stat()
            linked = file.relative_to(self.source).parts[0] in LINKED and stat.st_dev == device
            need += 0 if linked else 2 * stat.st_size if file.suffix == ".parquet" else stat.st_size
        free = shutil.disk_usage(parent).free
        if free < need:
            raise OSError(errno.ENOSPC, f"{free / 1e9:.1f} GB are free, and the copy takes up to {need / 1e9:.1f} GB")

    def save(self, eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
        """Write the copy.

        Args:
            eps: the trajectories of the source, all actions filled.
            path: a temporary folder, which gets its final name once all is written.
            extras: `proxy` [S] bool and `act_std` [S, A].
        """
        with parser_errors(str(self.source), "a LeRobot dataset"):
            table = _read_rows(self.source, eps, self.min_length)
            filled = _fill(table, eps, extras)
            data = {file.relative_to(self.source) for file in table.files}
            _copy_others(self.source, path, data)
            for file, first, n in table.spans():
                part = Filled(*(x[first : first + n] for x in filled))
                _write_data(file, path / file.relative_to(self.source), table.actions, part)
            info = _new_info(read_info(self.source), table.actions, eps)
            (path / "meta" / "info.json").write_text(json.dumps(info, indent=4, ensure_ascii=False))
            rewrite_stats(path, *_statistics(table, filled))


class Rows(NamedTuple):
    """The rows of all files of a dataset, end to end in the order of the files."""

    files: list[Path]
    sizes: list[int]
    order: np.ndarray  # [N], the rows by episode and frame
    bounds: np.ndarray  # [E+1], where episodes begin in that order
    episodes: np.ndarray  # [E], their numbers
    steps: np.ndarray  # [S], the row of each step of the trajectories
    last: np.ndarray  # [K], the last rows of those trajectories, if they are no steps
    actions: dict[str, slice]  # action columns, and where each is in the joined action
    act: np.ndarray  # [N, A], NaN where missing
    proxy: np.ndarray  # [N] bool, by an earlier labelling
    std: np.ndarray  # [N, A], likewise

    def spans(self) -> Iterator[tuple[Path, int, int]]:
        """Yield each file, its first row and its number of rows."""
        first = 0
        for file, n in zip(self.files, self.sizes, strict=True):
            yield file, first, n
            first += n


class Filled(NamedTuple):
    """Actions for some rows."""

    act: np.ndarray  # [N, A]
    missing: np.ndarray  # [N] bool: the row had no action
    proxy: np.ndarray  # [N] bool
    std: np.ndarray  # [N, A], 0 where the action is known


def _read_rows(source: Path, eps: Episodes, min_length: int) -> Rows:
    src = str(source)
    pa, _ = frames.pyarrow()
    files, sizes, tables = frames.parquet_files(source, source / "data", src), [], []
    with frames.opened(files[0]) as parquet:
        names, all_names = frames.numeric_names(parquet), [f.name for f in parquet.schema_arrow]
    parts = without_parts(group(names, ACTIONS))
    wanted = [n for n in ("episode_index", "frame_index", *parts, PROXY, STD) if n in all_names]
    for file in files:
        with frames.opened(file) as parquet:
            tables.append(parquet.read(wanted, use_threads=False).select(wanted))
            sizes.append(tables[-1].num_rows)
    table = pa.concat_tables(tables, promote_options="permissive")
    episode = arrow.index(table, "episode_index", src)
    frame = arrow.index(table, "frame_index", src) if "frame_index" in wanted else np.arange(len(episode))
    order = np.lexsort((frame, episode))
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(episode[order])) + 1, [len(order)]])
    n_rows = np.diff(bounds)
    after = any(name.startswith(frames.NEXT + "observation.") or name == frames.NEXT + "state" for name in names)
    n_steps = n_rows if after else n_rows - 1
    kept = n_steps >= min_length
    if n_steps[kept].tolist() != eps.lengths.tolist():
        raise DataError(f"{src}: its files changed while they were labelled; label the dataset again")
    inside = np.concatenate([np.arange(a, a + n) for a, n in zip(bounds[:-1][kept], n_steps[kept], strict=True)])
    act, at, columns = np.full((len(order), eps.n_act), np.nan, np.float64), 0, {}
    parts = [n for n in parts if arrow.is_sized(table.column(n))]
    for name in parts or ["action"]:
        values = arrow.column(table, name, src, nullable=True) if parts else act
        columns[name] = slice(at, at + values.shape[1])
        at += values.shape[1]
        if at <= eps.n_act:
            act[:, columns[name]] = values
    if at != eps.n_act:
        raise DataError(f"{src}: its actions have size {at}, but {eps.n_act} were estimated; label data of one robot")
    proxy, std = np.zeros(len(order), bool), np.zeros((len(order), eps.n_act), np.float32)
    if PROXY in wanted:
        proxy = arrow.column(table, PROXY, src)[:, 0] > 0
    if STD in wanted:
        std = np.nan_to_num(arrow.column(table, STD, src, nullable=True)).astype(np.float32).reshape(std.shape)
    last = np.zeros(0, np.int64) if after else order[bounds[1:][kept] - 1]
    number = episode[order][bounds[:-1]]
    return Rows(files, sizes, order, bounds, number, order[inside], last, columns, act, proxy, std)


def _fill(table: Rows, eps: Episodes, extras: dict[str, np.ndarray]) -> Filled:
    """Fill missing actions: by their labels, the last frames by what came before, and all else by the mean action."""
    missing = np.any(np.isnan(table.act), axis=1)
    act, std = table.act.copy(), table.std.copy()
    by_label = np.zeros(len(missing), bool)
    by_label[table.steps] = missing[table.steps]
    estimate, spread = np.empty((len(missing), eps.n_act)), np.empty((len(missing), eps.n_act), np.float32)
    estimate[:], spread[:] = eps.act.mean(0), eps.act.std(0)
    estimate[table.steps], spread[table.steps] = eps.act, extras["act_std"]
    if len(table.last):
        estimate[table.last], spread[table.last] = predict_last(eps, extras["act_std"])
    act[missing], std[missing] = estimate[missing], spread[missing]
    return Filled(act, missing, table.proxy | missing, std)


def _copy_others(source: Path, path: Path, data: set[Path]) -> None:
    """Copy all files but those of `data`, and link videos; links in the source become files."""
    for file in files_below(source):
        name = file.relative_to(source)
        if name in data:
            continue
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        real = os.path.realpath(file)
        if name.parts[0] in LINKED:
            try:
                os.link(real, target)
                continue
            except OSError:  # another disk, or one without hard links
                pass
        shutil.copy2(real, target)


def _write_data(file: Path, target: Path, actions: dict[str, slice], filled: Filled) -> None:
    """Write a data file again, a row group at a time, with the actions filled and two columns more."""
    pa, pq = frames.pyarrow()
    target.parent.mkdir(parents=True, exist_ok=True)
    with frames.opened(file) as parquet:
        about = parquet.metadata
        compression = about.row_group(0).column(0).compression if about.num_row_groups else "SNAPPY"
        writer, at = None, 0
        try:
            for number in range(about.num_row_groups):
                table = parquet.read_row_group(number, use_threads=False)
                rows = Filled(*(x[at : at + table.num_rows] for x in filled))
                table = _with_actions(pa, table, actions, rows)
                if writer is None:
                    writer = pq.ParquetWriter(target, table.schema, compression=compression)
                writer.write_table(table)
                at += table.num_rows
        finally:
            if writer is not None:
                writer.close()
    if writer is None:
        shutil.copy2(file, target)


def _with_actions(pa: Any, table: Any, actions: dict[str, slice], rows: Filled) -> Any:
    """Return a table with its missing actions filled, and the columns of proxies and deviations."""
    vector = pa.list_(pa.float32(), rows.act.shape[1]) if rows.act.shape[1] > 1 else pa.float32()
    kinds: list[Any] = [vector]
    for name, at in actions.items():
        old = table.schema.field(name) if name in table.column_names else None
        kind = vector if old is None or arrow.is_empty(old.type) else old.type
        empty = kind is vector
        kinds.append(kind)
        if not empty and not rows.missing.any():
            continue
        if not empty and not arrow.is_floating(kind):
            raise DataError(f"column {name} is of type {kind}, which cannot hold estimated actions; save it as float32")
        values = _as_column(pa, rows.act[:, at], kind)
        if old is None:
            table = table.append_column(pa.field(name, kind), values)
        else:
            table = table.set_column(table.column_names.index(name), pa.field(name, kind), values)
    kind = arrow.with_values(kinds[-1] if len(actions) == 1 else vector, pa.float32())
    for name, column in ((PROXY, pa.array(rows.proxy)), (STD, _as_column(pa, rows.std, kind))):
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    return table.replace_schema_metadata(_new_metadata(table.schema.metadata, rows.act.shape[1], actions))


def _as_column(pa: Any, values: np.ndarray, kind: Any) -> Any:
    """Return [rows, size] as a column of that type."""
    if not pa.types.is_nested(kind):
        return pa.array(values[:, 0]).cast(kind)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1)).cast(kind.value_type, safe=False)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1]).cast(kind)
    offsets = np.arange(len(values) + 1) * values.shape[1]
    make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return make.from_arrays(pa.array(offsets, pa.int64() if make is pa.LargeListArray else pa.int32()), flat).cast(kind)


def _new_metadata(
    metadata: dict[bytes, bytes] | None, size: int, actions: dict[str, slice]
) -> dict[bytes, bytes] | None:
    """Return the metadata of a schema with the new columns among the features that the datasets package stored."""
    if not metadata or b"huggingface" not in metadata:
        return metadata
    about = json.loads(metadata[b"huggingface"])
    try:
        features = about["info"]["features"]
        kind = next((features[n].get("_type") for n in actions if n in features), None)
        number = {"dtype": "float32", "_type": "Value"}
        vector = number if size == 1 else {"feature": number, "length": size, "_type": kind or "Sequence"}
        for name in actions:
            features.setdefault(name, vector)
        features |= {PROXY: {"dtype": "bool", "_type": "Value"}, STD: vector}
    except (KeyError, TypeError, AttributeError):  # of another version: its readers fall back to the types of columns
        return {k: v for k, v in metadata.items() if k != b"huggingface"}
    return {**metadata, b"huggingface": json.dumps(about).encode()}


def _new_info(info: dict[str, Any], actions: dict[str, slice], eps: Episodes) -> dict[str, Any]:
    """Return meta/info.json with the new features declared."""
    features = dict(info.get("features") or {})
    names = list(eps.meta.action_names) or None
    for name, at in actions.items():
        part = names[at] if names and len(names) == eps.n_act else None
        features.setdefault(name, {"dtype": "float32", "shape": [at.stop - at.start], "names": part})
    if names is None and len(actions) == 1:
        names = features[next(iter(actions))].get("names")
    features[PROXY] = {"dtype": "bool", "shape": [1], "names": None}
    features[STD] = {"dtype": "float32", "shape": [eps.n_act], "names": names}
    own = {"ssorl": asdict(eps.meta)} if isinstance(info.get("ssorl"), dict) else {}
    return {**info, "features": features, **own}


def _statistics(table: Rows, filled: Filled) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return the columns that changed, in the order of episodes, where these begin, and their numbers."""
    order = table.order
    changed = {PROXY: filled.proxy[order, None].astype(np.float64), STD: filled.std[order]}
    if filled.missing.any():
        changed |= {name: filled.act[order, at] for name, at in table.actions.items()}
    return changed, table.bounds, table.episodes
