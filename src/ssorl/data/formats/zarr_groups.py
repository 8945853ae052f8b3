"""Zarr stores as diffusion policy and UMI write them (v2 or v3, a folder or a zip).

`data/KEY` [N, …] holds rows end to end, and `meta/episode_ends` where trajectories end. The state is the joined vectors
that are neither action nor reward, in alphabetical order; images are left out. The state after the last action is not
stored, so the last row of a trajectory only gives its state. The zarr package decodes the chunks. Each codec is checked
against a list before, because a store may name codecs that unpickle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats.columns import Roles, assign, from_rows, parts_of, with_parts
from ssorl.data.formats.npz import meta_from_json
from ssorl.data.formats.parts import Source, load_whole, open_by_index
from ssorl.data.formats.zarr_files import ZarrFiles
from ssorl.data.stats import join_names
from ssorl.data.stream import Header, LabelledPart, PartReader, header_of
from ssorl.data.validate import READ_ALL, Raw, ReadOptions, as_floats, escaped
from ssorl.utils.errors import DataError
from ssorl.utils.extras import require

KIND = "a Zarr store"
CHUNK = 1 << 14  # rows that are stored together
takes_columns = True


def sniff(path: Path) -> bool:
    """Return whether it is a Zarr group with `data`, in a folder or a zip."""
    try:
        with ZarrFiles(path) as files:
            return files.is_store
    except Exception:  # a damaged zip, which the reader of `.npz` refuses in a sentence
        return False


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check a store."""
    return load_whole(_opened, KIND, path, options)


