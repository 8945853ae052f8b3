"""Trajectory lists as decision-transformer and its descendants pickle them, read without trusting them.

The file is a list of dicts with `observations`, `actions`, `rewards`, `terminals` (or `dones`) and usually
`next_observations`. A pickle is a program; this reader runs it on an interpreter that knows numpy arrays, numbers
and plain containers only. Even numpy's own unpickling code is not called: arrays are rebuilt here from their bytes.
"""

from __future__ import annotations

import math
import mmap
import pickle
from pathlib import Path
from typing import ClassVar

import numpy as np

from ssorl.data.check import Trajectory, join, reading
from ssorl.data.episodes import Episodes, Meta
from ssorl.data.sources.d4rl import task_of
from ssorl.envs.scores import SCORES
from ssorl.errors import DataError

NUMBERS = "?bhilqBHILQefd"  # the type codes that may come out of a file


def sniff(path: Path) -> bool:
    """Whether it starts like a pickle of protocol 2 or later (or 0 and 1, by its name)."""
    if not path.is_file():
        return False
    return path.open("rb").read(1) == b"\x80" or path.suffix in (".pkl", ".pickle")


def load(path: Path, min_length: int = 0) -> Episodes:
    """Read and check one file."""
    src, task = str(path), task_of(path.stem)
    with reading(src, "a pickled list of trajectories"), path.open("rb") as file:
        if path.stat().st_size == 0:
            raise DataError(f"{src}: is empty; nothing can be learnt from an empty file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            found = _Reader(raw, src).load()
        if not isinstance(found, list):
            raise DataError(f"{src}: holds a {type(found).__name__} where a list of trajectories is due")
        ref = SCORES[task] if task else None
        meta = Meta(
            source=src,
            env=task,
            random_return=ref.random if ref else None,
            expert_return=ref.expert if ref else None,
        )
        return join((_trajectory(d, e, src) for e, d in enumerate(found)), meta, min_length)


def save(eps: Episodes, path: Path) -> None:
    """Write the list of dicts; trajectories without any action have no `actions`."""
    out = []
    for e in range(eps.n_episodes):
        one = eps[e]
        item = {
            "observations": one.obs[:-1],
            "next_observations": one.obs[1:],
            "actions": one.act,
            "rewards": one.rew,
            "terminals": one.terminated,
        }
        if not one.labelled.any():
            del item["actions"]
        out.append(item)
    with path.open("wb") as file:
        pickle.dump(out, file, protocol=4)


def _trajectory(item: object, e: int, src: str) -> Trajectory:
    if not isinstance(item, dict):
        raise DataError(f"{src}: trajectory {e} is a {type(item).__name__} where a dict of arrays is due")
    for key in ("observations", "rewards"):
        if item.get(key) is None:
            raise DataError(f"{src}: trajectory {e} has no {key}; each needs observations and rewards")
    obs, nxt = np.asarray(item["observations"]), item.get("next_observations")
    if nxt is not None:
        nxt = np.asarray(nxt)
        if nxt.shape != obs.shape or len(nxt) == 0:
            raise DataError(
                f"{src}: trajectory {e} has observations of shape {obs.shape} and next_observations of {nxt.shape}; "
                "they must agree and not be empty"
            )
        obs = np.concatenate([obs, nxt[-1:]])
    ended = next((item[k] for k in ("terminals", "terminated", "dones") if item.get(k) is not None), None)
    ended = np.zeros(1) if ended is None else np.asarray(ended).reshape(-1)
    if np.flatnonzero(ended[:-1]).size:
        raise DataError(
            f"{src}: trajectory {e} goes on after it terminated at step {np.flatnonzero(ended[:-1])[0]}; cut it there"
        )
    return Trajectory(obs, item.get("actions"), np.asarray(item["rewards"]), bool(ended[-1]) if ended.size else False)


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


def _dict(*args: object) -> dict:
    # A defaultdict's factory is dropped; an OrderedDict's items come in later, one by one.
    return {}


ADMITTED = {
    ("numpy", "ndarray"): _NdArrayName,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _dict,
    ("collections", "defaultdict"): _dict,
    ("builtins", "list"): list,
    ("__builtin__", "list"): list,
    **{(f"numpy.{c}.multiarray", "_reconstruct"): _reconstruct for c in ("core", "_core")},
    **{(f"numpy.{c}.multiarray", "scalar"): _scalar for c in ("core", "_core")},
    **{(f"numpy.{c}.numeric", "_frombuffer"): _array for c in ("core", "_core")},
}


class _Reader(pickle._Unpickler):  # type: ignore[name-defined]
    """The interpreter. Python's own, not C's: its memo cannot be made to claim memory by one forged number."""

    def __init__(self, raw: mmap.mmap, src: str) -> None:
        super().__init__(raw, encoding="latin1")  # type: ignore[arg-type]
        self.src = src

    def load_build(self) -> None:
        """Set the state of a stand-in, and of nothing else: classes and functions stay as they are."""
        stack: list = self.stack  # type: ignore[attr-defined]
        state, target = stack.pop(), stack[-1]
        if not isinstance(target, (_Dtype, _Array)):
            raise DataError(f"{self.src}: sets the state of a {type(target).__name__}; only arrays are admitted")
        target.__setstate__(state)

    dispatch: ClassVar[dict] = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}  # type: ignore[attr-defined]

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in ADMITTED:
            raise DataError(
                f"{self.src}: contains {module}.{name}, which could run code when loaded; only numpy arrays and plain "
                "containers are admitted: save the trajectories again as a list of dicts of arrays"
            )
        return ADMITTED[module, name]

    def persistent_load(self, pid: object) -> object:
        raise DataError(f"{self.src}: refers to something outside the file ({pid!r})"[:200])

    def load(self) -> object:
        try:
            return _settle(super().load())
        except DataError as err:
            text = str(err)
            raise (err if text.startswith(self.src) else DataError(f"{self.src}: {text}; save it again")) from err


def _settle(value: object, depth: int = 0) -> object:
    """Arrays in place of their stand-ins, through the containers a trajectory list has."""
    if depth > 4:
        raise DataError("its containers are nested too deeply for a list of trajectories")
    if isinstance(value, _Array):
        if not hasattr(value, "array"):
            raise DataError("an array in it has no content")
        return value.array
    if isinstance(value, (list, tuple)):
        return [_settle(v, depth + 1) for v in value]
    if isinstance(value, dict):
        return {k: _settle(v, depth + 1) for k, v in value.items()}
    return value
