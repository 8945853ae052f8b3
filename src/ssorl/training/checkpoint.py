"""Checkpoints of trainings: files of named arrays with a checksum, never pickles.

Nothing in a file is executed. The caller's agent defines the shapes and types of the arrays, and a file with others is
rejected.
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

TRAINING = "ssorl training"  # kind of the file
ENGINE = 1  # raised when the same settings no longer give the same bits
VERSIONS = {"ssorl": __version__, "jax": jax.__version__, "numpy": np.__version__}  # for people who read the file


class TrainingCheckpoint(NamedTuple):
    """A group of N runs after a snapshot; arrays are on the host."""

    at: int  # updates done
    learner: Any  # a `scan.LearnerState` with a leading axis of runs; None before the first update
    curve: dict[str, np.ndarray]  # metric -> [C, N] float32, one row per snapshot
    scores: np.ndarray  # [C, N] float64, NaN where the callback returned none
    best: Params | None  # the averaged policy at each run's highest score, with a leading axis of runs


def identify(agent: Agent, every: int, average: float, data: Sequence[str], runs: Sequence[dict]) -> dict:
    """Return the identity of a group's training; a checkpoint with another identity is not resumed.

    Args:
        agent: the agent.
        every: number of updates between two snapshots.
        average: weight of the old average in the averaged policy.
        data: `identify_data` of each run's trajectories.
        runs: `identify_run` of each run.
    """
    counts = {"updates": agent.updates, "every": every, "average": average}
    shared = {"data": data[0]} if len(set(data)) == 1 else {}
    own = [run if shared else {**run, "data": digest} for run, digest in zip(runs, data, strict=True)]
    return {"engine": ENGINE, **describe(agent), "revision": revision_of(agent), **counts, **shared, "runs": own}


def identify_data(eps: Episodes) -> str:
    """Return a checksum of trajectories without their actions."""
    return _digest(eps.obs, eps.rew, eps.terminated, eps.start)


def identify_run(seed: int, act: np.ndarray, steps: np.ndarray) -> dict:
    """Return the part of a training's identity that belongs to one run.

    Args:
        seed: the run's seed.
        act: its scaled actions [S, A].
        steps: indices of the steps that it trains on [P].
    """
    return {"seed": int(seed), "labels": _digest(act), "steps": _digest(steps)}


def checkpoint_path(folder: Path, group: range) -> Path:
    """Return the path of a group's checkpoint."""
    return folder / (f"run-{group[0]}.npz" if len(group) == 1 else f"runs-{group[0]}-{group[-1]}.npz")


def groups_in(folder: Path, n_runs: int) -> list[range]:
    """Return the groups with checkpoints in a folder, in order.

    Args:
        folder: the folder.
        n_runs: number of runs of the training.

    Raises:
        SsorlError: groups overlap, or a group has runs that the training does not have.
    """
    ends = set()
    for file in folder.glob("run*-*.npz"):
        if match := re.fullmatch(r"runs?-(\d+)(?:-(\d+))?(\.previous)?\.npz", file.name):
            ends.add((int(match[1]), int(match[2] or match[1]) + 1))
    groups = [range(*pair) for pair in sorted(ends) if pair[0] < n_runs]
    for group, following in pairwise([*groups, range(n_runs, n_runs + 1)]):
        if group.stop > following.start:
            raise SsorlError(
                f"{folder}: {checkpoint_path(folder, group).name} has runs {group[0]} to {group[-1]}, which does not "
                f"fit the {n_runs} runs of this training or the other checkpoints; choose another folder"
            )
    return groups


def save(folder: Path, group: range, identity: dict, saved: TrainingCheckpoint, last: bool) -> None:
    """Write a group's checkpoint; keep the previous one as a second file, in case the new one is damaged.

    Args:
        folder: the folder.
        group: numbers of the runs.
        identity: `identify` of the training.
        saved: the checkpoint.
        last: whether the training is finished; the previous checkpoint is then deleted.
    """
    about = {"kind": TRAINING, "training": identity, "at": saved.at, "metrics": list(saved.curve)}
    about |= {"best": saved.best is not None, "versions": VERSIONS}
    arrays = {**flat(saved.learner, "learnt"), **flat(saved.curve, "curve"), "scores": saved.scores}
    path = checkpoint_path(folder, group)
    previous = path.with_suffix(".previous.npz")
    write_sealed(path, about, arrays | flat(saved.best, "best"), previous)
    if last:
        previous.unlink(missing_ok=True)


