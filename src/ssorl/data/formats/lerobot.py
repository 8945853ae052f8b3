"""Parquet folders in LeRobot's layout (v2: a file per episode; v3: many episodes per file).

State features: `observation.*` vectors of numbers, in alphabetical order, or `state` (openpi); where a whole such as
`observation.state` has its parts beside it (DROID), the whole is read. Actions: `action`, `actions` (openpi) or
`action.*`. Rewards: `next.reward` or `reward`. `next.done` marks the end of the task unless `next.truncated` is set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats import arrow, frames
from ssorl.data.formats.columns import ACTIONS, REWARDS, STATES, assign, with_parts, without_parts
from ssorl.data.formats.lerobot_write import save, save_parts, state_columns
from ssorl.data.formats.npz import meta_from_json
from ssorl.data.stats import join_names
from ssorl.data.stream import PartReader
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

__all__ = ["load", "open_parts", "save", "save_parts", "sniff"]

KIND = "a LeRobot Parquet folder"
STATE = "observation."
PROXY, STD = "action_is_proxy", "action_std"  # features that `ssorl label --into` adds
takes_columns = True


def sniff(path: Path) -> bool:
    """Return whether it is a folder with meta/info.json and data/, or a Parquet file with LeRobot's columns."""
    if path.is_dir():
        return (path / "meta" / "info.json").is_file() and (path / "data").is_dir()
    if first_bytes(path, 4) != b"PAR1":
        return False
    try:
        with frames.opened(path) as parquet:
            names = [field.name for field in parquet.schema_arrow]
    except Exception:  # no pyarrow, or a damaged file, which `load` refuses in a sentence
        return True
    return "episode_index" in names and any(name.startswith(STATE) for name in names)


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check a folder or file."""
    src = str(path)
    with parser_errors(src, KIND):
        files = frames.parquet_files(path, path / "data", src)
        plan, left = _plan(path, files, src, options)
        with frames.opened(files[0]) as parquet:
            head = next(parquet.iter_batches(1, columns=plan.columns, use_threads=False), None)
        meta = _meta(path, src, plan, left, head, options)
        meta = meta.with_notes(*(_proxy_notes(files) if options.actions else ()))
        raw, n_rows = frames.read_all(files, plan, src, options)
        eps = build(*raw[:5], with_reader_notes(meta, raw.dropped), options, raw.number)
        _check_counts(path, src, len(raw.lengths), n_rows)
        return eps


def open_parts(path: Path, options: ReadOptions = READ_ALL) -> PartReader:
    """Return a reader of some episodes at a time; they must be in order in the files."""
    src = str(path)
    with parser_errors(src, KIND):
        files, n_steps = frames.parquet_files(path, path / "data", src), 0
        plan, left = _plan(path, files, src, options)
        for file in files:
            with frames.opened(file) as parquet:
                n_steps += parquet.metadata.num_rows
        with frames.opened(files[0]) as parquet:
            head = next(parquet.iter_batches(1, columns=plan.columns, use_threads=False), None)
        meta = _meta(path, src, plan, left, head, options)
        meta = meta.with_notes(*(_proxy_notes(files) if options.actions else ()))

    def read(size: int) -> Iterator[Raw]:
        episodes = 0
        for raw in frames.read_parts(files, plan, src, options, size):
            episodes += len(raw.lengths)
            yield raw._replace(number=None)
        _check_counts(path, src, episodes, n_steps)

    return PartReader(meta, n_steps, KIND, read)


def _plan(path: Path, files: Sequence[Path], src: str, options: ReadOptions) -> tuple[frames.Layout, list[str]]:
    """Return the columns to read, and the observations that are not read because they hold no vectors of numbers."""
    left: dict[str, None] = {}
    for file in files:
        with frames.opened(file) as parquet:
            others = [f.name for f in parquet.schema_arrow if not arrow.is_numeric(f.type)]
            left |= dict.fromkeys(sorted(escaped(n) for n in others if n.startswith(STATE)))
    with frames.opened(files[0]) as parquet:
        names = frames.numeric_names(parquet)
        frames.check_numeric(parquet, (*REWARDS, *ACTIONS, "next.done", "next.truncated"), src)
        has_episodes = any(f.name == "episode_index" for f in parquet.schema_arrow)
    if not options.columns.given and not (has_episodes and any(n.startswith(STATE) or n in STATES for n in names)):
        raise DataError(
            f"{src}: has no numeric observation.* column or no episode_index; is it in LeRobot's layout? If not, "
            "name its columns with --state, --action and --episode"
        )
    state = without_parts(sorted(n for n in names if n.startswith(STATE))) or [n for n in STATES if n in names][:1]
    own = read_info(path).get("ssorl")
    if isinstance(own, dict) and not options.columns.given:
        meta = meta_from_json(json.dumps(own), src)
        kept = [*state_columns(meta, sum(n for _, n in meta.state_parts) or 1)]
        state = kept if set(kept) <= set(names) else state
    named = [*names, "episode_index"] if has_episodes and "episode_index" not in names else names
    roles = assign(named, options, src, state)
    roles = roles._replace(action=without_parts(roles.action))
    return frames.layout(roles, names), list(left)


def read_info(path: Path) -> dict[str, Any]:
    """Return the content of meta/info.json, {} if there is none."""
    file = path / "meta" / "info.json"
    info = json.loads(file.read_text()) if file.is_file() else {}
    return info if isinstance(info, dict) else {}


def _check_counts(path: Path, src: str, episodes: int, n_frames: int) -> None:
    """Raise DataError if a folder has other numbers of episodes or frames than its meta/info.json says."""
    info = read_info(path)
    for name, n in (("episodes", episodes), ("frames", n_frames)):
        declared = info.get(f"total_{name}")
        if type(declared) is int and declared > 0 and declared != n:
            raise DataError(
                f"{src}: meta/info.json counts {declared} {name} but {n} are under data/; fetch the folder again, or "
                f"correct total_{name} in meta/info.json"
            )


def _proxy_notes(files: Sequence[Path]) -> list[str]:
    """Return a note if `ssorl label --into` filled some actions; `ssorl.idm.label.proxies_in` knows its words."""
    n_proxies = n_rows = 0
    for file in files:
        with frames.opened(file) as parquet:
            if PROXY not in frames.numeric_names(parquet):
                return []
            flags = arrow.column(parquet.read([PROXY], use_threads=False), PROXY, str(file))[:, 0] > 0
            n_proxies, n_rows = n_proxies + int(flags.sum()), n_rows + len(flags)
    return [f"{n_proxies} of {n_rows} actions are proxies from an inverse dynamics model"] if n_proxies else []


def _meta(path: Path, src: str, plan: frames.Layout, left: list[str], table: Any, options: ReadOptions) -> Meta:
    info = read_info(path)
    own = info.get("ssorl")
    if isinstance(own, dict) and not options.columns.given:
        meta = meta_from_json(json.dumps(own), src)
    else:
        meta = meta_from_json(json.dumps(own), src) if isinstance(own, dict) else Meta(source=src)
        state, action = (frames.part_sizes(table, names) if table is not None else [] for names in plan.roles[:2])
        action = action if options.actions else []
        features = info.get("features") if isinstance(info.get("features"), dict) else {}
        fps, robot = info.get("fps"), info.get("robot_type")
        meta = meta_from_json(
            json.dumps(
                {
                    **vars(meta),
                    "state_names": _names(features, state),
                    "action_names": _names(features, action),
                    "fps": fps if isinstance(fps, (int, float)) and 0 < fps < 1e6 else None,
                    "robot": robot if isinstance(robot, str) else None,
                }
            ),
            src,
        )
        meta = with_parts(meta, state, action)
    if left:
        verb = "was" if len(left) == 1 else "were"
        meta = meta.with_notes(f"{join_names(left)} {verb} left out: only numbers and vectors of numbers are read")
    return meta


def _names(features: Any, parts: Sequence[tuple[str, int]]) -> list[str]:
    """Return a name for each number of joined features; none if no feature names all of its numbers."""
    found = []
    for name, size in parts:
        feature = features.get(name)
        names = feature_names(feature.get("names") if isinstance(feature, dict) else None)
        found.append([escaped(n) for n in names] if len(names) == size else [])
    if not any(found):
        return []
    plain = [n for names in found for n in names]
    if all(found) and len(set(plain)) == len(plain):
        return plain
    return [
        f"{part}.{names[i] if names else i}"
        for (part, size), names in zip(parts, found, strict=True)
        for i in range(size)
    ]


def feature_names(names: Any) -> list[str]:
    """Return the names of a feature's numbers: a list, or a dict of lists as {"motors": [...]}."""
    if isinstance(names, dict):
        names = [n for group in names.values() for n in (group if isinstance(group, list) else [group])]
    return [str(n) for n in names] if isinstance(names, list) else []
