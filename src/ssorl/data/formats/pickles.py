"""Trajectory lists as decision-transformer and its descendants pickle them, read without trusting them.

The file is a list of dicts with `observations`, `actions`, `rewards`, `terminals` (or `dones`) and usually
`next_observations`. A pickle is a program; this reader runs it on an interpreter that knows numpy arrays, numbers
and plain containers only. Even numpy's own unpickling code is not called: arrays are rebuilt here from their bytes.
"""

from __future__ import annotations

import json
import math
import mmap
import pickle
import sys
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats.d4rl import task_of
from ssorl.data.formats.npz import meta_from_json
from ssorl.data.join import Trajectory, float_array, is_terminated, join
from ssorl.data.stats import differing_rows
from ssorl.data.validate import READ_ALL, ReadOptions, escaped, first_bytes, parser_errors
from ssorl.envs.scores import SCORES
from ssorl.utils.errors import DataError

LARGEST_RATIO = 100  # numbers per byte: a pickle may refer to one array many times, but not without limit
NUMBERS = "?bhilqBHILQefd"  # the type codes that may come out of a file


def sniff(path: Path) -> bool:
    """Return whether it starts like a pickle of protocol 2 or later, or has the suffix of one (protocols 0 and 1)."""
    return first_bytes(path, 1) == b"\x80" or (path.is_file() and path.suffix in (".pkl", ".pickle"))


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check a file."""
    src, task = str(path), task_of(path.stem)
    with parser_errors(src, "a pickled list of trajectories"), path.open("rb") as file:
        if path.stat().st_size == 0:
            raise DataError(f"{src}: is empty; nothing can be learnt from an empty file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            found = _Reader(raw, src).load()
        if not isinstance(found, list):
            raise DataError(
                f"{src}: holds a {type(found).__name__} where a list of trajectories is due; save a list of dicts"
            )
        return join((_trajectory(d, e, src) for e, d in enumerate(found)), _meta(found, task, src), options)


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write a list of dicts, one for each trajectory, with the extras; the first one also holds the metadata.

    Trajectories without any action have no `actions`.
    """
    out = []
    for e in range(eps.n_episodes):
        one = eps[e]
        item = {
            "observations": one.obs[:-1],
            "next_observations": one.obs[1:],
            "actions": one.act,
            "rewards": one.rew,
            "terminals": one.terminated,
            **{name: rows[eps.start[e] : eps.start[e + 1]] for name, rows in extras.items()},
        }
        if not one.labelled.any():
            del item["actions"]
        out.append(item)
    out[0]["ssorl"] = json.dumps(asdict(eps.meta))
    with path.open("wb") as file:
        pickle.dump(out, file, protocol=4)


def _meta(found: list, task: str | None, src: str) -> Meta:
    own = found[0].get("ssorl") if found and isinstance(found[0], dict) else None
    if isinstance(own, str):
        return meta_from_json(own, src)
    ref = SCORES[task] if task else None
    random, expert = (ref.random, ref.expert) if ref else (None, None)
    return Meta(source=src, env=task, random_return=random, expert_return=expert)


def _trajectory(item: object, e: int, src: str) -> Trajectory:
    if not isinstance(item, dict):
        raise DataError(
            f"{src}: trajectory {e} is a {type(item).__name__} where a dict of arrays is due; save a list of such dicts"
        )
    if item.get("observations") is None:
        raise DataError(f"{src}: trajectory {e} has no observations; each needs them")
    obs, mismatched = float_array(src, e, "observations", item["observations"]), 0
    if item.get("rewards") is not None:
        rew = float_array(src, e, "rewards", item["rewards"])
    else:
        steps = obs if item.get("next_observations") is not None or item.get("actions") is None else item["actions"]
        rew = np.full(len(float_array(src, e, "actions", steps)), np.nan, np.float32)
    if item.get("next_observations") is not None:
        nxt = float_array(src, e, "next_observations", item["next_observations"])
        if nxt.shape != obs.shape:
            raise DataError(
                f"{src}: trajectory {e} has observations of shape {obs.shape} and next_observations of {nxt.shape}; "
                "they must agree"
            )
        if obs.size:  # an empty trajectory is left to `build`, which may be asked to leave it out
            mismatched = len(differing_rows(nxt[:-1], obs[1:]))
            obs = np.concatenate([obs, nxt[-1:]])
    flags = next((item[k] for k in ("terminals", "terminated", "dones") if item.get(k) is not None), None)
    return Trajectory(obs, item.get("actions"), rew, is_terminated(src, e, flags, rew.size), mismatched)


