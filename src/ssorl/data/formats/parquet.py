"""Plain Parquet tables: a row for each step, columns of any names, one file or a folder.

Columns are recognised by common names, or named by the caller. Rows of a trajectory are in the order of the file. In a
folder without a column of episodes, each file is a trajectory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats import arrow, frames
from ssorl.data.formats.columns import assign, listed, parts_of, with_parts
from ssorl.data.formats.npz import meta_from_json
from ssorl.data.stats import join_names
from ssorl.data.stream import Header, LabelledPart, PartReader, header_of
from ssorl.data.validate import (
    READ_ALL,
    Raw,
    ReadOptions,
    build,
    escaped,
    first_bytes,
    parser_errors,
    with_reader_notes,
)
from ssorl.utils.errors import DataError

KIND = "a Parquet table"
ROOT = b"ssorl"  # where the schema of a file holds ssorl's metadata
takes_columns = True


def sniff(path: Path) -> bool:
    """Return whether it is a Parquet file, or a folder that holds some."""
    if path.is_dir():
        return any(f.suffix == ".parquet" for f in path.iterdir())
    return first_bytes(path, 4) == b"PAR1"


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check a file or folder."""
    src = str(path)
    with parser_errors(src, KIND):
        files = frames.parquet_files(path, path, src)
        plan, meta = _plan(files, src, options, len(files) > 1)
        if plan.roles.episode:
            raw, _ = frames.read_all(files, plan, src, options)
        else:
            parts = [frames.read_all([file], plan, src, options)[0] for file in files]
            raw = frames.join_parts(parts, sum(len(part.rew) for part in parts), len(parts), src)
        return build(*raw[:5], with_reader_notes(meta, raw.dropped), options, raw.number)


def open_parts(path: Path, options: ReadOptions = READ_ALL) -> PartReader:
    """Return a reader of some trajectories at a time; their rows must be in order."""
    src = str(path)
    with parser_errors(src, KIND):
        files, n_steps = frames.parquet_files(path, path, src), 0
        plan, meta = _plan(files, src, options, len(files) > 1)
        for file in files:
            with frames.opened(file) as parquet:
                n_steps += parquet.metadata.num_rows
        if plan.roles.episode:
            with frames.opened(files[0]) as parquet:
                if plan.roles.episode in frames.text_names(parquet):
                    raise DataError(
                        f"{src}: {escaped(plan.roles.episode)} holds text, which cannot be read in parts; leave out "
                        "--stream, or number the episodes"
                    )

    def read(size: int) -> Iterator[Raw]:
        if plan.roles.episode:
            for raw in frames.read_parts(files, plan, src, options, size):
                yield raw._replace(number=None)
        else:
            for file in files:
                yield frames.read_all([file], plan, src, options)[0]

    return PartReader(meta, n_steps, KIND, read)


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write one file with a row for each step, the next state beside each state, and the extras as columns."""
    save_parts(header_of(eps), iter([(eps, extras)]), path)


def save_parts(header: Header, parts: Iterator[LabelledPart], path: Path) -> None:
    """Write the same from trajectories that are read in parts."""
    pa, pq = frames.pyarrow()
    states = parts_of(header.meta.state_parts, header.n_obs, "state")
    actions = parts_of(header.meta.action_parts, header.n_act, "action")
    writer, episode = None, 0
    try:
        for eps, extras in parts:
            columns = {
                **{name: eps.obs[eps.obs_row, at] for name, at in states.items()},
                **{frames.NEXT + name: eps.obs[eps.obs_row + 1, at] for name, at in states.items()},
                **{name: eps.act[:, at] for name, at in actions.items()},
                "reward": eps.rew,
                "next.done": eps.terminated | eps.truncated,
                "next.truncated": eps.truncated,
                "episode_index": eps.episode_of_step + episode,
                "frame_index": np.arange(eps.n_steps) - np.repeat(eps.start[:-1], eps.lengths),
                **extras,
            }
            table = pa.table({name: arrow.feature(pa, values) for name, values in columns.items()})
            if writer is None:
                about = {"meta": asdict(header.meta), "state": list(states), "action": list(actions)}
                table = table.replace_schema_metadata({ROOT: json.dumps(about)})
                writer = pq.ParquetWriter(path, table.schema)
            writer.write_table(table.cast(writer.schema), row_group_size=frames.BATCH)
            episode += len(eps)
    finally:
        if writer is not None:
            writer.close()


def _plan(files: list[Path], src: str, options: ReadOptions, many: bool) -> tuple[frames.Layout, Meta]:
    """Return the columns to read, and the metadata."""
    with frames.opened(files[0]) as parquet:
        names, text = frames.numeric_names(parquet), frames.text_names(parquet)
        head = next(parquet.iter_batches(1, columns=names, use_threads=False), None)
        about = json.loads((parquet.schema_arrow.metadata or {}).get(ROOT, b"null"))
        left = [f.name for f in parquet.schema_arrow if f.name not in (*names, *text)]
    own = about if isinstance(about, dict) and isinstance(about.get("meta"), dict) else None
    episode = next((n for n in text if n == options.columns.episode), None)
    known = [*names, *([episode] if episode else [])]
    state = None
    if own is not None and not options.columns.given:
        state = [n for n in own.get("state", ()) if n in names]
    roles = assign(known, options, src, state or None)
    if own is not None and not options.columns.given:
        roles = roles._replace(action=[n for n in own.get("action", ()) if n in names])
    if roles.episode is None:
        roles = roles._replace(episode=next((n for n in text if n in ("episode", "episode_id", "trajectory")), None))
    if roles.episode is None and not many:
        raise DataError(
            f"{src}: no column tells trajectories apart; name one with --episode (it has {listed([*names, *text])}), "
            "or give a folder with a file for each trajectory"
        )
    plan = frames.layout(roles, names)
    meta = meta_from_json(json.dumps(own["meta"]), src) if own is not None else Meta(source=src)
    if own is None or options.columns.given:
        state, action = (frames.part_sizes(head, n) if head is not None else [] for n in roles[:2])
        meta = with_parts(meta, state, action if options.actions else [])
    if left and own is None:
        verb = "was" if len(left) == 1 else "were"
        columns = join_names([escaped(n) for n in left])
        meta = meta.with_notes(f"{columns} {verb} left out: only numbers and vectors of numbers are read")
    return plan, meta
