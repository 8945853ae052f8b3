"""ssorl's own file: a plain `.npz` with the arrays of Episodes and a JSON of their metadata.

Layout: `obs [S+E, O]`, `act [S, A]` (optional; NaN = missing), `rew [S]`, `terminated [S]`, `start [E+1]`
(first step of each trajectory, then S), and `meta`, UTF-8 JSON as bytes (optional). Other arrays, such as those that
`ssorl label` adds, are passed over. Nothing in it is pickled.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from ssorl.data.check import ANY, Wish, build, head, reading, shown
from ssorl.data.episodes import Episodes, Meta
from ssorl.errors import DataError

LARGEST_RATIO = 1100  # deflate cannot shrink by more than about 1,030; past it the sizes are a lie


def sniff(path: Path) -> bool:
    """Whether it is a zip file."""
    return head(path, 4) == b"PK\x03\x04"


def load(path: Path, wish: Wish = ANY) -> Episodes:
    """Read and check one file."""
    src = str(path)
    with reading(src, "an ssorl .npz"), zipfile.ZipFile(path) as archive:
        names = {n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")}
        lacking = {"obs", "rew", "start"} - names
        if lacking:
            raise DataError(
                f"{src}: has no array named {', '.join(sorted(lacking))}; ssorl's layout is "
                "obs, act, rew, terminated, start (docs/data.md)"
            )
        start, rew = member(archive, "start", src), member(archive, "rew", src)
        whole = start.ndim == 1 and start.dtype.kind in "iu" and len(start) > 0
        start = start.astype(np.int64)
        if not whole or start[0] != 0 or (np.diff(start) < 0).any() or start[-1] != len(rew):
            ends = f"it goes from {start[0]} to {start[-1]}" if whole else f"it has shape {start.shape}"
            raise DataError(
                f"{src}: `start` must rise from 0 to the number of steps, {len(rew)}, in whole numbers ({ends}); write "
                "the first step of each trajectory and then the number of steps"
            )
        text = member(archive, "meta", src).astype(np.uint8).tobytes().decode() if "meta" in names else "{}"
        meta = meta_from_json(text, src)
        obs = member(archive, "obs", src)
        act = member(archive, "act", src) if wish.actions and "act" in names else None
        ended = member(archive, "terminated", src).astype(bool) if "terminated" in names else np.zeros(len(rew), bool)
        return build(obs, act, rew, ended, np.diff(start), meta, wish)


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray] | None = None) -> None:
    """Write one file, the extras as further arrays; the caller makes it atomic."""
    meta = np.frombuffer(json.dumps(asdict(eps.meta)).encode(), np.uint8)
    arrays = {n: getattr(eps, n) for n in ("obs", "act", "rew", "terminated", "start")}
    with path.open("wb") as file:  # an open file keeps numpy from adding a suffix of its own
        np.savez(file, allow_pickle=False, **{"meta": meta, **arrays, **(extras or {})})


def member(archive: zipfile.ZipFile, name: str, src: str) -> np.ndarray:
    """One array, after its header is found to agree with the bytes that are there."""
    info = archive.getinfo(f"{name}.npy")
    there = min(info.compress_size, os.fstat(archive.fp.fileno()).st_size)  # type: ignore[union-attr]
    if info.file_size > LARGEST_RATIO * max(there, 1):
        raise DataError(
            f"{src}: {name} claims {info.file_size} bytes but takes up {there}, which no array does; write it again"
        )
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.kind not in "fiub":
            raise DataError(f"{src}: {name} holds {dtype} and only numbers are read; no objects are ever unpickled")
        raw = file.read()
    if len(raw) != int(np.prod(shape, dtype=object)) * dtype.itemsize:
        raise DataError(f"{src}: {name} is cut short ({len(raw)} bytes for shape {shape}); write the file again")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")


def meta_from_json(text: str, src: str) -> Meta:
    """Metadata from JSON, only the known fields, only plain values."""
    known = {f.name for f in fields(Meta)}
    try:
        found = {k: v for k, v in json.loads(text).items() if k in known}
        for name in ("act_low", "act_high"):
            found[name] = tuple(float(x) for x in found.get(name, ()))
            if not all(map(math.isfinite, found[name])):
                raise ValueError(f"{name} {found[name]}")
        for name in ("random_return", "expert_return"):
            found[name] = None if found.get(name) is None else float(found[name])
            if found[name] is not None and not math.isfinite(found[name]):
                raise ValueError(f"{name} {found[name]}")
        if found["random_return"] is not None and found["random_return"] == found["expert_return"]:
            raise ValueError(f"random_return and expert_return are both {found['random_return']}")
        found["notes"] = tuple(str(n) for n in found.get("notes", ()))
        found["env"] = None if found.get("env") is None else str(found["env"])
        if found.get("act_range", "assumed") not in ("declared", "assumed", "inferred"):
            raise ValueError(f"act_range {found['act_range']!r}")
        return Meta(**{**found, "source": src})
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as err:
        raise DataError(
            f"{src}: its metadata cannot be read ({shown(err)}); remove it or write the file again"
        ) from err
