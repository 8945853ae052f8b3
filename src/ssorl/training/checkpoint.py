"""Unfinished trainings in files: plain arrays by name, never a pickle, every byte checked.

What a file says is never executed: the agent is rebuilt from `AGENTS` and the arrays are held against the shapes that
its `init` gives.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ssorl.agents.base import Agent
from ssorl.agents.serialise import describe
from ssorl.data.episodes import Episodes
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.files import DamagedError
from ssorl.utils.identity import revision_of
from ssorl.utils.networks import Params
from ssorl.utils.sealed import sealed, write_sealed
from ssorl.utils.trees import flat, unflat
from ssorl.utils.version import __version__

TRAINING, ENGINE = "ssorl training", 1  # the second changes when the same settings no longer give the same bits
VERSIONS = {
    "ssorl": __version__,
    "jax": jax.__version__,
    "numpy": np.__version__,
}  # for a reader; nothing asks for them


# Agents and trees in files ---------------------------------------------------------------------------------


# Unfinished trainings --------------------------------------------------------------------------------------


class TrainingCheckpoint(NamedTuple):
    """A group of runs after a look, on the host, each array with a leading axis of runs."""

    at: int  # updates done
    learnt: Any  # a `train.LearnerState`
    curve: dict[str, np.ndarray]  # metric -> [C, N] float32, one row a look
    scores: np.ndarray  # [C, N] float64, NaN where the callback gave none
    best: Params | None  # the averaged policy at each run's highest score


def identify(agent: Agent, every: int, average: float, data: Sequence[str], runs: Sequence[dict]) -> dict:
    """What makes the training of a group this one and no other; `data`: what `identify_data` says of each run's."""
    counts = {"updates": agent.updates, "every": every, "average": average}
    shared = {"data": data[0]} if len(set(data)) == 1 else {}
    own = [run if shared else {**run, "data": one} for run, one in zip(runs, data, strict=True)]
    return {"engine": ENGINE, **describe(agent), "revision": revision_of(agent), **counts, **shared, "runs": own}


def identify_data(eps: Episodes) -> str:
    """A checksum of trajectories, whatever their actions."""
    return _digest(eps.obs, eps.rew, eps.terminated, eps.start)


def identify_run(seed: int, act: np.ndarray, steps: np.ndarray) -> dict:
    """What one run has for itself."""
    return {"seed": int(seed), "labels": _digest(act), "steps": _digest(steps)}


def file_of(folder: Path, which: range) -> Path:
    """Where a group of runs is kept."""
    return folder / (f"run-{which[0]}.npz" if len(which) == 1 else f"runs-{which[0]}-{which[-1]}.npz")


def groups_in(folder: Path, n_runs: int) -> list[range]:
    """The groups that were begun in a folder, by the names of their files."""
    found = set()
    for file in folder.glob("run*-*.npz"):
        if match := re.fullmatch(r"runs?-(\d+)(?:-(\d+))?(\.previous)?\.npz", file.name):
            found.add((int(match[1]), int(match[2] or match[1]) + 1))
    groups = [range(*ends) for ends in sorted(found) if ends[0] < n_runs]
    for one, two in pairwise([*groups, range(n_runs, n_runs + 1)]):
        if one.stop > two.start:
            raise SsorlError(
                f"{folder}: {file_of(folder, one).name} is of runs {one[0]} to {one[-1]}, which does not fit the "
                f"{n_runs} runs of this training and the other files there; choose another folder"
            )
    return groups


def save(folder: Path, which: range, identity: dict, saved: TrainingCheckpoint, last: bool) -> None:
    """Write a group's checkpoint and keep the one before it until the `last`."""
    about = {"kind": TRAINING, "training": identity, "at": saved.at, "metrics": list(saved.curve)}
    about |= {"best": saved.best is not None, "versions": VERSIONS}
    arrays = {**flat(saved.learnt, "learnt"), **flat(saved.curve, "curve"), "scores": saved.scores}
    path = file_of(folder, which)
    previous = path.with_suffix(".previous.npz")
    write_sealed(path, about, arrays | flat(saved.best, "best"), previous)
    if last:
        previous.unlink(missing_ok=True)


def load(folder: Path, which: range, identity: dict, like: Any) -> TrainingCheckpoint | None:
    """A group's checkpoint, the one before it if it is damaged; None if there is none. `like` has the shapes due."""
    path = file_of(folder, which)
    there = [p for p in (path, path.with_suffix(".previous.npz")) if p.exists()]
    for place, path in enumerate(there):
        try:
            return _load(path, identity, like, len(which))
        except DamagedError as err:
            if place == len(there) - 1:
                raise DataError(f"{err}; delete it to train from the start") from err
            warnings.warn(f"{err}; training goes on from {there[-1].name}, a little earlier", stacklevel=4)
    return None


def _load(path: Path, identity: dict, like: Any, n_runs: int) -> TrainingCheckpoint:
    with sealed(path, "a checkpoint") as file:
        about = file.about
        if about.get("kind") != TRAINING:
            raise ValueError("its about.json describes another kind of file")
        stored = {"revision": 0, **about["training"]}  # version 0.1 wrote none
        if stored["revision"] != identity["revision"]:
            raise SsorlError(
                f"{path}: was begun with revision {str(stored['revision'])[:80]} of {identity['agent']} and this "
                f"version has revision {identity['revision']}, which gives other results; train into another folder"
            )
        if found := differences(stored, json.loads(json.dumps(identity))):
            more = f" and {len(found) - 3} more differences" if len(found) > 3 else ""
            raise SsorlError(
                f"{path}: is a checkpoint of another training ({'; '.join(found[:3])}{more}); train into another "
                "folder, or as it began"
            )
        at, names = about["at"], about["metrics"]
        total = identity["updates"]
        if type(at) is not int or not 0 < at <= total or (at % identity["every"] and at != total):
            raise ValueError(f"it claims to be at update {str(at)[:80]} of {total}")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("its metrics have no names")
        n_looks = -(-at // identity["every"])
        curve = {name: jax.ShapeDtypeStruct((n_looks, n_runs), np.float32) for name in names}
        scores = jax.ShapeDtypeStruct((n_looks, n_runs), np.float64)
        best = like.average if about["best"] is True else None
        found = file.read({**flat(like, "learnt"), **flat(curve, "curve"), "scores": scores, **flat(best, "best")})
        curve = {name: found[f"curve/{name}"] for name in names}
        return TrainingCheckpoint(
            at, unflat(found, like, "learnt"), curve, found["scores"], unflat(found, best, "best")
        )


def differences(was: Any, now: Any, what: str = "") -> list[str]:
    """Where two descriptions part, in words."""
    if isinstance(was, dict) and isinstance(now, dict):
        pairs = [(f"{what} {key}".strip(), was.get(key), now.get(key)) for key in sorted({*was, *now})]
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = [(f"{what.removesuffix('s')} {i}", a, b) for i, (a, b) in enumerate(zip(was, now, strict=True))]
    elif was == now and type(was) is type(now):
        return []
    elif isinstance(was, str) and isinstance(now, str) and len(was) == len(now) == 64:
        return [f"{what} differ{'' if what.endswith('s') else 's'}"]  # a checksum tells a reader nothing
    else:
        return [f"{what} was {str(was)[:80]} and is {str(now)[:80]}"]
    return [found for pair in pairs for found in differences(pair[1], pair[2], pair[0])]


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