def open_parts(path: Path, options: ReadOptions = READ_ALL) -> PartReader:
    """Return a reader of some trajectories at a time."""
    return open_by_index(_opened, KIND, path, options)


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write a folder in format 2, which zarr-python 2 reads as well; the extras are further arrays of `data`."""
    save_parts(header_of(eps), iter([(eps, extras)]), path)


def save_parts(header: Header, parts: Iterator[LabelledPart], path: Path) -> None:
    """Write the same from trajectories that are read in parts.

    What the layout has no place for, the last states and which trajectories terminated, is in `meta`.
    """
    require("zarr")
    import zarr
    from zarr.storage import LocalStore

    root = zarr.open_group(LocalStore(path), mode="w", zarr_format=2)
    root.attrs["ssorl"] = asdict(header.meta)
    data, meta = root.create_group("data"), root.create_group("meta")
    states = _state_keys(header.meta, header.n_obs)
    made: dict[str, Any] = {}
    ends, last, terminated, at = [0], [], [], 0
    for eps, extras in parts:
        columns = {name: eps.obs[eps.obs_row, where] for name, where in states.items()}
        columns |= {"action": eps.act} if eps.n_act else {}
        columns |= {"reward": eps.rew} if eps.rewarded.any() else {}
        columns |= {f"ssorl_{name}": rows for name, rows in extras.items()}
        for name, rows in columns.items():
            if name not in made:
                chunks = (min(header.n_steps, CHUNK), *rows.shape[1:])
                fill = np.nan if name == "reward" else 0
                made[name] = data.create_array(
                    name, shape=(header.n_steps, *rows.shape[1:]), chunks=chunks, dtype=rows.dtype, fill_value=fill
                )
            made[name][at : at + eps.n_steps] = rows
        ends += (eps.start[1:] + at).tolist()
        last.append(eps.obs[eps.start[1:] + np.arange(len(eps))])
        terminated.append(eps.terminated[eps.start[1:] - 1])
        at += eps.n_steps
    meta.create_array("episode_ends", data=np.array(ends[1:], np.int64))
    meta.create_array("last_state", data=np.concatenate(last))
    meta.create_array("terminated", data=np.concatenate(terminated))


def _state_keys(meta: Meta, n_obs: int) -> dict[str, slice]:
    """Return the name of each array of the state and the columns that it holds."""
    usable = all(
        name not in ("action", "reward", "", ".", "..") and not set(name) & set("/\\:") for name, _ in meta.state_parts
    )
    return parts_of(meta.state_parts if usable else (), n_obs, "state")


@contextmanager
def _opened(path: Path, options: ReadOptions) -> Iterator[Source]:
    src = str(path)
    with ZarrFiles(path) as files:
        files.check_names()
        if not files.is_store or not (
            files.exists("meta/episode_ends/.zarray") or files.exists("meta/episode_ends/zarr.json")
        ):
            raise DataError(
                f"{src}: is not a Zarr store with the groups data and meta/episode_ends; choose another --format"
            )
        known, left = {}, []
        for name in files.children("data"):
            asked = name in (*options.columns.state, *options.columns.action)
            shape, dtype, _ = files.array(f"data/{name}") if asked or _is_plain(files, name) else ((), None, ())
            if dtype is not None and shape:
                known[name] = (shape, dtype)
            else:
                left.append(escaped(name))
        own = _own_meta(files, src)
        roles = _roles(list(known), options, own, src)
        wanted = [*roles.state, *(roles.action if options.actions else []), *([roles.reward] if roles.reward else [])]
        arrays = [f"data/{n}" for n in wanted] + ["meta/episode_ends"]
        files.check_sizes(arrays)
        require("zarr")
        import zarr
        from zarr.storage import LocalStore, ZipStore

        store = LocalStore(path, read_only=True) if files.archive is None else ZipStore(path, mode="r")
        try:
            group = zarr.open_group(store, mode="r")
            ends = np.asarray(group["meta/episode_ends"][:])  # type: ignore[index]
            final = _final(files, group, own, options, sum(int(np.prod(known[n][0][1:])) for n in roles.state), ends)
            yield _source(group, roles, known, ends, own or Meta(source=src), own is not None, left, options, final)
        finally:
            store.close()


def _is_plain(files: ZarrFiles, name: str) -> bool:
    """Whether an array holds numbers: others are refused only if they are asked for."""
    old = files.exists(f"data/{name}/.zarray")
    about = files.json(f"data/{name}/{'.zarray' if old else 'zarr.json'}")
    kind, shape = about.get("dtype" if old else "data_type"), about.get("shape")
    try:
        return np.dtype(kind).kind in "fiub" and isinstance(shape, list) and len(shape) <= 2
    except TypeError:
        return False


def _own_meta(files: ZarrFiles, src: str) -> Meta | None:
    """What ssorl wrote about itself among the attributes of the root."""
    if files.exists(".zattrs"):
        attributes = files.json(".zattrs")
    else:
        attributes = files.json("zarr.json").get("attributes", {}) if files.exists("zarr.json") else {}
    own = attributes.get("ssorl") if isinstance(attributes, dict) else None
    return meta_from_json(json.dumps(own), src) if isinstance(own, dict) else None


def _roles(names: list[str], options: ReadOptions, own: Meta | None, src: str) -> Roles:
    if own is not None and not options.columns.given:
        state = list(_state_keys(own, sum(n for _, n in own.state_parts) or 1))
        if set(state) <= set(names):
            return assign(names, options, src, state)
    skipped = ("done", "terminal", "timeout", "timestamp", "ssorl_", "next_")
    return assign(names, options, src, [n for n in names if not n.startswith(skipped)])


class _Final(NamedTuple):
    """What ssorl stores of the end of each trajectory."""

    state: np.ndarray  # [E, O], the state after the last action
    terminated: np.ndarray  # [E] bool


def _final(
    files: ZarrFiles, group: Any, own: Meta | None, options: ReadOptions, n_obs: int, ends: np.ndarray
) -> _Final | None:
    """Return the ends of the trajectories if ssorl wrote them and the caller chose no columns."""
    names = ("meta/last_state", "meta/terminated")
    if own is None or options.columns.given or not all(files.exists(f"{name}/.zarray") for name in names):
        return None
    shapes = [files.array(name)[0] for name in names]
    if shapes != [(len(ends), n_obs), (len(ends),)] or (np.diff(ends.astype(np.int64), prepend=0) < 1).any():
        raise DataError(
            f"{own.source}: meta/last_state has shape {shapes[0]} where {len(ends)} rows of {n_obs} are due"
        )
    return _Final(as_floats(group[names[0]][:]), group[names[1]][:].astype(bool))


def _source(
    group: Any,
    roles: Roles,
    known: dict[str, tuple[tuple[int, ...], np.dtype]],
    ends: np.ndarray,
    meta: Meta,
    is_own: bool,
    left: list[str],
    options: ReadOptions,
    final: _Final | None,
) -> Source:
    src = meta.source
    if (
        ends.ndim != 1
        or ends.dtype.kind not in "iu"
        or not len(ends)
        or (np.diff(ends.astype(np.int64), prepend=0) < 0).any()
    ):
        raise DataError(f"{src}: meta/episode_ends must rise, one whole number for each trajectory; write it again")
    for name in (*roles.state, *roles.action, *([roles.reward] if roles.reward else [])):
        if known[name][0][0] != int(ends[-1]):
            raise DataError(
                f"{src}: data/{escaped(name)} has {known[name][0][0]} rows but the last trajectory ends at {ends[-1]}; "
                "write it again"
            )
    widths = {name: int(np.prod(shape[1:], dtype=object)) for name, (shape, _) in known.items()}
    action = roles.action if options.actions else []
    if not is_own:
        meta = with_parts(meta, [(k, widths[k]) for k in roles.state], [(k, widths[k]) for k in action])
        if left:
            verb = "was" if len(left) == 1 else "were"
            meta = meta.with_notes(f"{join_names(left)} {verb} left out: only numbers and vectors of numbers are read")
    start = np.concatenate([[0], ends.astype(np.int64)])
    lengths = np.diff(start)

    def rows(names: list[str], a: int, b: int) -> np.ndarray:
        if len(names) == 1:
            return as_floats(np.asarray(group[f"data/{names[0]}"][a:b]).reshape(b - a, -1))
        kinds = {as_floats(np.empty(0, known[k][1])).dtype for k in names}
        out = np.empty((b - a, sum(widths[k] for k in names)), max(kinds, key=lambda k: k.itemsize))
        at = 0
        for name in names:
            out[:, at : at + widths[name]] = np.asarray(group[f"data/{name}"][a:b]).reshape(b - a, -1)
            at += widths[name]
        return out

    def read(first: int, last: int) -> Raw:
        a, b = int(start[first]), int(start[last])
        act = rows(action, a, b) if action else None
        rew = None if roles.reward is None else rows([roles.reward], a, b)[:, 0]
        obs = rows(roles.state, a, b)
        if final is None:
            return from_rows(obs, act, rew, lengths[first:last], first=first)
        n, last_step = lengths[first:last], np.cumsum(lengths[first:last]) - 1
        flat = np.empty((b - a + last - first, obs.shape[1]), np.float32)
        flat[np.arange(b - a) + np.repeat(np.arange(last - first), n)] = obs
        flat[last_step + np.arange(1, last - first + 1)] = final.state[first:last]
        ended = np.zeros(b - a, bool)
        ended[last_step] = final.terminated[first:last]
        return Raw(flat, act, np.full(b - a, np.nan, np.float32) if rew is None else rew, ended, n)

    return Source(meta, lengths if final is not None else np.maximum(lengths - 1, 0), read)
