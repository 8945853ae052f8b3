"""D4RL's HDF5 files (arXiv 2004.07219): flat arrays, cut into episodes by `terminals` and `timeouts`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from ssorl.data.episodes import RANGE_TOL, Episodes, Meta, ranges
from ssorl.data.formats.hdf5 import CACHE, MAGIC, attach_meta, check_free_space, dataset, own_meta
from ssorl.data.stats import differing_rows, join_names
from ssorl.data.stream import Header, LabelledPart, PartReader, header_of, part_bounds
from ssorl.data.validate import (
    READ_ALL,
    Raw,
    ReadOptions,
    as_floats,
    build,
    first_bytes,
    parser_errors,
    with_reader_notes,
)
from ssorl.envs.scores import SCORES
from ssorl.utils.errors import DataError

KIND = "a D4RL HDF5 file"
CHUNK = 1 << 16  # rows held twice while they move into place
FLAGS = ("dones", "done", "terminated", "terminations", "truncated", "truncations")  # what others call endings


def sniff(path: Path) -> bool:
    """Return whether it is an HDF5 file."""
    return first_bytes(path, 8) == MAGIC


def task_of(name: str) -> str | None:
    """Return the task in a D4RL name: `hopper_medium-v2` is hopper, `maze2d-umaze-dense-v1` that maze; else None."""
    name = name.replace("_", "-")
    return next((task for task in SCORES if re.match(rf"{task}(-|$)", name)), None)


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check a file; the last step of an episode is dropped if the state after it is unknown."""
    with parser_errors(str(path), KIND), h5py.File(path, "r") as file:
        plan = _layout(file, path, options)
        raw = _part(plan, 0, len(plan.bounds) - 1)
        meta = _fitting(plan, [] if raw.act is None else [raw.act])
        return build(*raw[:5], with_reader_notes(meta, mismatched=raw.mismatched), options, raw.number)


def open_parts(path: Path, options: ReadOptions = READ_ALL) -> PartReader:
    """Return a reader of some episodes at a time."""
    with parser_errors(str(path), KIND), h5py.File(path, "r") as file:
        plan = _layout(file, path, options)
        acts = () if plan.act is None else (block for _, block in _blocks(plan.act, 0, len(plan.act)))
        meta, n_steps, breaks = _fitting(plan, acts), int(plan.bounds[-1]), plan.breaks

    def read(size: int) -> Iterator[Raw]:
        with h5py.File(path, "r", rdcc_nbytes=CACHE) as file:
            plan = _layout(file, path, options, breaks)
            for first, last in part_bounds(plan.bounds, size):
                if plan.nxt is not None or plan.bounds[last] - plan.bounds[first] > last - first:
                    yield _part(plan, first, last)

    return PartReader(meta, n_steps, KIND, read)


class Layout(NamedTuple):
    """The datasets of a file, and where its episodes begin and end."""

    obs: h5py.Dataset
    nxt: h5py.Dataset | None  # next_observations
    act: h5py.Dataset | None
    rew: h5py.Dataset | None  # rewards; None: the file has none
    bounds: np.ndarray  # [E+1]: the first row of each episode, then the row past the last
    ended: np.ndarray  # [E] bool: which terminated
    meta: Meta
    named: bool  # only the name of the file gives the range of the actions
    breaks: np.ndarray | None  # rows whose next state is not the row that follows; None: not needed