def load(folder: Path, group: range, identity: dict, like: Any) -> TrainingCheckpoint | None:
    """Return a group's checkpoint; the previous one, with a warning, if the last is damaged; None if there is none.

    Args:
        folder: the folder.
        group: numbers of the runs.
        identity: `identify` of the training.
        like: a `scan.LearnerState` with the expected shapes and types.

    Raises:
        SsorlError: the checkpoint is of another training or revision.
        DataError: all checkpoints of the group are damaged.
    """
    path = checkpoint_path(folder, group)
    existing = [p for p in (path, path.with_suffix(".previous.npz")) if p.exists()]
    for path in existing:
        try:
            return _load(path, identity, like, len(group))
        except DamagedError as err:
            if path == existing[-1]:
                raise DataError(f"{err}; delete it to train from the start") from err
            warnings.warn(f"{err}; training resumes from the earlier checkpoint {existing[-1].name}", stacklevel=4)
    return None


def _load(path: Path, identity: dict, like: Any, n_runs: int) -> TrainingCheckpoint:
    with sealed(path, "a checkpoint") as file:
        about = file.about
        if about.get("kind") != TRAINING:
            raise ValueError("its about.json describes another kind of file")
        stored = {"revision": 0, **about["training"]}  # version 0.1 did not write the revision
        if stored["revision"] != identity["revision"]:
            raise SsorlError(
                f"{path}: this training began with revision {str(stored['revision'])[:80]} of {identity['agent']}, but "
                f"this version has revision {identity['revision']}, whose results differ; choose another folder"
            )
        if changes := differences(stored, json.loads(json.dumps(identity))):
            more = f" and {len(changes) - 3} more differences" if len(changes) > 3 else ""
            raise SsorlError(
                f"{path}: is a checkpoint of another training ({'; '.join(changes[:3])}{more}); choose another folder, "
                "or restore the settings and data"
            )
        at, names = about["at"], about["metrics"]
        total = identity["updates"]
        if type(at) is not int or not 0 < at <= total or (at % identity["every"] and at != total):
            raise ValueError(f"it claims to be at update {str(at)[:80]} of {total}")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("its metrics have no names")
        n_snapshots = -(-at // identity["every"])
        curve = {name: jax.ShapeDtypeStruct((n_snapshots, n_runs), np.float32) for name in names}
        scores = jax.ShapeDtypeStruct((n_snapshots, n_runs), np.float64)
        best = like.average if about["best"] is True else None
        arrays = file.read({**flat(like, "learnt"), **flat(curve, "curve"), "scores": scores, **flat(best, "best")})
        curve = {name: arrays[f"curve/{name}"] for name in names}
        learner, best = unflat(arrays, like, "learnt"), unflat(arrays, best, "best")
        return TrainingCheckpoint(at, learner, curve, arrays["scores"], best)


def differences(was: Any, now: Any, name: str = "") -> list[str]:
    """Return the differences between two JSON values, as phrases such as "settings alpha was 2.5 and is 1.0".

    Args:
        was: the stored value.
        now: the current value.
        name: the value's name.
    """
    if isinstance(was, dict) and isinstance(now, dict):
        pairs = [(f"{name} {key}".strip(), was.get(key), now.get(key)) for key in sorted({*was, *now})]
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = [(f"{name.removesuffix('s')} {i}", a, b) for i, (a, b) in enumerate(zip(was, now, strict=True))]
    elif was == now and type(was) is type(now):
        return []
    elif isinstance(was, str) and isinstance(now, str) and len(was) == len(now) == 64:
        return [f"{name} differ{'' if name.endswith('s') else 's'}"]  # checksums are not worth showing
    else:
        return [f"{name} was {str(was)[:80]} and is {str(now)[:80]}"]
    return [phrase for key, a, b in pairs for phrase in differences(a, b, key)]


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
