"""OGBench's npz files (arXiv 2410.20092): `observations`, `actions` and `terminals`, rows end to end.

A row where `terminals` is set is the last of its trajectory; the state after it is not stored, so the row only gives
its state. There are no rewards. The validation set, `NAME-val.npz`, is a dataset of its own.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats.columns import assign, from_rows, with_parts
from ssorl.data.formats.npz import RowReader, read_array
from ssorl.data.validate import READ_ALL, ReadOptions, as_floats, build, first_bytes, parser_errors, with_reader_notes
from ssorl.utils.errors import DataError

KIND = "an OGBench .npz"
takes_columns = True


def sniff(path: Path) -> bool:
    """Return whether it is an npz file with OGBench's arrays."""
    if first_bytes(path, 4) != b"PK\x03\x04":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except Exception:  # a damaged file, which the reader of `.npz` refuses in a sentence
        return False
    return {"observations.npy", "terminals.npy"} <= names and "obs.npy" not in names


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check a file."""
    src = str(path)
    with parser_errors(src, KIND), zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        for needed in ("observations", "terminals"):
            if needed not in names:
                raise DataError(f"{src}: has no array named {needed}; choose another --format or fetch it again")
        roles = assign([n for n in names if n != "terminals"], options, src, ["observations"])
        if options.columns.episode:
            raise DataError(f"{src}: `terminals` marks the ends of the trajectories; leave --episode out")
        ends = np.flatnonzero(read_array(archive, "terminals", src).reshape(-1) > 0)
        states = [_vectors(archive, name, src) for name in roles.state]
        n = len(states[0])
        act = [_vectors(archive, name, src) for name in roles.action] if options.actions else []
        rew = None if roles.reward is None else _vectors(archive, roles.reward, src)
        for name, array in zip((*roles.state, *roles.action, "rewards"), (*states, *act, rew), strict=False):
            if array is not None and len(array) != n:
                raise DataError(f"{src}: {len(array)} rows of {name} but {n} of {roles.state[0]}; fetch the file again")
        if len(ends) and ends[-1] >= n:
            raise DataError(f"{src}: terminals has more rows than {roles.state[0]}, {n}; fetch the file again")
        bounds = np.unique(np.concatenate([[0], ends + 1, [n]]))
        obs = states[0] if len(states) == 1 else np.concatenate(states, axis=1)
        action = None if not act else act[0] if len(act) == 1 else np.concatenate(act, axis=1)
        raw = from_rows(obs, action, None if rew is None else rew[:, 0], np.diff(bounds))
        parts = [(name, array.shape[1]) for name, array in zip(roles.state, states, strict=True)]
        meta = with_parts(Meta(source=src), parts, [(n, a.shape[1]) for n, a in zip(roles.action, act, strict=False)])
        validation = path.with_name(f"{path.stem}-val{path.suffix}")
        if validation.is_file():
            meta = meta.with_notes(f"the validation set beside it, {validation.name}, was not read")
        return build(*raw[:5], with_reader_notes(meta, raw.dropped), options, raw.number)


def _vectors(archive: zipfile.ZipFile, name: str, src: str) -> np.ndarray:
    """An array as [N, size], refused before it is read if it holds images."""
    with RowReader(archive, name, src) as header:
        shape = header.shape
    if len(shape) not in (1, 2):
        raise DataError(
            f"{src}: {name} has shape {shape}; images are not read: choose vectors, such as qpos and qvel, with --state"
        )
    array = as_floats(read_array(archive, name, src))
    return array[:, None] if array.ndim == 1 else array
