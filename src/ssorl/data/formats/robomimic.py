"""robomimic's HDF5 files (arXiv 2108.03298): a group `data/demo_k` for each demonstration.

The state is the joined vectors of `obs/`, in alphabetical order, or `states` where there is no `obs`. Demonstrations
without `actions` are unlabelled. The last step needs `next_obs`. `mask/`, `env_args` and the model's XML are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats import hdf5
from ssorl.data.formats.columns import Roles, assign, from_rows, parts_of, with_parts
from ssorl.data.formats.parts import Source, load_whole, natural, open_by_index
from ssorl.data.stats import join_names
from ssorl.data.stream import Header, LabelledPart, PartReader, header_of
from ssorl.data.validate import READ_ALL, Raw, ReadOptions, as_floats, escaped
from ssorl.utils.errors import DataError

KIND = "a robomimic HDF5 file"
PREFIX = "observation."  # prefix of state features in LeRobot, which names here omit
takes_columns = True


def sniff(path: Path) -> bool:
    """Return whether it is an HDF5 file with `data/demo_…` groups."""
    return hdf5.has_members(path, "data", "demo")


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check a file."""
    return load_whole(_opened, KIND, path, options)


def open_parts(path: Path, options: ReadOptions = READ_ALL) -> PartReader:
    """Return a reader of some demonstrations at a time."""
    return open_by_index(_opened, KIND, path, options)


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write a file that robomimic reads; the extras go into `infos` of each demonstration."""
    save_parts(header_of(eps), iter([(eps, extras)]), path)


def save_parts(header: Header, parts: Iterator[LabelledPart], path: Path) -> None:
    """Write the same from trajectories that are read in parts."""
    hdf5.check_free_space(path, header)
    meta = header.meta
    keys = _keys(meta, header.n_obs)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = header.n_steps
        data.attrs["env_args"] = json.dumps({"env_name": meta.env or "", "type": 2, "env_kwargs": {}})
        hdf5.attach_meta(data, meta)
        number = 0
        for eps, extras in parts:
            for e in range(len(eps)):
                one, a, b = eps[e], eps.start[e], eps.start[e + 1]
                demo = data.create_group(f"demo_{number}")
                demo.attrs["num_samples"] = one.n_steps
                for key, at in keys.items():
                    demo[f"obs/{key}"], demo[f"next_obs/{key}"] = one.obs[:-1, at], one.obs[1:, at]
                if one.n_act:
                    demo["actions"] = one.act
                if one.rewarded[0]:
                    demo["rewards"] = one.rew
                demo["dones"] = one.terminated
                for name, rows in extras.items():
                    demo[f"infos/{name}"] = rows[a:b]
                number += 1


def _keys(meta: Meta, n_obs: int) -> dict[str, slice]:
    """Return the key of each part of the state, and where it is."""
    parts = [(name.removeprefix(PREFIX), size) for name, size in meta.state_parts]
    usable = all(name and "/" not in name and name != "." for name, _ in parts)
    return parts_of(parts if usable else (), n_obs, "state")


@contextmanager
def _opened(path: Path, options: ReadOptions) -> Iterator[Source]:
    src = str(path)
    with h5py.File(path, "r", rdcc_nbytes=hdf5.CACHE) as file:
        data = hdf5.group(file, "data", src)
        names = sorted((str(name) for name in data if str(name).startswith("demo")), key=natural)
        if not names:
            raise DataError(f"{src}: holds no demonstrations (data/demo_0, …); choose another --format")
        own = hdf5.own_meta(data, src)
        demos = _Demos(data, names, options, src, own)
        yield Source(demos.meta, demos.lengths, demos.read)


class _Demos:
    """The demonstrations of an open file, and what is read of each."""

    def __init__(self, data: h5py.Group, names: list[str], options: ReadOptions, src: str, own: Meta | None):
        self.data, self.names, self.src = data, names, src
        first = self._group(0)
        obs = hdf5.group(first, "obs", src) if "obs" in first else None
        arrays = {f"obs/{name}": _shape(obs[name]) for name in obs} if obs is not None else {}
        arrays |= {str(name): _shape(first[name]) for name in first if name not in ("obs", "next_obs", "infos")}
        vectors = [name for name, shape in arrays.items() if len(shape) in (1, 2)]
        self.roles = self._roles(vectors, options, own)
        images = [escaped(n.removeprefix("obs/")) for n, s in arrays.items() if n.startswith("obs/") and len(s) > 2]
        self.has_next = all(n.startswith("obs/") for n in self.roles.state) and "next_obs" in first
        self.sizes = [int(np.prod(arrays[n][1:], dtype=object)) for n in self.roles.state]
        self.groups = [k for k in ("obs", "next_obs") if self._needs(k)]
        kinds = {as_floats(np.empty(0, self._dataset(0, name).dtype)).dtype for name in self.roles.state}
        self.kind = np.float64 if np.dtype(np.float64) in kinds else np.float32
        self.n_act = self._action_size() if options.actions else 0
        rows = [len(self._dataset(e, self.roles.state[0])) for e in range(len(names))]
        self.lengths = np.array(rows, np.int64) if self.has_next else np.maximum(np.array(rows, np.int64) - 1, 0)
        state = [(n.removeprefix("obs/"), size) for n, size in zip(self.roles.state, self.sizes, strict=True)]
        action = [(self.roles.action[0], self.n_act)] if self.n_act and self.roles.action else []
        if own is not None and not options.columns.given:
            self.meta = own
        else:
            self.meta = with_parts(own or Meta(source=src), state, action)
        if images and own is None:
            left = "was" if len(images) == 1 else "were"
            self.meta = self.meta.with_notes(
                f"{join_names(images)} {left} left out: only numbers and vectors of numbers are read"
            )

    def _roles(self, vectors: list[str], options: ReadOptions, own: Meta | None) -> Roles:
        """Return which arrays are read; the caller names keys of `obs` without `obs/`."""
        plain = {name: name.removeprefix("obs/") for name in vectors}
        full = {short: name for name, short in plain.items()}
        keys = [short for name, short in plain.items() if name.startswith("obs/")]
        kept = list(_keys(own, sum(n for _, n in own.state_parts) or 1)) if own is not None else []
        default = kept if kept and set(kept) <= set(keys) else sorted(keys) or ["states"] * ("states" in plain)
        roles = assign(list(full), options, self.src, default)
        if roles.episode is not None and options.columns.episode:
            raise DataError(f"{self.src}: each demonstration is a trajectory; leave --episode out")
        action = roles.action or ["actions"]  # the first demonstration may be unlabelled
        return Roles([full[n] for n in roles.state], action[:1], roles.reward or "rewards", None)

    def _needs(self, group: str) -> bool:
        return self.has_next if group == "next_obs" else any(name.startswith("obs/") for name in self.roles.state)

    def _group(self, e: int) -> h5py.Group:
        return hdf5.group(self.data, self.names[e], self.src)

    def _dataset(self, e: int, name: str) -> h5py.Dataset:
        """Return an array of a demonstration, by its name or `obs/KEY`."""
        parent = self._group(e)
        if name.startswith("obs/"):
            parent, name = hdf5.group(parent, "obs", self.src), name.removeprefix("obs/")
        return hdf5.dataset(parent, name, self.src)

    def _action_size(self) -> int:
        name = self.roles.action[0]
        for e in range(len(self.names)):
            if name in self._group(e):
                shape = self._dataset(e, name).shape
                return int(np.prod(shape[1:], dtype=object))
        return 0

    def read(self, first: int, last: int) -> Raw:
        """Return the demonstrations from one index up to another."""
        lengths = self.lengths[first:last] + (0 if self.has_next else 1)
        n_rows = int(lengths.sum())
        obs = np.empty((n_rows + (last - first) * self.has_next, sum(self.sizes)), self.kind)
        act = np.full((n_rows, self.n_act), np.nan, np.float32) if self.n_act else None
        rew, ended = np.full(n_rows, np.nan, np.float32), np.zeros(n_rows, bool)
        row = at = 0
        for e, n in zip(range(first, last), lengths.tolist(), strict=True):
            demo = self._group(e)
            groups = {"obs": demo} | {k: hdf5.group(demo, k, self.src) for k in self.groups}
            members = set(demo)
            self._read_states(e, demo, groups, obs[row : row + n + self.has_next], n)
            if act is not None and self.roles.action[0] in members:
                act[at : at + n] = self._rows(e, demo, self.roles.action[0], n, self.n_act)
            if self.roles.reward in members:
                rew[at : at + n] = self._rows(e, demo, str(self.roles.reward), n, 1)[:, 0]
            if "dones" in members and n:  # after a success, robomimic sets it in all steps that follow
                ended[at + n - 1] = self._rows(e, demo, "dones", n, 1)[-1, 0] > 0
            row, at = row + n + self.has_next, at + n
        if self.has_next:
            return Raw(obs, act, rew, ended, lengths)
        return from_rows(obs, act, rew, lengths, first=first)

    def _read_states(self, e: int, demo: h5py.Group, groups: dict[str, h5py.Group], out: np.ndarray, n: int) -> None:
        at = 0
        for name, size in zip(self.roles.state, self.sizes, strict=True):
            key = name.removeprefix("obs/")
            parent = groups["obs"] if name.startswith("obs/") else demo
            out[:n, at : at + size] = self._rows(e, parent, key, n, size)
            if self.has_next and n:
                after = hdf5.dataset(groups["next_obs"], key, self.src)
                if len(after) != n or int(np.prod(after.shape[1:], dtype=object)) != size:
                    raise DataError(
                        f"{self.src}: {self.names[e]}: next_obs/{escaped(key)} has shape {after.shape} where {n} rows "
                        f"of {size} are due, as in obs; write it again"
                    )
                out[n, at : at + size] = after[-1].reshape(-1)
            elif self.has_next:
                out[0, at : at + size] = np.nan
            at += size

    def _rows(self, e: int, parent: h5py.Group, name: str, n: int, size: int) -> np.ndarray:
        """Return an array of a demonstration as [n, size]."""
        data = hdf5.dataset(parent, name, self.src)
        if len(data) != n or int(np.prod(data.shape[1:], dtype=object)) != size:
            raise DataError(
                f"{self.src}: {self.names[e]}: {escaped(name)} has shape {data.shape} where {n} rows of {size} are "
                "due, as in its other arrays and the other demonstrations; put different robots into different files"
            )
        return data[:].reshape(n, size)


def _shape(item: object) -> tuple[int, ...]:
    """The shape of an array of numbers; () of anything else."""
    return item.shape if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiub" else ()
