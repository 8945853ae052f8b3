"""Datasets of studies: load each once, record what results were computed from, and detect files that changed."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ssorl.data.episodes import Episodes
from ssorl.data.formats import load
from ssorl.runs.run import describe
from ssorl.study.store import recorded_data
from ssorl.utils.errors import ChangedError


class LoadedData(NamedTuple):
    """A dataset in memory."""

    eps: Episodes
    about: dict[str, Any]  # its record: digest, sizes, metadata


def dataset(name: str) -> LoadedData:
    """Return a dataset and its record; the last dataset stays in memory, because batches are sorted by dataset.

    Args:
        name: name or path of the dataset.
    """
    path = Path(name)
    return _load(name, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=1)
def _load(name: str, modified: int) -> LoadedData:
    eps = load(name)
    return LoadedData(eps, describe(eps))


def described(name: str) -> dict[str, Any]:
    """Return the record of a dataset as JSON returns it: tuples are lists, keys are strings."""
    return json.loads(json.dumps(dataset(name).about))


def check_unchanged(store: Path, name: str) -> None:
    """Raise if a dataset differs from the data of the store's results; simulated data is determined by its name.

    Args:
        store: the store's folder.
        name: name or path of the dataset.

    Raises:
        ChangedError: the dataset has changed.
    """
    if name.startswith("sim/") or not (old := recorded_data(store, name)):
        return
    new = described(name)
    if any(old[key] != new[key] for key in old.keys() & new.keys()):
        then, now = (f"{data['trajectories']:,} trajectories, {data['steps']:,} steps" for data in (old, new))
        if old["digest"] == new["digest"]:  # equal arrays with other metadata
            key = next(key for key in old if key in new and old[key] != new[key])
            then, now = f"{key} {old[key]}", str(new[key])
        raise ChangedError(
            f"{name}: has changed since the results in {store} were computed from it (then {then}, now {now}); give "
            "another --store, or restore the data"
        )
