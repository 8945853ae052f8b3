"""Small trajectories for the tests of the formats, made without the code under test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ssorl.data import Episodes, Meta

FORMATS = ("npz", "d4rl", "minari", "lerobot", "pickle", "robomimic", "zarr", "parquet")
READ_ONLY = ("aloha", "ogbench", "csv")
SUFFIX = {"npz": ".npz", "d4rl": ".hdf5", "minari": "-v0", "lerobot": "", "pickle": ".pkl", "robomimic": ".hdf5"}
SUFFIX |= {"zarr": ".zarr", "parquet": ".parquet"}


def make(
    lengths=(4, 6, 3, 5),
    n_obs: int = 3,
    n_act: int = 2,
    low: float = -1.0,
    high: float = 1.0,
    ended=(1, 3),
    seed: int = 0,
    **meta,
) -> Episodes:
    """Random trajectories; those numbered in `ended` terminate, the others are truncated."""
    rng = np.random.default_rng(seed)
    start = np.cumsum([0, *lengths])
    terminated = np.zeros(start[-1], bool)
    terminated[start[1:][list(ended)] - 1] = True
    known = {
        "env": "pointmass",
        "act_low": (low,) * n_act,
        "act_high": (high,) * n_act,
        "act_range": "declared",
        "random_return": -2.5,
        "expert_return": 7.25,
        "notes": ("made for a test", "ümläut „quoted“"),
    }
    return Episodes(
        obs=rng.normal(size=(start[-1] + len(lengths), n_obs)).astype(np.float32),
        act=rng.uniform(low, high, (start[-1], n_act)).astype(np.float32),
        rew=rng.normal(size=start[-1]).astype(np.float32),
        terminated=terminated,
        start=start.astype(np.int64),
        meta=Meta(**{**known, **meta}),
    )


def poke(eps: Episodes, array: str, at, value) -> Episodes:
    """The same with one value changed, unchecked."""
    fresh = getattr(eps, array).copy()
    fresh[at] = value
    return replace(eps, **{array: fresh})


def place(folder: Path, format: str, stem: str = "set") -> Path:
    """A path that suits the format."""
    return folder / f"{stem}{SUFFIX[format]}"


def bits(array: np.ndarray) -> bytes:
    """The array as bytes, every NaN the same: tells -0.0 from 0.0."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.float32(np.nan), array)
    return array.tobytes()


def assert_same(got: Episodes, want: Episodes) -> None:
    """Every array agrees in type, shape and bit, and so does the metadata but for the source."""
    assert got.same(want)
    for name, kind in (("obs", "f4"), ("act", "f4"), ("rew", "f4"), ("terminated", "?"), ("start", "i8")):
        a, b = getattr(got, name), getattr(want, name)
        assert a.dtype == np.dtype(kind) and a.shape == b.shape and bits(a) == bits(b), name
    assert replace(got.meta, source="") == replace(want.meta, source="")