def _layout(file: h5py.File, path: Path, options: ReadOptions, breaks: np.ndarray | None = None) -> Layout:
    """Return where episodes begin and end, after checks that the datasets agree.

    Only the flags are read. Where the file marks no timeouts and `breaks` are not given, the states are read too.
    """
    src, task = str(path), task_of(path.stem)
    names = set(file)  # the links themselves: `in file` would follow them, out of the file if they lead there
    if "observations" not in names:
        raise DataError(
            f"{src}: has no dataset named observations; a D4RL file has observations, actions, rewards, terminals"
        )
    if "terminals" not in names and (others := [name for name in FLAGS if name in names]):
        raise DataError(
            f"{src}: has no dataset named terminals, and {join_names(others)} may mean either end of an episode; give "
            "terminals, where the task ended it, and timeouts, where time was up"
        )
    obs = dataset(file, "observations", src)
    rew = dataset(file, "rewards", src) if "rewards" in names else None
    n = len(obs)
    terminals = _marked(file, "terminals", n, src) if "terminals" in names else np.array([], np.int64)
    timeouts = _marked(file, "timeouts", n, src) if "timeouts" in names else None
    act = dataset(file, "actions", src) if options.actions and "actions" in names else None
    for name, length in (("rewards", n if rew is None else rew.size), ("actions", n if act is None else len(act))):
        if length != n:
            raise DataError(f"{src}: {length} {name} but {n} observations; the arrays must be equally long")
    if n == 0:
        raise DataError(f"{src}: holds no steps; nothing can be learnt from an empty file")
    if obs.ndim != 2:
        raise DataError(f"{src}: observations have shape {obs.shape}; flatten each one to a vector")
    nxt = dataset(file, "next_observations", src) if "next_observations" in names else None
    if nxt is not None and nxt.shape != obs.shape:
        raise DataError(f"{src}: next_observations has shape {nxt.shape}, observations {obs.shape}; they must agree")
    own = own_meta(file, src)
    meta = own or _named_meta(src, task, 0 if act is None or act.ndim != 2 else act.shape[1])
    if timeouts is None:
        horizon, where = SCORES[task].horizon if task else 1000, ""
        breaks = _breaks(obs, nxt) if breaks is None else breaks
        resets = np.setdiff1d(breaks, terminals)
        timeouts = np.union1d(resets, _cut_at_horizon(np.union1d(terminals, resets), n, horizon))
        if len(resets):
            where = f"at {len(resets)} rows whose next_observations is not the row that follows, and "
        flags = "timeouts" if "terminals" in names else "terminals and no timeouts"
        meta = meta.with_notes(f"the file marks no {flags}: episodes were cut {where}at the horizon of {horizon} steps")
    ends = np.union1d(terminals, timeouts)
    bounds = np.unique(np.concatenate([[0], ends + 1, [n]]))
    # The rows after the last ending are a cut-off episode; one row alone is not even that.
    if bounds[-1] - bounds[-2] < 2 and len(bounds) > 2 and ends[-1] != n - 1:
        bounds = bounds[:-1]
        meta = meta.with_notes("a single row at the end of the file, after the last episode, was left out")
    if nxt is None:
        some = np.diff(bounds) > 1
        if not some.any():
            raise DataError(
                f"{src}: every episode is one row long, so nothing is left once the last rows are dropped; add "
                "next_observations"
            )
        if not some.all():
            meta = meta.with_notes(f"{(~some).sum()} episodes of a single row were left out: no state follows it")
        meta = with_reader_notes(meta, dropped=int(some.sum()))
    ended, named = np.isin(bounds[1:] - 1, terminals), own is None and bool(meta.act_low)
    return Layout(obs, nxt, act, rew, bounds, ended, meta, named, breaks)


def _part(plan: Layout, first: int, last: int) -> Raw:
    """Return the episodes from one index up to another."""
    bounds = plan.bounds[first : last + 1]
    a, b = int(bounds[0]), int(bounds[-1])
    lengths, ends = np.diff(bounds), bounds[1:] - 1 - a
    kind = as_floats(np.empty(0, plan.obs.dtype)).dtype
    act = None if plan.act is None else plan.act[a:b]
    if plan.rew is None:
        rew = np.full(b - a, np.nan, np.float32)
    else:
        rew = plan.rew[a:b].reshape(-1) if len(plan.rew) == len(plan.obs) else plan.rew[:].reshape(-1)[a:b]
    if plan.nxt is not None:
        rows = np.repeat(np.arange(len(lengths)), lengths)  # one array, changed in place: it is as large as an action
        rows += np.arange(b - a)
        flat = np.empty((b - a + len(lengths), plan.obs.shape[1]), kind)
        _scatter(plan.obs, a, rows, flat)
        rows += 1
        mismatched = 0
        for at, block in _blocks(plan.nxt, a, b - a):
            block = block.astype(kind, copy=False)
            final = ends[slice(*np.searchsorted(ends, [at, at + len(block)]))]
            flat[rows[final]] = block[final - at]
            mismatched += len(differing_rows(block, flat[rows[at : at + len(block)]]))
        ended = np.zeros(b - a, bool)
        ended[ends] = plan.ended[first:last]
        return Raw(flat, act, rew, ended, lengths, mismatched=mismatched)
    # Without the state after it, the last row of an episode gives its observation to the step before.
    keep = np.ones(b - a, bool)
    keep[ends] = False
    flat = np.empty((b - a, plan.obs.shape[1]), kind)
    _scatter(plan.obs, a, np.arange(b - a), flat)
    some = lengths > 1
    flat = flat if some.all() else flat[np.repeat(some, lengths)]
    act, ended = None if act is None else act[keep], np.zeros(keep.sum(), bool)
    return Raw(flat, act, rew[keep], ended, lengths[some] - 1, number=first + np.flatnonzero(some))


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write D4RL's layout with `next_observations` and `timeouts`; missing actions are NaN, extras in `infos`."""
    save_parts(header_of(eps), iter([(eps, extras)]), path)


