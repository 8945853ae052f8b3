"""D4RL's HDF5 files (arXiv 2004.07219): flat arrays, cut into episodes by `terminals` and `timeouts`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np

from ssorl.data.check import ANY, Wish, build, dropped_note, head, reading
from ssorl.data.episodes import Episodes, Meta
from ssorl.data.sources.npz import meta_from_json
from ssorl.envs.scores import SCORES
from ssorl.errors import DataError

CHUNK = 1 << 16  # rows held twice while they move into place
LARGEST_RATIO = 1100  # gzip cannot do better; past it a declared shape is a lie


def sniff(path: Path) -> bool:
    """Whether it is an HDF5 file."""
    return head(path, 8) == b"\x89HDF\r\n\x1a\n"


def task_of(name: str) -> str | None:
    """The task a D4RL name speaks of: `hopper_medium-v2` is hopper, `maze2d-umaze-dense-v1` that maze."""
    name = name.replace("_", "-")
    return next((task for task in SCORES if re.match(rf"{task}(-|$)", name)), None)


def load(path: Path, wish: Wish = ANY) -> Episodes:
    """Read and check one file. Where an episode's last observation is unknown its last step is dropped."""
    src, task = str(path), task_of(path.stem)
    with reading(src, "a D4RL HDF5 file"), h5py.File(path, "r") as file:
        names = set(file)  # the links themselves: `in file` would follow them, out of the file if they lead there
        lacking = [k for k in ("observations", "rewards") if k not in names]
        if lacking:
            raise DataError(
                f"{src}: has no dataset named {' nor '.join(lacking)}; a D4RL file has observations, actions, "
                "rewards, terminals"
            )
        obs, rew = _dataset(file, "observations", src), _dataset(file, "rewards", src)[:].reshape(-1)
        n = len(obs)
        terminals = _flags(file, "terminals", n, src) if "terminals" in names else None
        timeouts = _flags(file, "timeouts", n, src) if "timeouts" in names else None
        act = _dataset(file, "actions", src)[:] if wish.actions and "actions" in names else None
        for name, array in (("rewards", rew), ("actions", act)):
            if array is not None and len(array) != n:
                raise DataError(f"{src}: {len(array)} {name} but {n} observations; the arrays must be equally long")
        if n == 0:
            raise DataError(f"{src}: holds no steps; nothing can be learnt from an empty file")
        if obs.ndim != 2:
            raise DataError(f"{src}: observations have shape {obs.shape}; flatten each one to a vector")
        nxt = _dataset(file, "next_observations", src) if "next_observations" in names else None
        if nxt is not None and nxt.shape != obs.shape:
            raise DataError(
                f"{src}: next_observations has shape {nxt.shape}, observations {obs.shape}; they must agree"
            )
        meta = _meta(file, src, task, 0 if act is None or act.ndim != 2 else act.shape[1])
        if terminals is None:
            terminals = np.zeros(n, bool)
        if timeouts is None:
            horizon = SCORES[task].horizon if task else 1000
            timeouts = _cut_at_horizon(terminals, horizon)
            meta = meta.noting(f"the file marks no timeouts: episodes were cut at the horizon of {horizon} steps")
        ends = np.flatnonzero(terminals | timeouts) + 1
        bounds = np.unique(np.concatenate([[0], ends, [n]]))
        # The rows after the last ending are a cut-off episode; one row alone is not even that.
        if bounds[-1] - bounds[-2] < 2 and len(bounds) > 2 and not (terminals | timeouts)[-1]:
            bounds = bounds[:-1]
            meta = meta.noting("a single row at the end of the file, after the last episode, was left out")
        lengths = np.diff(bounds)
        n = int(bounds[-1])
        if nxt is not None:
            rows = np.repeat(
                np.arange(len(lengths)), lengths
            )  # one array, changed in place: it is as large as an action
            rows += np.arange(n)
            flat = np.empty((n + len(lengths), obs.shape[1]), np.float32)
            _scatter(obs, rows, flat)
            last = bounds[1:] - 1
            rows[:] = -1
            rows[last] = last + np.arange(1, len(lengths) + 1)
            _scatter(nxt, rows, flat)
            del rows
            return build(flat, None if act is None else act[:n], rew[:n], terminals[:n], lengths, meta, wish)
        # Without the state after it, the last row of an episode gives its observation to the step before.
        keep = np.ones(n, bool)
        keep[bounds[1:] - 1] = False
        flat = np.empty((n, obs.shape[1]), np.float32)
        _scatter(obs, np.arange(n), flat)
        if not keep.any():
            raise DataError(
                f"{src}: every episode is one row long, so nothing is left once the last rows are dropped; add "
                "next_observations"
            )
        some = lengths > 1
        if not some.all():
            meta = meta.noting(f"{(~some).sum()} episodes of a single row were left out: no state follows it")
        flat = flat if some.all() else flat[np.repeat(some, lengths)]
        return build(
            flat,
            None if act is None else act[:n][keep],
            rew[:n][keep],
            np.zeros(int(keep.sum()), bool),
            lengths[some] - 1,
            meta.noting(dropped_note(int(some.sum()))),
            wish,
        )


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write D4RL's layout, `next_observations` and `timeouts` included; missing actions are NaN, extras under infos."""
    with h5py.File(path, "w") as file:
        options = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
        file.create_dataset("observations", data=eps.obs[eps.obs_row], **options)
        file.create_dataset("next_observations", data=eps.obs[eps.obs_row + 1], **options)
        if eps.n_act:
            file.create_dataset("actions", data=eps.act, **options)
        file.create_dataset("rewards", data=eps.rew, **options)
        file.create_dataset("terminals", data=eps.terminated, **options)
        file.create_dataset("timeouts", data=eps.truncated, **options)
        for name, values in extras.items():
            file.create_dataset(f"infos/{name}", data=values, **options)
        # Of fixed length on purpose: see `_meta`.
        file.attrs["ssorl"] = np.bytes_(json.dumps(asdict(eps.meta)))


