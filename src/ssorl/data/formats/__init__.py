"""Dataset formats by name: load trajectories from files, folders and named collections, and save them.

Each format is a module with the functions of `base.Format`. Where files of a format can be read in parts, it also has
`open_parts(path, options)` and `save_parts(outline, parts, path)`. A collection (`builtin/`, `sim/`, `d4rl/`,
`minari/`) has `load_id(name, …)`, and `local_path(name)` where its datasets are files. Modules are imported on use, so
the command line stays quick.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.data.compare import compare, reordered
from ssorl.data.episodes import Episodes, concat
from ssorl.data.formats.base import Format, check_format
from ssorl.data.meta import WARNING
from ssorl.data.options import READ_ALL, Columns, ReadOptions
from ssorl.data.stream import PartReader
from ssorl.utils.errors import DataError
from ssorl.utils.files import atomic
from ssorl.utils.registry import Registry, TrustedName

BUILT_IN: dict[str, str] = {  # name -> module; sniffed in this order, before registered and installed formats
    "zarr": "ssorl.data.formats.zarr_groups",  # first: a zip of a store is a zip, as .npz is
    "ogbench": "ssorl.data.formats.ogbench",
    "npz": "ssorl.data.formats.npz",
    "robomimic": "ssorl.data.formats.robomimic",
    "aloha": "ssorl.data.formats.aloha",
    "d4rl": "ssorl.data.formats.d4rl",
    "minari": "ssorl.data.formats.minari",
    "lerobot": "ssorl.data.formats.lerobot",
    "parquet": "ssorl.data.formats.parquet",
    "csv": "ssorl.data.formats.csv_tables",
    "pickle": "ssorl.data.formats.pickles",
}
FORMATS: Registry[Any] = Registry("format", "ssorl.formats", "--format", BUILT_IN, check_format, modules=True)
COLLECTIONS: dict[str, str] = {  # prefix -> module
    "builtin": "ssorl.data.collections.builtin",
    "sim": "ssorl.data.sim.datasets",
    "d4rl": "ssorl.data.collections.d4rl_download",
    "minari": "ssorl.data.formats.minari",
}
SUFFIXES = {".npz": "npz", ".hdf5": "d4rl", ".h5": "d4rl", ".pkl": "pickle", ".pickle": "pickle", ".parquet": "parquet"}
# What the formats themselves call the arrays of a trajectory: extras must not take their place.
RESERVED = {"obs", "act", "rew", "terminated", "start", "meta", "observations", "next_observations", "actions"}
RESERVED |= {"rewards", "terminals", "dones", "timeouts", "action", "episode_index", "frame_index", "index", "ssorl"}


def register_format(name: str, format: Format) -> None:
    """Make a dataset format known under a name in this process.

    Other processes do not know it. A package that declares the module as an entry point of the group `ssorl.formats`
    makes it known wherever the package is installed.

    Args:
        name: what `--format` and `--to` call it; not the name of a built-in format.
        format: a module or an object with the functions of `ssorl.data.formats.base.Format`.

    Raises:
        SsorlError: the name is taken, or a function is missing.
    """
    FORMATS.register(name, format)


def load(
    name: str | Path,
    format: str | Format | None = None,
    min_length: int = 0,
    actions: bool = True,
    state: Sequence[str] = (),
    action: Sequence[str] = (),
    reward: str | None = None,
    episode: str | None = None,
) -> Episodes:
    """Return trajectories from a file, a folder or a collection.

    Args:
        name: `builtin/…`, `sim/…`, `d4rl/…`, `minari/…` or a path.
        format: a built-in, registered or installed format, the module of one, or one itself; by default the first that
            recognises the file.
        min_length: leave out trajectories of fewer steps.
        actions: whether to read actions; if not, all are missing.
        state: the columns or arrays that are joined into a state, in this order; by default they are found by their
            names. `*` stands for any text. Formats with fixed names take no columns.
        action: likewise of an action.
        reward: the column of rewards.
        episode: the column that tells trajectories apart.

    Raises:
        DataError: there is no such dataset, or it cannot be read.
    """
    columns = Columns(_names(state), _names(action), reward, episode)
    options = ReadOptions(min_length, actions, columns=columns)
    path, prefix = locate(name), str(name).partition("/")[0]
    if format is not None:
        return _with_columns(_chosen(format), columns, path).load(_existing(path), options)
    if prefix in COLLECTIONS and not os.path.exists(path):
        _with_columns(None, columns, path)
        return import_module(COLLECTIONS[prefix]).load_id(str(name).partition("/")[2], options)
    return _with_columns(_sniffed(_existing(path)), columns, path).load(path, options)


def locate(name: str | Path) -> Path:
    """Return the path of a dataset; a LeRobot repository, `owner/name`, is looked up where lerobot keeps it."""
    path = Path(name)
    if os.path.exists(path) or str(name).count("/") != 1 or path.is_absolute():
        return path
    cache = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface")
    root = Path(os.environ.get("HF_LEROBOT_HOME") or Path(cache, "lerobot"))
    return root / path if (root / path / "meta" / "info.json").is_file() else path


def _names(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _with_columns(format: Format | None, columns: Columns, path: Path) -> Any:
    """Return the format; raise DataError if columns are given and it has none to choose from."""
    if columns.given and not getattr(format, "takes_columns", False):
        raise DataError(
            f"{path}: {next(iter(columns.given))} has no effect, as the names in this format are fixed; leave it out, "
            "or name the format with --format"
        )
    return format


def open_parts(name: str | Path, format: str | None = None, options: ReadOptions = READ_ALL) -> PartReader:
    """Return a reader that yields the trajectories of a dataset in parts.

    Args:
        name: as for `load`.
        format: as for `load`.
        options: see `ReadOptions`.

    Raises:
        DataError: the dataset cannot be read, or not in parts.
    """
    path, prefix, source = locate(name), str(name).partition("/")[0], str(name)
    if format is None and prefix in COLLECTIONS and not os.path.exists(path):
        collection = import_module(COLLECTIONS[prefix])
        if not hasattr(collection, "local_path"):
            raise DataError(f"{name}: is not kept in a file that can be read in parts; leave out --stream")
        path = collection.local_path(source.partition("/")[2])
    module: Any = _chosen(format) if format is not None else _sniffed(_existing(path))
    _with_columns(module, options.columns, path)
    if not hasattr(module, "open_parts"):
        raise DataError(
            f"{name}: its format can only be read whole; leave out --stream, or convert it to another format first "
            "(`ssorl data convert`)"
        )
    found = module.open_parts(_existing(path), options)
    return found._replace(meta=replace(found.meta, source=source))


def _sniffed(path: Path) -> Format:
    """Return the format of a file or folder; installed formats are imported only if no other recognises it."""
    for known in FORMATS.names():
        module = _format(known)
        if module.sniff(path):
            return module
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path}: is empty; nothing can be learnt from an empty file")
    raise DataError(f"{path}: is in none of the formats {', '.join(FORMATS)}; convert it to one of them (docs/data.md)")


def load_pair(
    labelled: str | Path, unlabelled: str | Path, format: str | None = None, min_length: int = 0, **columns: Any
) -> Episodes:
    """Return the trajectories of two files as one dataset; the actions of the second are absent or ignored.

    Args:
        labelled: a dataset with actions.
        unlabelled: another one of the same robot.
        format: the format of both; see `load`.
        min_length: leave out trajectories of fewer steps.
        **columns: `state`, `action`, `reward` and `episode`, for both; see `load`.

    Raises:
        DataError: one of the two cannot be read, or they do not fit together.
    """
    known = load(labelled, format, min_length, **columns)
    return pair(known, load(unlabelled, format, min_length, actions=False, **columns))


def pair(labelled: Episodes, unlabelled: Episodes) -> Episodes:
    """Return trajectories with actions, then others whose actions are absent or ignored.

    Dimensions with the same names are put into one order. What makes joining the two a mistake becomes a note that
    begins with "warning: ".
    """
    if not labelled.labelled.any():
        raise DataError(f"{labelled.meta.source}: was given as the labelled file but has no action; swap the two?")
    a, b = labelled, reordered(labelled, unlabelled)
    comparable = a.n_obs == b.n_obs
    hidden = np.full((b.n_steps, a.n_act), np.nan, np.float32)
    b = Episodes(b.obs, hidden, b.rew, b.terminated, b.start, b.meta)
    warnings = [f"{WARNING}{text}" for text in compare(a, b)] if comparable else []
    notes = tuple(dict.fromkeys((*a.meta.notes, *b.meta.notes, *warnings)))
    return concat([a, b]).with_meta(source=f"{a.meta.source} + {b.meta.source}", notes=notes)


def save(
    eps: Episodes,
    path: str | Path,
    format: str | Format | None = None,
    force: bool = False,
    extras: dict[str, np.ndarray] | None = None,
) -> None:
    """Write trajectories, whole or not at all.

    Args:
        eps: the trajectories.
        path: the file or folder.
        format: as for `load`; by default the suffix of `path` says it (`.npz .hdf5 .pkl`).
        force: replace what is there.
        extras: further arrays with a row a step, such as which actions are proxies; each format has a place for them
            where no reader looks by itself (docs/labels.md).

    Raises:
        DataError: it cannot be written there, or in that format.
    """
    module = writer(path, format, force)
    extras = extras or {}
    for name, rows in extras.items():
        if name in RESERVED or not name.isidentifier() or len(rows) != eps.n_steps:
            raise DataError(f"{name!r} with {len(rows)} rows cannot go beside {eps.n_steps} steps; name it otherwise")
    with atomic(path) as fresh:
        module.save(eps, fresh, extras)


def writer(path: str | Path, format: str | Format | None = None, force: bool = False) -> Format:
    """Return the format that can write there, before a long computation begins.

    Args:
        path: where to write.
        format: as for `load`; by default the one that the suffix of `path` names.
        force: whether something that is there may be replaced.

    Raises:
        DataError: no format is named, or it cannot write, or something is there already.
    """
    path = Path(path)
    format = format if format is not None else _by_suffix(path)
    module, name = _chosen(format), format if isinstance(format, str) else FORMATS.name_of(format)
    if not hasattr(module, "save"):
        raise DataError(f"{path}: ssorl reads the format {name} and cannot write it; choose another with --to")
    if path.exists() and not force:
        raise DataError(f"{path}: exists already; choose another name or pass --force")
    if path.is_dir() and not module.sniff(path):
        raise DataError(f"{path}: is a folder but no {name} dataset, so nothing replaces it; choose another name")
    return module


def _by_suffix(path: Path) -> str:
    """Return the name of the format that a suffix stands for."""
    if path.suffix in SUFFIXES:
        return SUFFIXES[path.suffix]
    for name, format in FORMATS.installed() if path.suffix else ():
        if path.suffix in getattr(format, "suffixes", ()):
            return name
    raise DataError(
        f"{path}: end it in {', '.join(SUFFIXES)}; `ssorl data convert` and `ssorl label` write the formats "
        f"{', '.join(FORMATS.names())} under any name, with --to"
    )


def _chosen(format: str | Format) -> Format:
    """Return the format that the caller named; files never name one."""
    return _format(TrustedName(format)) if isinstance(format, str) else check_format(type(format).__name__, format)


def _format(name: str) -> Format:
    found = FORMATS.find(name)
    return import_module(found) if isinstance(found, str) else found  # type: ignore[return-value]


def _existing(path: Path) -> Path:
    if not os.path.exists(path):  # unlike Path.exists, it takes names that no file system would
        import difflib

        known = [n for n in listed_names() if "/" in n]
        near = difflib.get_close_matches(str(path), known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else "`ssorl data list` shows the names that are built in"
        raise DataError(f"{path}: no such file or dataset; {hint}")
    return path


def listed_names() -> list[str]:
    """Return the names of all datasets that `ssorl data list` shows."""
    names = []
    for prefix, module in COLLECTIONS.items():
        if prefix != "minari":
            names += [f"{prefix}/{n}" for n in import_module(module).names()]
    return names