def save_parts(header: Header, parts: Iterator[LabelledPart], path: Path) -> None:
    """Write the same from trajectories that are read in parts."""
    check_free_space(path, header)
    with h5py.File(path, "w", rdcc_nbytes=CACHE) as file:
        at, made = 0, {}
        for eps, extras in parts:
            columns = {
                "observations": eps.obs[eps.obs_row],
                "next_observations": eps.obs[eps.obs_row + 1],
                **({"actions": eps.act} if eps.n_act else {}),
                "rewards": eps.rew,
                "terminals": eps.terminated,
                "timeouts": eps.truncated,
                **{f"infos/{name}": values for name, values in extras.items()},
            }
            for name, values in columns.items():
                if name not in made:
                    shape = (header.n_steps, *values.shape[1:])
                    compression = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
                    made[name] = file.create_dataset(name, shape, values.dtype, **compression)
                made[name][at : at + len(values)] = values
            at += eps.n_steps
        attach_meta(file, header.meta)


def _marked(file: h5py.File, name: str, n: int, src: str) -> np.ndarray:
    """Return the rows whose flag is set, [n] int64, ascending."""
    flags = dataset(file, name, src)
    if flags.size != n:
        raise DataError(f"{src}: {flags.size} {name} but {n} observations; the arrays must be equally long")
    found, at = [np.array([], np.int64)], 0
    for _, block in _blocks(flags, 0, len(flags)):
        found.append(np.flatnonzero(block.reshape(-1)) + at)
        at += block.size
    return np.concatenate(found)


def _blocks(data: h5py.Dataset, first: int, n: int) -> Iterator[tuple[int, np.ndarray]]:
    for a in range(0, n, CHUNK):
        yield a, data[first + a : first + min(a + CHUNK, n)]


def _scatter(data: h5py.Dataset, first: int, rows: np.ndarray, out: np.ndarray) -> None:
    """out[rows[i]] = data[first + i], block by block."""
    for a, block in _blocks(data, first, len(rows)):
        out[rows[a : a + len(block)]] = block


def _breaks(obs: h5py.Dataset, nxt: h5py.Dataset | None) -> np.ndarray:
    """Return the rows whose next state is not the row that follows, ascending: an episode ended there."""
    found = [np.array([], np.int64)]
    for a, block in _blocks(nxt, 0, len(obs) - 1) if nxt is not None else ():
        after = obs[a + 1 : a + 1 + len(block)].astype(np.float32, copy=False)
        found.append(differing_rows(block.astype(np.float32, copy=False), after) + a)
    return np.concatenate(found)


def _cut_at_horizon(terminals: np.ndarray, n: int, horizon: int) -> np.ndarray:
    """Return timeouts every `horizon` steps after the last end, as D4RL does for files that mark none."""
    first = np.concatenate([[0], terminals + 1])
    count = np.diff(np.concatenate([first, [n]])) // horizon
    number = ranges(np.ones_like(count), count)  # 1, 2, … within each stretch
    return np.repeat(first, count) + horizon * number - 1


def _named_meta(src: str, task: str | None, n_act: int) -> Meta:
    """Return the metadata that the name of a file gives."""
    if task is None:
        return Meta(source=src)
    ref = SCORES[task]
    bounds = {"act_low": (-1.0,) * n_act, "act_high": (1.0,) * n_act, "act_range": "declared"} if n_act else {}
    return Meta(source=src, env=task, random_return=ref.random, expert_return=ref.expert, **bounds)


def _fitting(plan: Layout, acts: Iterable[np.ndarray]) -> Meta:
    """Return the metadata, without the range that the name gives if some action leaves it."""
    slack = 1 + 2 * RANGE_TOL  # what `build` forgives
    if not plan.named or not any((np.abs(block) > slack).any() for block in acts):
        return plan.meta
    meta = replace(plan.meta, act_low=(), act_high=(), act_range="assumed")
    return meta.with_notes(
        f"the file is named after {meta.env}, but some actions leave the range of that task, [-1, 1], so that it is "
        "not taken for declared"
    )
