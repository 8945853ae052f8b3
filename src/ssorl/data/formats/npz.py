"""ssorl's own file: a plain `.npz` with the arrays of Episodes and a JSON of their metadata.

Layout: `obs [S+E, O]`, `act [S, A]` and `rew [S]` (optional; NaN = missing), `terminated [S]`, `start [E+1]`
(first step of each trajectory, then S), and `meta`, UTF-8 JSON as bytes (optional). Other arrays, such as those that
`ssorl label` adds, are ignored. Nothing in it is pickled.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO

import numpy as np

from ssorl.data.episodes import Episodes, Meta, offsets
from ssorl.data.stream import Header, LabelledPart, PartReader, part_bounds
from ssorl.data.validate import READ_ALL, Raw, ReadOptions, build, escaped, first_bytes, parser_errors
from ssorl.utils.errors import DataError

KIND = "an ssorl .npz"
LARGEST_RATIO = 1100  # deflate cannot compress by more than about 1,030, so larger sizes are wrong


def sniff(path: Path) -> bool:
    """Return whether it is a zip file."""
    return first_bytes(path, 4) == b"PK\x03\x04"


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check a file."""
    src = str(path)
    with parser_errors(src, KIND), zipfile.ZipFile(path) as archive:
        names, start, meta = _outline(archive, src)
        obs = read_array(archive, "obs", src)
        rew = read_array(archive, "rew", src) if "rew" in names else np.full(start[-1], np.nan, np.float32)
        act = read_array(archive, "act", src) if options.actions and "act" in names else None
        ended = (
            read_array(archive, "terminated", src).astype(bool) if "terminated" in names else np.zeros(len(rew), bool)
        )
        return build(obs, act, rew, ended, np.diff(start), meta, options)


def open_parts(path: Path, options: ReadOptions = READ_ALL) -> PartReader:
    """Return a reader of some trajectories at a time, which reads all arrays side by side, from front to back."""
    src = str(path)
    with parser_errors(src, KIND), zipfile.ZipFile(path) as archive:
        names, start, meta = _outline(archive, src)
    n_steps, wanted = int(start[-1]), {"obs", "rew", "terminated"} | ({"act"} if options.actions else set())

    def read(size: int) -> Iterator[Raw]:
        with zipfile.ZipFile(path) as archive, ExitStack() as stack:
            rows = {name: stack.enter_context(RowReader(archive, name, src)) for name in sorted(wanted & names)}
            for name, reader in rows.items():
                expected = n_steps + (len(start) - 1 if name == "obs" else 0)
                if reader.shape[0] != expected:
                    raise DataError(
                        f"{src}: {reader.shape[0]} rows of {name} where {expected} are due; write the file again"
                    )
            for first, last in part_bounds(start, size):
                steps, n = int(start[last] - start[first]), last - first
                got = {name: reader.read(steps + n if name == "obs" else steps) for name, reader in rows.items()}
                rew = got.get("rew", np.full(steps, np.nan, np.float32))
                ended = got["terminated"].astype(bool) if "terminated" in got else np.zeros(steps, bool)
                yield Raw(got["obs"], got.get("act"), rew, ended, np.diff(start[first : last + 1]))

    return PartReader(meta, n_steps, KIND, read)


def _outline(archive: zipfile.ZipFile, src: str) -> tuple[set[str], np.ndarray, Meta]:
    """Return the names of the arrays, where trajectories begin, and the metadata."""
    if any(info.comment for info in archive.filelist):
        # One wrong bit in the length of a comment, and all arrays behind it are gone: the endings, for one.
        raise DataError(f"{src}: its directory is damaged, so arrays may be missing; write or copy it again")
    names = {n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")}
    missing = {"obs", "start"} - names
    if missing:
        raise DataError(
            f"{src}: has no array named {', '.join(sorted(missing))}; ssorl's layout is "
            "obs, act, rew, terminated, start (docs/data.md)"
        )
    start = read_array(archive, "start", src)
    n_steps = None
    if "rew" in names:
        with RowReader(archive, "rew", src) as rew:
            if not rew.shape:
                raise ValueError("rew is a single number where one a step is due")
            n_steps = rew.shape[0]
    elif "act" in names:
        with RowReader(archive, "act", src) as act:
            n_steps = act.shape[0] if act.shape else None
    whole = start.ndim == 1 and start.dtype.kind in "iu" and len(start) > 0
    start = start.astype(np.int64)
    if n_steps is None:  # no other array has a row for each step, so `obs` must agree
        with RowReader(archive, "obs", src) as obs:
            n_steps = (obs.shape[0] if obs.shape else 0) - (len(start) - 1 if whole else 0)
    if not whole or start[0] != 0 or (np.diff(start) < 0).any() or start[-1] != n_steps:
        ends = f"it goes from {start[0]} to {start[-1]}" if whole else f"it has shape {start.shape}"
        raise DataError(
            f"{src}: `start` must rise from 0 to the number of steps, {n_steps}, in whole numbers ({ends}); write "
            "the first step of each trajectory and then the number of steps"
        )
    text = read_array(archive, "meta", src).astype(np.uint8).tobytes().decode() if "meta" in names else "{}"
    return names, start, meta_from_json(text, src)


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray] | None = None) -> None:
    """Write a file, the extras as further arrays; the caller makes it atomic."""
    arrays = {n: getattr(eps, n) for n in ("obs", "act", "rew", "terminated", "start")}
    with path.open("wb") as file:  # an open file keeps numpy from adding a suffix of its own
        np.savez(file, allow_pickle=False, **{"meta": _meta_array(eps.meta), **arrays, **(extras or {})})