def _dataset(file: h5py.File, name: str, src: str) -> h5py.Dataset:
    """One dataset of numbers, stored in this very file and truly of the size it declares."""
    hard(file.get(name, getlink=True), name, src)
    data = file[name]
    if not isinstance(data, h5py.Dataset) or data.dtype.kind not in "fiub" or data.ndim == 0:
        raise DataError(f"{src}: {name} is not an array of numbers; a D4RL file has one number or vector a step there")
    if fault := elsewhere(data):
        raise DataError(f"{src}: {name} {fault}")
    return data


def hard(link: object, name: str, src: str) -> None:
    """Refuse a link that leads elsewhere in this file or out of it."""
    if not isinstance(link, h5py.HardLink):
        raise DataError(f"{src}: {name} is a link and links are not followed; copy the data into the file")


def elsewhere(data: h5py.Dataset) -> str | None:
    """What is wrong with a dataset whose values lie in another file or nowhere at all."""
    if data.external or data.is_virtual:
        return "lies in another file and is not followed; copy the data into the file"
    stored = data.id.get_storage_size()
    if data.nbytes > LARGEST_RATIO * max(stored, 1):
        return f"declares {data.nbytes} bytes but stores {stored}; write its values out"
    return None


def _flags(file: h5py.File, name: str, n: int, src: str) -> np.ndarray:
    flags = _dataset(file, name, src)[:].reshape(-1).astype(bool)
    if len(flags) != n:
        raise DataError(f"{src}: {len(flags)} {name} but {n} observations; the arrays must be equally long")
    return flags


def _blocks(data: h5py.Dataset, n: int) -> Iterator[tuple[int, np.ndarray]]:
    for a in range(0, n, CHUNK):
        yield a, data[a : min(a + CHUNK, n)]


def _scatter(data: h5py.Dataset, rows: np.ndarray, out: np.ndarray) -> None:
    """out[rows[i]] = data[i], block by block; rows of -1 are passed over."""
    for a, block in _blocks(data, len(rows)):
        to = rows[a : a + len(block)]
        kept = to >= 0
        if kept.all():
            out[to] = block
        elif kept.any():
            out[to[kept]] = block[kept]


def _cut_at_horizon(terminals: np.ndarray, horizon: int) -> np.ndarray:
    """Timeouts every `horizon` steps since the last ending, as D4RL does for files that mark none."""
    step = np.arange(len(terminals))
    first = np.concatenate([[0], np.flatnonzero(terminals) + 1])
    begin = first[np.searchsorted(first, step, side="right") - 1]
    return (step - begin + 1) % horizon == 0


def _meta(file: h5py.File, src: str, task: str | None, n_act: int) -> Meta:
    # Text of variable length lies in HDF5's global heap, and a damaged heap sends libhdf5 round in circles for ever.
    if "ssorl" in file.attrs and file.attrs.get_id("ssorl").dtype.kind == "S":
        return meta_from_json(np.bytes_(file.attrs["ssorl"]).decode(), src)
    if task is None:
        return Meta(source=src)
    ref = SCORES[task]
    bounds = {"act_low": (-1.0,) * n_act, "act_high": (1.0,) * n_act, "act_range": "declared"} if n_act else {}
    return Meta(source=src, env=task, random_return=ref.random, expert_return=ref.expert, **bounds)
