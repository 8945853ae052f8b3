"""The statistics in the `meta` folder of a LeRobot dataset, computed again for features that changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.data.formats import frames
from ssorl.data.formats.lerobot_stats import QUANTILES, Stats, episode_stats, merged, quantiles
from ssorl.data.validate import files_below
from ssorl.utils.errors import DataError

PLAIN = ("min", "max", "mean", "std", "count")


def rewrite_stats(path: Path, changed: dict[str, np.ndarray], start: np.ndarray, episodes: np.ndarray) -> None:
    """Replace the statistics of some features in meta/stats.json, meta/episodes_stats.jsonl and meta/episodes.

    Args:
        path: the dataset, whose files are replaced.
        changed: the features, each [N, size], by episode and frame.
        start: [E+1], the first row of each episode, then N.
        episodes: [E], the numbers of the episodes.
    """
    each = {name: episode_stats(rows, start) for name, rows in changed.items()}
    place = {int(number): e for e, number in enumerate(episodes)}
    _rewrite_global(path / "meta" / "stats.json", changed, each)
    _rewrite_lines(path / "meta" / "episodes_stats.jsonl", changed, each, start, place)
    for file in files_below(path / "meta" / "episodes") if (path / "meta" / "episodes").is_dir() else ():
        if file.suffix == ".parquet":
            _rewrite_table(file, changed, each, start, place)


def _keys(known: dict[str, Any], name: str) -> Sequence[str]:
    """Return the statistics that a file keeps of a feature, or else of the first feature of numbers."""
    for candidate in (name, "action", "observation.state", "timestamp", *known):
        keys = known.get(candidate)
        if isinstance(keys, dict) and keys:
            return [key for key in keys if key in PLAIN or key in QUANTILES]
    return PLAIN


def _pick(stats: Stats, rows: np.ndarray, keys: Sequence[str]) -> Stats:
    """Return these statistics; quantiles are computed only where they are kept."""
    if any(key in QUANTILES for key in keys):
        stats = {**stats, **quantiles(rows)}
    return {key: stats[key] for key in keys if key in stats}


def _replace(file: Path, text: str) -> None:
    """Write a new file: the old one may be a hard link."""
    file.unlink()
    file.write_text(text)


def _rewrite_global(file: Path, changed: dict[str, np.ndarray], each: dict[str, list[Stats]]) -> None:
    if not file.is_file():
        return
    known = json.loads(file.read_text())
    for name, rows in changed.items():
        known[name] = _lists(_pick(merged(each[name]), rows, _keys(known, name)))
    _replace(file, json.dumps(known, indent=4))


def _rewrite_lines(
    file: Path, changed: dict[str, np.ndarray], each: dict[str, list[Stats]], start: np.ndarray, place: dict[int, int]
) -> None:
    """Rewrite the statistics of v2.1: a line of JSON for each episode."""
    if not file.is_file():
        return
    lines = []
    for line in file.read_text().splitlines():
        entry = json.loads(line)
        e = _place(place, entry["episode_index"], file)
        for name, rows in changed.items():
            keys = _keys(entry["stats"], name)
            entry["stats"][name] = _lists(_pick(each[name][e], rows[start[e] : start[e + 1]], keys))
        lines.append(json.dumps(entry, ensure_ascii=False))
    _replace(file, "".join(line + "\n" for line in lines))


def _rewrite_table(
    file: Path, changed: dict[str, np.ndarray], each: dict[str, list[Stats]], start: np.ndarray, place: dict[int, int]
) -> None:
    """Rewrite the statistics of v3: columns such as `stats/action/mean`."""
    pa, pq = frames.pyarrow()
    table = pq.read_table(file, use_threads=False)
    known: dict[str, dict[str, Any]] = {}
    for name in table.column_names:
        if name.startswith("stats/"):
            feature, _, key = name.removeprefix("stats/").rpartition("/")
            known.setdefault(feature, {})[key] = table.schema.field(name).type
    if not known:
        return
    rows_of = [_place(place, number, file) for number in table.column("episode_index").to_pylist()]
    for name, rows in changed.items():
        keys = _keys(known, name)
        found = [_pick(each[name][e], rows[start[e] : start[e + 1]], keys) for e in rows_of]
        for key in keys:
            kind = pa.list_(pa.int64() if key == "count" else pa.float64())
            column = pa.array([stats[key].tolist() for stats in found], known.get(name, {}).get(key, kind))
            full = f"stats/{name}/{key}"
            if full in table.column_names:
                table = table.set_column(table.column_names.index(full), table.schema.field(full), column)
            else:
                table = table.append_column(full, column)
    file.unlink()
    pq.write_table(table, file)


def _place(place: dict[int, int], number: Any, file: Path) -> int:
    if number not in place:
        raise DataError(f"{file}: has statistics of episode {number}, which has no frames; fetch the dataset again")
    return place[number]


def _lists(stats: Stats) -> dict[str, Any]:
    return {key: np.asarray(value).tolist() for key, value in stats.items()}