class _Dtype:
    """Stands for numpy.dtype while a pickle is read."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.order = "="
        try:
            self.dtype = np.dtype(code if isinstance(code, str) and len(code) < 8 else "O")
        except TypeError as err:
            raise DataError(f"an array of {code!r} is not one of numbers") from err
        if self.dtype.char not in NUMBERS:
            raise DataError(f"an array of {self.dtype} is not one of numbers")

    def __setstate__(self, state: tuple) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise DataError("an array's type cannot be read")
        self.dtype = self.dtype if state[1] == "|" else self.dtype.newbyteorder(state[1])


class _Array:
    """Stands for numpy.ndarray while a pickle is read, then turns into one."""

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, raw = state
        self.array = _array(raw, kind, shape, "F" if fortran else "C")


class _NdArrayName:
    """What the name numpy.ndarray means in a pickle: an argument of `_reconstruct`, not something to call."""


def _array(raw: object, kind: object, shape: object, order: object = "C") -> np.ndarray:
    if isinstance(raw, str):  # protocol 0 to 2 wrote bytes as latin-1 text
        raw = raw.encode("latin-1")
    if not isinstance(kind, _Dtype) or not isinstance(raw, (bytes, bytearray)) or not isinstance(shape, tuple):
        raise DataError("an array in it is not made of bytes, a type and a shape")
    if any(not isinstance(n, int) or n < 0 for n in shape) or len(shape) > 8:
        raise DataError(f"an array in it has the shape {shape!r}"[:200])
    if math.prod(shape) * kind.dtype.itemsize != len(raw):
        raise DataError(f"an array of shape {shape} in it is cut short ({len(raw)} bytes)")
    return np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(kind: object, *_: object) -> _Array:
    if kind is not _NdArrayName:
        raise DataError("an array in it is of a kind other than numpy.ndarray")
    return _Array()


def _scalar(kind: object, raw: object = b"") -> float:
    return _array(raw, kind, ()).item()


def _encode(text: object, encoding: object = "latin1", *_: object) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise DataError("it holds encoded text other than latin-1 bytes")
    return text.encode("latin-1")


def _empty() -> bytes:
    return b""


def _dict(*args: object) -> dict:
    # A defaultdict's factory is dropped; an OrderedDict's items come in later, one by one.
    return {}


ADMITTED = {
    ("numpy", "ndarray"): _NdArrayName,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _dict,
    ("collections", "defaultdict"): _dict,
    **{(b, "list"): list for b in ("builtins", "__builtin__")},
    **{(b, "bytes"): _empty for b in ("builtins", "__builtin__")},  # how protocols 0 to 2 write no bytes at all
    **{(f"numpy.{c}.multiarray", "_reconstruct"): _reconstruct for c in ("core", "_core")},
    **{(f"numpy.{c}.multiarray", "scalar"): _scalar for c in ("core", "_core")},
    **{(f"numpy.{c}.numeric", "_frombuffer"): _array for c in ("core", "_core")},
}


class _Reader(pickle._Unpickler):  # type: ignore[name-defined]
    """The interpreter. Python's own, not C's: its memo cannot be made to claim memory by one forged number."""

    def __init__(self, raw: mmap.mmap, src: str) -> None:
        super().__init__(raw, encoding="latin1")  # type: ignore[arg-type]
        self.src, self.size = src, len(raw)

    def load_build(self) -> None:
        """Set the state of a stand-in, and of nothing else: classes and functions stay as they are."""
        stack: list = self.stack  # type: ignore[attr-defined]
        state, target = stack.pop(), stack[-1]
        if not isinstance(target, (_Dtype, _Array)):
            raise DataError(f"{self.src}: sets the state of a {type(target).__name__}; only arrays are admitted")
        target.__setstate__(state)

    def load_reduce(self) -> None:
        """Call what `find_class` gave out, and nothing else that lies on the stack."""
        stack: list = self.stack  # type: ignore[attr-defined]
        args, func = stack.pop(), stack[-1]
        if not any(func is known for known in ADMITTED.values()):
            raise DataError(
                f"{self.src}: calls a {type(func).__name__}; only numpy arrays and plain containers are admitted"
            )
        stack[-1] = func(*args)

    def load_bytearray8(self) -> None:
        """Take the bytes that are there: Python's own way first claims the memory that a forged size asks for."""
        n = int.from_bytes(self.read(8), "little")  # type: ignore[attr-defined]
        self.append(bytearray(self.read(min(n, sys.maxsize))))  # type: ignore[attr-defined]

    def load_object(self) -> None:
        """Refuse the ways to make an object that no array and no plain container takes."""
        raise DataError(f"{self.src}: makes an object of a class; only numpy arrays and plain containers are admitted")

    dispatch: ClassVar[dict] = {
        **pickle._Unpickler.dispatch,  # type: ignore[attr-defined]
        pickle.BUILD[0]: load_build,
        pickle.REDUCE[0]: load_reduce,
        pickle.BYTEARRAY8[0]: load_bytearray8,
        **dict.fromkeys(b"io\x81\x92\x82\x83\x84", load_object),  # INST, OBJ, NEWOBJ, NEWOBJ_EX, EXT1, EXT2, EXT4
    }

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in ADMITTED:
            what = escaped(f"{module}.{name}")
            raise DataError(
                f"{self.src}: contains {what}, which could run code when loaded; only numpy arrays and plain "
                "containers are admitted: save the trajectories again as a list of dicts of arrays"
            )
        return ADMITTED[module, name]

    def persistent_load(self, pid: object) -> object:
        raise DataError(f"{self.src}: refers to something outside the file ({escaped(pid)}); save it again, whole")

    def load(self) -> object:
        try:
            found, n = _settle(super().load(), {})
            if n > LARGEST_RATIO * self.size:
                raise DataError(f"it unfolds to {n} numbers from {self.size} bytes")
            return found
        except DataError as err:
            text = str(err)
            raise (err if text.startswith(self.src) else DataError(f"{self.src}: {text}; save it again")) from err


def _settle(value: object, memo: dict[int, tuple[object, int]], depth: int = 0) -> tuple[object, int]:
    """Arrays in place of their stand-ins, through the containers of a trajectory list, and how many numbers that is."""
    if depth > 4:
        raise DataError("its containers are nested too deeply for a list of trajectories")
    if isinstance(value, _Array):
        if not hasattr(value, "array"):
            raise DataError("an array in it has no content")
        return value.array, value.array.size
    if not isinstance(value, (list, tuple, dict)):
        return value, np.size(value) if isinstance(value, np.ndarray) else 1
    if id(value) not in memo:  # what is referred to often is looked at once
        parts = [_settle(v, memo, depth + 1) for v in (value.values() if isinstance(value, dict) else value)]
        settled = [part for part, _ in parts]
        memo[id(value)] = (
            dict(zip(value, settled, strict=True)) if isinstance(value, dict) else settled,
            1 + sum(n for _, n in parts),
        )
    return memo[id(value)]
