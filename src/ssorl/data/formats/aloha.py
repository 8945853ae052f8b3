"""ALOHA's and ACT's HDF5 files (arXiv 2304.13705): a folder with a file for each episode, or one such file.

The state is the joined vectors of `observations/` (`effort`, `qpos`, `qvel`), in alphabetical order; camera images are
not read. A row holds the state before its action, so the last row of a file only gives its state. There are no rewards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats import hdf5
from ssorl.data.formats.columns import Roles, assign, from_rows, with_parts
from ssorl.data.formats.parts import Source, load_whole, natural, open_by_index
from ssorl.data.stats import join_names
from ssorl.data.stream import PartReader
from ssorl.data.validate import READ_ALL, Raw, ReadOptions, as_floats, escaped
from ssorl.utils.errors import DataError

KIND = "an ALOHA HDF5 folder"
SUFFIXES = (".hdf5", ".h5")
takes_columns = True


def sniff(path: Path) -> bool:
    """Return whether it is a file with `observations/qpos` and `action`, or a folder whose first HDF5 file is one."""
    files = _files(path)
    return bool(files) and hdf5.has_members(files[0], "observations", "qpos")


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check a folder or file."""
    return load_whole(_opened, KIND, path, options)


def open_parts(path: Path, options: ReadOptions = READ_ALL) -> PartReader:
    """Return a reader of some episodes at a time."""
    return open_by_index(_opened, KIND, path, options)


def _files(path: Path) -> list[Path]:
    """The HDF5 files of a folder, `episode_10` after `episode_9`."""
    if not path.is_dir():
        return [path]
    return sorted((f for f in path.iterdir() if f.suffix in SUFFIXES), key=lambda f: natural(f.name))


@contextmanager
def _opened(path: Path, options: ReadOptions) -> Iterator[Source]:
    src, files = str(path), _files(path)
    if not files:
        raise DataError(f"{src}: holds no .hdf5 file; give the folder with the files of the episodes")
    with h5py.File(files[0], "r") as file:
        roles, left = _roles(file, str(files[0]), options)
        sizes = {n: _width(_array(file, n, str(files[0]))) for n in roles.state}
    n_act = _action_size(files, roles) if options.actions else 0
    action = [(roles.action[0], n_act)] if n_act else []
    meta = with_parts(Meta(source=src), list(sizes.items()), action)
    if left:
        verb = "was" if len(left) == 1 else "were"
        meta = meta.with_notes(f"{join_names(left)} {verb} left out: only numbers and vectors of numbers are read")
    lengths = []
    for name in files:
        with h5py.File(name, "r") as file:
            lengths.append(len(_array(file, roles.state[0], str(name))))

    def read(first: int, last: int) -> Raw:
        return _read(files, lengths, roles, sizes, n_act, first, last)

    yield Source(meta, np.maximum(np.array(lengths, np.int64) - 1, 0), read)


def _read(
    files: list[Path],
    lengths: list[int],
    roles: Roles,
    sizes: dict[str, int],
    n_act: int,
    first: int,
    last: int,
) -> Raw:
    obs: np.ndarray | None = None
    n_rows, at = sum(lengths[first:last]), 0
    act = np.full((n_rows, n_act), np.nan, np.float32) if n_act else None
    rew = np.full(n_rows, np.nan, np.float32) if roles.reward else None
    for e in range(first, last):
        name, n = str(files[e]), lengths[e]
        with h5py.File(files[e], "r") as file:
            state = np.concatenate([as_floats(_rows(file, key, name, n, sizes[key])) for key in sizes], axis=1)
            obs = np.empty((n_rows, state.shape[1]), state.dtype) if obs is None else obs
            obs[at : at + n] = state
            if act is not None and roles.action[0] in file:
                act[at : at + n] = _rows(file, roles.action[0], name, n, n_act)
            if rew is not None:
                rew[at : at + n] = _rows(file, str(roles.reward), name, n, 1)[:, 0]
        at += n
    return from_rows(np.empty((0, 1)) if obs is None else obs, act, rew, np.array(lengths[first:last]), first=first)


def _roles(file: h5py.File, src: str, options: ReadOptions) -> tuple[Roles, list[str]]:
    """Return which arrays are read, and the observations that are not vectors."""
    observations = hdf5.group(file, "observations", src)
    arrays = {str(name): observations[name] for name in observations}
    arrays = {name: x for name, x in arrays.items() if isinstance(x, h5py.Dataset) and x.dtype.kind in "fiub"}
    vectors = [name for name, x in arrays.items() if x.ndim in (1, 2)]
    links = [str(name) for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)]
    others = [name for name in links if isinstance(item := file[name], h5py.Dataset) and item.ndim in (1, 2)]
    roles = assign([*vectors, *others], options, src, sorted(vectors))
    if options.columns.episode:
        raise DataError(f"{src}: each file is an episode; leave --episode out")
    left = [escaped(n) for n in observations if n not in vectors and n not in roles.state]
    return Roles(roles.state, roles.action[:1] or ["action"], roles.reward, None), left


def _action_size(files: list[Path], roles: Roles) -> int:
    """The size of the actions in the first file that has some; 0 if none has."""
    for name in files:
        with h5py.File(name, "r") as file:
            if roles.action[0] in file:
                return _width(_array(file, roles.action[0], str(name)))
    return 0


def _array(file: h5py.File, name: str, src: str) -> h5py.Dataset:
    """An array of `observations`, or else of the file itself."""
    observations = hdf5.group(file, "observations", src)
    return hdf5.dataset(observations if name in set(observations) else file, name, src)


def _rows(file: h5py.File, name: str, src: str, n: int, size: int) -> np.ndarray:
    """An array as [n, size]."""
    data = _array(file, name, src)
    if len(data) != n or _width(data) != size:
        raise DataError(
            f"{src}: {escaped(name)} has shape {data.shape} where {n} rows of {size} are due, as in its other arrays "
            "and the other files; put different robots into different folders"
        )
    return data[:].reshape(n, size)


def _width(data: h5py.Dataset) -> int:
    return int(np.prod(data.shape[1:], dtype=object))
