"""Where trajectories come from: one file a format, one dict that names them.

A format module offers `sniff(path)`, `load(path, wish)` and `save(eps, path, extras)`, and where the format allows to
go through a file in parts also `parted(path, wish)` and `save_parts(about, parts, path)`. A collection (`builtin/`,
`sim/`, `d4rl/`, `minari/`) offers `load_id(name, …)`, and `located(name)` where its sets are files. Modules are
imported on use, so the command line stays quick.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

from ssorl.data.episodes import Episodes, concat
from ssorl.data.stream import PartReader
from ssorl.data.validate import READ_ALL, ReadOptions
from ssorl.utils.errors import DataError
from ssorl.utils.files import atomic

FORMATS: dict[str, str] = {  # name -> module; sniffed in this order
    "npz": "ssorl.data.formats.npz",
    "d4rl": "ssorl.data.formats.d4rl",
    "minari": "ssorl.data.formats.minari",
    "lerobot": "ssorl.data.formats.lerobot",
    "pickle": "ssorl.data.formats.pickles",
}
COLLECTIONS: dict[str, str] = {  # prefix -> module
    "builtin": "ssorl.data.collections.pointmass",
    "sim": "ssorl.data.sim.datasets",
    "d4rl": "ssorl.data.collections.d4rl_download",
    "minari": "ssorl.data.formats.minari",
}
SUFFIXES = {".npz": "npz", ".hdf5": "d4rl", ".h5": "d4rl", ".pkl": "pickle", ".pickle": "pickle"}
# What the formats themselves call the arrays of a trajectory: extras must not take their place.
RESERVED = {"obs", "act", "rew", "terminated", "start", "meta", "observations", "next_observations", "actions"}
RESERVED |= {"rewards", "terminals", "dones", "timeouts", "action", "episode_index", "frame_index", "index", "ssorl"}


def load(name: str | Path, format: str | None = None, min_length: int = 0, actions: bool = True) -> Episodes:
    """Trajectories from `builtin/…`, `d4rl/…`, `minari/…` or a path, whose format is looked up in the file."""
    options = ReadOptions(min_length, actions)
    path, prefix = Path(name), str(name).partition("/")[0]
    if format is not None:
        return _format(format).load(_existing(path), options)
    if prefix in COLLECTIONS and not os.path.exists(path):
        return import_module(COLLECTIONS[prefix]).load_id(str(name).partition("/")[2], options)
    return _sniffed(_existing(path)).load(path, options)


def open_parts(name: str | Path, format: str | None = None, options: ReadOptions = READ_ALL) -> PartReader:
    """What `load` would load, to be read some trajectories at a time, or a sentence that says why it cannot be."""
    path, prefix, source = Path(name), str(name).partition("/")[0], str(name)
    if format is None and prefix in COLLECTIONS and not os.path.exists(path):
        collection = import_module(COLLECTIONS[prefix])
        if not hasattr(collection, "local_path"):
            raise DataError(f"{name}: is not kept in a file that can be read in parts; leave out --stream")
        path = collection.local_path(source.partition("/")[2])
    module = _format(format) if format is not None else _sniffed(_existing(path))
    if not hasattr(module, "open_parts"):
        raise DataError(
            f"{name}: a pickle is one object, which can only be read whole; leave out --stream, or convert it to "
            "another format first (`ssorl data convert`)"
        )
    found = module.open_parts(_existing(path), options)
    return found._replace(meta=replace(found.meta, source=source))


def _sniffed(path: Path) -> ModuleType:
    """The module of the format that a file or folder is in."""
    for known in FORMATS:
        module = _format(known)
        if module.sniff(path):
            return module
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path}: is empty; nothing can be learnt from an empty file")
    raise DataError(f"{path}: is in none of the formats {', '.join(FORMATS)}; convert it to one of them (docs/data.md)")


def load_pair(labelled: str | Path, unlabelled: str | Path, format: str | None = None, min_length: int = 0) -> Episodes:
    """One set from two: the actions of the second are absent or ignored, never looked at."""
    return pair(load(labelled, format, min_length), load(unlabelled, format, min_length, actions=False))


def pair(labelled: Episodes, unlabelled: Episodes) -> Episodes:
    """Trajectories with actions, then others whose actions are absent or ignored."""
    a, b = labelled, unlabelled
    if not a.labelled.any():
        raise DataError(f"{a.meta.source}: was given as the labelled file but has no action; swap the two?")
    hidden = np.full((b.n_steps, a.n_act), np.nan, np.float32)
    b = Episodes(b.obs, hidden, b.rew, b.terminated, b.start, b.meta)
    notes = tuple(dict.fromkeys((*a.meta.notes, *b.meta.notes)))
    return concat([a, b]).with_meta(source=f"{a.meta.source} + {b.meta.source}", notes=notes)


def save(
    eps: Episodes,
    path: str | Path,
    format: str | None = None,
    force: bool = False,
    extras: dict[str, np.ndarray] | None = None,
) -> None:
    """Write in the format asked for or told by the suffix (`.npz .hdf5 .pkl`), whole or not at all.

    `extras` are more arrays with a row a step, such as which actions are proxies; each format has a place for them
    where no reader looks by itself (docs/labels.md).
    """
    module = writer(path, format, force)
    extras = extras or {}
    for name, rows in extras.items():
        if name in RESERVED or not name.isidentifier() or len(rows) != eps.n_steps:
            raise DataError(f"{name!r} with {len(rows)} rows cannot go beside {eps.n_steps} steps; name it otherwise")
    with atomic(path) as fresh:
        module.save(eps, fresh, extras)


def writer(path: str | Path, format: str | None = None, force: bool = False) -> ModuleType:
    """The module that can write there, or a sentence that says why none can: to be asked before a long computation."""
    path = Path(path)
    format = format or SUFFIXES.get(path.suffix)
    if format is None:
        raise DataError(
            f"{path}: end it in {', '.join(SUFFIXES)}; `ssorl data convert` and `ssorl label` write the formats "
            f"{', '.join(FORMATS)} under any name, with --to"
        )
    module = _format(format)
    if path.exists() and not force:
        raise DataError(f"{path}: exists already; choose another name or pass --force")
    if path.is_dir() and not module.sniff(path):
        raise DataError(f"{path}: is a folder but no {format} dataset, so nothing replaces it; choose another name")
    return module


def _format(name: str) -> ModuleType:
    if name not in FORMATS:
        raise DataError(f"{name!r} is no format ssorl knows; choose one of {', '.join(FORMATS)}")
    return import_module(FORMATS[name])


def _existing(path: Path) -> Path:
    if not os.path.exists(path):  # unlike Path.exists, it takes names that no file system would
        import difflib

        known = [n for n in _listed_names() if "/" in n]
        near = difflib.get_close_matches(str(path), known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else "`ssorl data list` shows the names that are built in"
        raise DataError(f"{path}: no such file or dataset; {hint}")
    return path


def _listed_names() -> list[str]:
    names = []
    for prefix, module in COLLECTIONS.items():
        if prefix != "minari":
            names += [f"{prefix}/{n}" for n in import_module(module).names()]
    return names
