"""Datasets in LeRobot's layout v3.0, which the lerobot package opens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats import arrow
from ssorl.data.formats.columns import parts_of
from ssorl.data.formats.frames import BATCH, NEXT, pyarrow
from ssorl.data.formats.lerobot_stats import Stats, as_json, episode_stats, merged
from ssorl.data.stream import Header, LabelledPart, header_of

STATE = "observation."
FPS = 10  # frames per second of data whose rate is unknown
PER_CHUNK = 1000  # files in a folder


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write a LeRobot folder: all episodes in one file, the next state beside each state, the extras as features."""
    save_parts(header_of(eps), iter([(eps, extras)]), path)


def save_parts(header: Header, parts: Iterator[LabelledPart], path: Path) -> None:
    """Write the same from trajectories that are read in parts, each part to a file of its own."""
    pa, pq = pyarrow()
    meta = header.meta
    fps = meta.fps or FPS
    fps = int(fps) if float(fps).is_integer() else fps
    (path / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    features: dict[str, dict] = {}
    rows: list[dict[str, Any]] = []
    episode = frame = 0
    for number, (eps, extras) in enumerate(parts):
        columns = _columns(eps, extras, episode, frame, fps)
        where = {"data/chunk_index": number // PER_CHUNK, "data/file_index": number % PER_CHUNK}
        file = path / "data" / f"chunk-{number // PER_CHUNK:03d}" / f"file-{number % PER_CHUNK:03d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.table({name: arrow.feature(pa, values) for name, values in columns.items()}), file, row_group_size=BATCH
        )
        features |= {name: _feature(name, values, meta) for name, values in columns.items()}
        stats = {name: episode_stats(v.reshape(len(v), -1), eps.start) for name, v in columns.items()}
        for e in range(len(eps)):
            first = int(eps.start[e]) + frame
            rows.append(
                {
                    "episode_index": episode + e,
                    "tasks": [task_of(meta)],
                    "length": int(eps.lengths[e]),
                    **where,
                    "dataset_from_index": first,
                    "dataset_to_index": first + int(eps.lengths[e]),
                    "meta/episodes/chunk_index": 0,
                    "meta/episodes/file_index": 0,
                    **flat_stats({name: each[e] for name, each in stats.items()}),
                }
            )
        episode, frame = episode + eps.n_episodes, frame + eps.n_steps
    pq.write_table(pa.Table.from_pylist(rows), path / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    pq.write_table(_tasks(pa, task_of(meta)), path / "meta" / "tasks.parquet")
    (path / "meta" / "stats.json").write_text(json.dumps(_global_stats(rows, list(features)), indent=1))
    info = {
        "codebase_version": "v3.0",
        "robot_type": meta.robot,
        "total_episodes": header.n_episodes,
        "total_frames": header.n_steps,
        "total_tasks": 1,
        "chunks_size": PER_CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{header.n_episodes}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": features,
        "ssorl": asdict(meta),
    }
    (path / "meta" / "info.json").write_text(json.dumps(info, indent=1))


def task_of(meta: Meta) -> str:
    """Return the text of the task, which LeRobot demands of every frame."""
    return meta.env or "no task was recorded"


def state_columns(meta: Meta, n_obs: int) -> dict[str, slice]:
    """Return the feature of each part of a state, and where it is; parts of other formats are one feature."""
    names = [name for name, _ in meta.state_parts]
    own = all(name.startswith(STATE) for name in names) or names == ["state"]
    return parts_of(meta.state_parts if own else (), n_obs, "observation.state")


def action_columns(meta: Meta, n_act: int) -> dict[str, slice]:
    """Likewise of an action."""
    names = [name for name, _ in meta.action_parts]
    own = all(name.startswith("action.") for name in names) or names == ["actions"]
    return parts_of(meta.action_parts if own else (), n_act, "action")


def _columns(
    eps: Episodes, extras: dict[str, np.ndarray], episode: int, frame: int, fps: float
) -> dict[str, np.ndarray]:
    """Return the columns of a file whose first episode and frame have these numbers."""
    step = np.arange(eps.n_steps)
    in_episode = step - np.repeat(eps.start[:-1], eps.lengths)
    states = state_columns(eps.meta, eps.n_obs)
    return {
        **{name: eps.obs[eps.obs_row, at] for name, at in states.items()},
        **{NEXT + name: eps.obs[eps.obs_row + 1, at] for name, at in states.items()},
        **{name: eps.act[:, at] for name, at in action_columns(eps.meta, eps.n_act).items()},
        **({"next.reward": eps.rew} if eps.rewarded.any() else {}),
        "next.done": eps.terminated | eps.truncated,
        "next.truncated": eps.truncated,
        "timestamp": (in_episode / fps).astype(np.float32),
        "frame_index": in_episode,
        "episode_index": eps.episode_of_step + episode,
        "index": step + frame,
        "task_index": np.zeros(eps.n_steps, np.int64),
        **extras,
    }


def _feature(name: str, values: np.ndarray, meta: Meta) -> dict:
    size = 1 if values.ndim == 1 else values.shape[1]
    names = None
    plain = name.removeprefix(NEXT)
    for columns, known in ((state_columns, meta.state_names), (action_columns, meta.action_names)):
        at = columns(meta, len(known)).get(plain)
        if at is not None and len(known[at]) == size:
            names = list(known[at])
    if names is None and values.ndim == 2:
        names = [f"{plain.rpartition('.')[2]}_{i}" for i in range(size)]
    return {"dtype": str(values.dtype), "shape": [size], "names": names}


def flat_stats(stats: dict[str, Stats]) -> dict[str, list]:
    """Return statistics as the columns of meta/episodes."""
    return {f"stats/{name}/{key}": np.asarray(v).tolist() for name, each in stats.items() for key, v in each.items()}


def _global_stats(rows: list[dict[str, Any]], names: list[str]) -> dict[str, dict]:
    out = {}
    for name in names:
        keys = ("min", "max", "mean", "std", "count")
        parts = [{key: np.asarray(row[f"stats/{name}/{key}"]) for key in keys} for row in rows]
        if any(part["count"][0] for part in parts):
            out[name] = as_json(merged(parts))
    return out


def _tasks(pa: Any, task: str) -> Any:
    """The table of tasks; its index, as pandas stores one, is the text."""
    index = "__index_level_0__"
    kinds = (("task_index", "task_index", "int64", "int64"), (None, index, "unicode", "object"))
    columns = [
        {"name": n, "field_name": f, "pandas_type": p, "numpy_type": k, "metadata": None} for n, f, p, k in kinds
    ]
    about = {"index_columns": [index], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    table = pa.table({"task_index": np.array([0]), index: [task]})
    return table.replace_schema_metadata({"pandas": json.dumps(about)})