def save_parts(header: Header, parts: Iterator[LabelledPart], path: Path) -> None:
    """Write the same from trajectories that are read in parts.

    A zip takes one array after another, so each array grows in a file beside `path` and is then copied into the zip.
    """
    kinds: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    lengths = []
    with ExitStack() as stack:
        files = {}
        for eps, extras in parts:
            lengths.append(eps.lengths)
            for name, rows in {**{n: getattr(eps, n) for n in ("obs", "act", "rew", "terminated")}, **extras}.items():
                if name not in files:
                    files[name] = stack.enter_context(path.with_name(f"{path.name}.{name}").open("wb"))
                    kinds[name] = rows.dtype, rows.shape[1:]
                files[name].write(np.ascontiguousarray(rows).data)
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in (("meta", _meta_array(header.meta)), ("start", offsets(np.concatenate(lengths)))):
            with archive.open(f"{name}.npy", "w") as out:
                np.lib.format.write_array(out, array, (1, 0), allow_pickle=False)
        for name, (dtype, row) in kinds.items():
            n_rows = header.n_steps + (header.n_episodes if name == "obs" else 0)
            array_header = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": (n_rows, *row),
            }
            grown = path.with_name(f"{path.name}.{name}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out, grown.open("rb") as body:
                np.lib.format.write_array_header_1_0(out, array_header)
                shutil.copyfileobj(body, out, 1 << 20)
            grown.unlink()


def _meta_array(meta: Meta) -> np.ndarray:
    return np.frombuffer(json.dumps(asdict(meta)).encode(), np.uint8)


class RowReader:
    """An array in an archive, read from its first row on."""

    def __init__(self, archive: zipfile.ZipFile, name: str, src: str) -> None:
        """Open the array and read its header."""
        info = _member(archive, name, src)
        self.file, self.name, self.src = archive.open(info), name, src
        try:
            self.shape, self.fortran, self.dtype = _header(self.file, name, src)
            stored = info.file_size - self.file.tell()
            if stored != int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize:
                raise DataError(f"{src}: {name} is cut short ({stored} bytes for shape {self.shape}); write it again")
        except Exception:
            self.file.close()
            raise

    def __enter__(self) -> RowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def read(self, n: int) -> np.ndarray:
        """Return the next `n` rows."""
        if self.fortran and len(self.shape) > 1:
            raise DataError(f"{self.src}: {self.name} is stored column by column; write it again row by row (order C)")
        size = n * int(np.prod(self.shape[1:], dtype=object)) * self.dtype.itemsize
        raw = self.file.read(size)
        if len(raw) != size:
            raise DataError(f"{self.src}: {self.name} is cut short; write the file again")
        return np.frombuffer(raw, self.dtype).reshape(n, *self.shape[1:])


def _member(archive: zipfile.ZipFile, name: str, src: str) -> zipfile.ZipInfo:
    info = archive.getinfo(f"{name}.npy")
    stored = min(info.compress_size, os.fstat(archive.fp.fileno()).st_size)  # type: ignore[union-attr]
    if info.file_size > LARGEST_RATIO * max(stored, 1):
        raise DataError(
            f"{src}: {name} claims {info.file_size} bytes but takes up {stored}, which no array does; write it again"
        )
    return info


def _header(file: IO[bytes], name: str, src: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.kind not in "fiub":
        raise DataError(f"{src}: {name} holds {dtype} and only numbers are read; no objects are ever unpickled")
    return shape, fortran, dtype


def read_array(archive: zipfile.ZipFile, name: str, src: str) -> np.ndarray:
    """Return an array, after a check that its header agrees with the bytes that are stored."""
    with archive.open(_member(archive, name, src)) as file:
        shape, fortran, dtype = _header(file, name, src)
        raw = file.read()
    if len(raw) != int(np.prod(shape, dtype=object)) * dtype.itemsize:
        raise DataError(f"{src}: {name} is cut short ({len(raw)} bytes for shape {shape}); write the file again")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")


def meta_from_json(text: str, src: str) -> Meta:
    """Return metadata from JSON: known fields and plain values only."""
    known = {f.name for f in fields(Meta)}
    try:
        values = {k: v for k, v in json.loads(text).items() if k in known}
        for name in ("act_low", "act_high"):
            values[name] = tuple(float(x) for x in values.get(name, ()))
            if not all(map(math.isfinite, values[name])):
                raise ValueError(f"{name} {values[name]}")
        for name in ("random_return", "expert_return"):
            values[name] = None if values.get(name) is None else float(values[name])
            if values[name] is not None and not math.isfinite(values[name]):
                raise ValueError(f"{name} {values[name]}")
        if values["random_return"] is not None and values["random_return"] == values["expert_return"]:
            raise ValueError(f"random_return and expert_return are both {values['random_return']}")
        for name in ("notes", "state_names", "action_names"):
            values[name] = tuple(str(n) for n in values.get(name, ()))
        for name in ("state_parts", "action_parts"):
            values[name] = tuple((str(part), int(size)) for part, size in values.get(name, ()))
        values["fps"] = None if values.get("fps") is None else float(values["fps"])
        if values["fps"] is not None and not 0 < values["fps"] < math.inf:
            raise ValueError(f"fps {values['fps']}")
        values["robot"] = None if values.get("robot") is None else str(values["robot"])
        values["env"] = None if values.get("env") is None else str(values["env"])
        if values.get("act_range", "assumed") not in ("declared", "assumed", "inferred"):
            raise ValueError(f"act_range {values['act_range']!r}")
        return Meta(**{**values, "source": src})
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as err:
        raise DataError(
            f"{src}: its metadata cannot be read ({escaped(err)}); remove it or write the file again"
        ) from err
