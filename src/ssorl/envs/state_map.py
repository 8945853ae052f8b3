"""Which number of an observation is which coordinate of a MuJoCo model, for models that ssorl does not have.

The file is JSON:

    {"frame_skip": 4,
     "observation": ["qpos:rootz", "qpos[2]", "qvel:rootx", null],
     "clip": {"qvel": [-10, 10]},
     "free": ["qpos:rootx"],
     "ctrl": [[-1, 1], [-1, 1]]}
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ssorl.utils.errors import DataError, nearest
from ssorl.utils.files import parse_json
from ssorl.utils.registry import shown
from ssorl.utils.validation import number, whole

KEYS = ("frame_skip", "observation", "clip", "free", "ctrl")
COORDINATE = re.compile(r"(qpos|qvel)(?:\[(\d{1,6})\]|:(.+))")
MAX_BYTES = 1_000_000


class Coordinate(NamedTuple):
    """One number of a simulator's state."""

    kind: str  # "qpos" or "qvel"
    key: int | str  # its index, or the name of a joint with one degree of freedom


@dataclass(frozen=True)
class StateMap:
    """How observations and actions of a dataset refer to a model."""

    frame_skip: int  # simulator steps of one action
    observation: tuple[Coordinate | None, ...]  # what each number of an observation is; None: not used
    clip: tuple[tuple[Coordinate | None, float, float], ...] = ()  # bounds of observed velocities; None: of all
    free: tuple[Coordinate, ...] = ()  # unobserved positions that have no effect, such as a root's x
    ctrl: tuple[tuple[float, float], ...] | None = None  # range of each action; None: the model's
    max_speed: float = math.inf  # the simulator clips velocities to this before each step


def read_state_map(path: Path) -> StateMap:
    """Return the state map of a JSON file.

    Raises:
        DataError: the file cannot be read, or a value is invalid.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES)
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror}); give a state map, a JSON file") from err
    body = parse_json(raw, path)
    if not isinstance(body, dict):
        raise DataError(f"{path}: is not a JSON object; give one with frame_skip and observation")
    for key in body:
        if key not in KEYS:
            raise DataError(f"{path}: has an unknown key {shown(key)!r}; {nearest(key, KEYS)}")
    skip, names = body.get("frame_skip"), body.get("observation")
    if not isinstance(skip, int) or not whole(skip, 1) or skip > 10_000:
        raise DataError(f"{path}: frame_skip is {shown(skip)}; give the simulator steps of one action, from 1 up")
    if not isinstance(names, list) or not names:
        raise DataError(f"{path}: observation must list what each number of an observation is, such as qpos[1] or null")
    return StateMap(
        skip,
        tuple(None if name is None else _coordinate(name, path) for name in names),
        _clip(body.get("clip", {}), path),
        tuple(_coordinate(name, path) for name in _list(body.get("free", []), "free", path)),
        None
        if body.get("ctrl") is None
        else tuple(_range(pair, "ctrl", path) for pair in _list(body["ctrl"], "ctrl", path)),
    )


def _coordinate(name: Any, path: Path) -> Coordinate:
    found = COORDINATE.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise DataError(f"{path}: {shown(name)!r} is no coordinate; write qpos[2], qvel[0], qpos:JOINT or qvel:JOINT")
    kind, index, joint = found.groups()
    return Coordinate(kind, joint if index is None else int(index))


def _clip(body: Any, path: Path) -> tuple[tuple[Coordinate | None, float, float], ...]:
    if not isinstance(body, dict):
        raise DataError(f'{path}: clip must be an object such as {{"qvel": [-10, 10]}}')
    bounds = []
    for name, pair in body.items():
        where = None if name == "qvel" else _coordinate(name, path)
        if where is not None and where.kind != "qvel":
            raise DataError(f"{path}: clip names {shown(name)}; only velocities can be clipped")
        bounds.append((where, *_range(pair, "clip", path)))
    return tuple(bounds)


def _range(pair: Any, key: str, path: Path) -> tuple[float, float]:
    if not isinstance(pair, list) or len(pair) != 2 or not all(map(number, pair)) or not pair[0] < pair[1]:
        raise DataError(f"{path}: {key} has {shown(pair)}; give pairs of a lower and a higher number")
    return float(pair[0]), float(pair[1])


def _list(value: Any, key: str, path: Path) -> list:
    if not isinstance(value, list):
        raise DataError(f"{path}: {key} is {shown(value)}; give a list")
    return value
