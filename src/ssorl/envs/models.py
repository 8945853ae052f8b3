"""Known dynamics: models whose state can be set from an observation, and batches of their transitions.

Built in are Hopper, Walker2d, HalfCheetah and the mazes. For any other MJCF file, a state map says what the numbers of
an observation are.
"""

# MuJoCo is a compiled module without stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssorl.envs.locomotion import BY_ID, SPECS, Spec, model_path, n_cpus, no_warnings, quiet_model
from ssorl.envs.maze import LAYOUTS, MAX_SPEED, model_of
from ssorl.envs.mjcf import read_mjcf
from ssorl.envs.state_map import Coordinate, StateMap, read_state_map
from ssorl.utils.errors import DataError, SsorlError, nearest
from ssorl.utils.registry import shown

if TYPE_CHECKING:
    import mujoco

Floats = NDArray[np.floating]
BUILT_IN = (*BY_ID, *SPECS, *LAYOUTS)
MAX_STATE = 1e9  # MuJoCo resets a simulation whose state is larger than 1e10
ROWS = 4096  # simulations of a batch
START = 1e3  # time at which a transition starts, in seconds


class States(NamedTuple):
    """States of a simulator as observations tell them, N of them."""

    qpos: Floats  # [N, nq]
    qvel: Floats  # [N, nv]
    unknown: NDArray[np.bool_]  # [N, nv]: this velocity was clipped, or is not observed
    low: Floats  # [N, nv], least value of an unknown velocity
    high: Floats  # [N, nv]


@dataclass(frozen=True, eq=False)
class KnownModel:
    """A MuJoCo model and how observations and actions refer to it."""

    name: str
    model: mujoco.MjModel
    frame_skip: int
    pos: tuple[NDArray[np.int64], NDArray[np.int64]]  # observed positions: dimensions, coordinates of qpos
    vel: tuple[NDArray[np.int64], NDArray[np.int64]]  # observed velocities: dimensions, coordinates of qvel
    clip_low: Floats  # [nv], bounds of the observed velocities
    clip_high: Floats
    ctrl_low: Floats  # [nu], range of the actions
    ctrl_high: Floats
    n_obs: int
    max_speed: float = np.inf  # velocities are clipped to this before each step

    @property
    def dt(self) -> float:
        """Return the duration of one action in seconds."""
        return float(self.model.opt.timestep * self.frame_skip)

    @property
    def n_act(self) -> int:
        """Return the size of an action."""
        return int(self.model.nu)

    @property
    def fully_actuated(self) -> bool:
        """Return whether there are as many actuators as degrees of freedom, so that some action fits any transition."""
        return self.model.nu >= self.model.nv

    @cached_property
    def digest(self) -> bytes:
        """Return bytes that differ for different dynamics."""
        import hashlib

        import mujoco

        buffer = np.empty(mujoco.mj_sizeModel(self.model), np.uint8)
        mujoco.mj_saveModel(self.model, None, buffer)
        numbers = (*self.pos, *self.vel, self.clip_low, self.clip_high, self.ctrl_low, self.ctrl_high)
        more = [np.ascontiguousarray(x).tobytes() for x in numbers]
        tail = f"{mujoco.__version__} {self.frame_skip} {self.max_speed}".encode()
        return hashlib.sha256(b"".join([buffer.tobytes(), *more, tail])).digest()

    @cached_property
    def _position(self) -> NDArray[np.int64]:
        """Return the coordinate of qpos that each velocity is the derivative of, [nv]; -1 for rotations of balls."""
        model, found = self.model, np.full(self.model.nv, -1)
        for first_pos, first_vel, kind in zip(model.jnt_qposadr, model.jnt_dofadr, model.jnt_type, strict=True):
            straight = {0: 3, 1: 0}.get(int(kind), 1)  # of a free joint the translation, of a ball nothing
            found[first_vel : first_vel + straight] = np.arange(first_pos, first_pos + straight)
        return found

    @cached_property
    def moves(self) -> NDArray[np.bool_]:
        """Return for which velocities positions tell the mean speed, [nv]."""
        return np.isin(self._position, self.pos[1])

    def speeds(self, before: Floats, after: Floats) -> Floats:
        """Return the mean velocities [N, nv] between positions [N, nq] one action apart; see `moves`."""
        return (after - before)[:, self._position] / self.dt

    def states(self, obs: Floats) -> States:
        """Return the states that observations [N, O] tell; unknown velocities are at their bounds, or 0."""
        obs = np.asarray(obs, np.float64)
        n, nv = len(obs), self.model.nv
        qpos = np.tile(self.model.qpos0, (n, 1))
        qvel = np.zeros((n, nv))
        qpos[:, self.pos[1]] = obs[:, self.pos[0]]
        qvel[:, self.vel[1]] = obs[:, self.vel[0]]
        seen = np.zeros(nv, bool)
        seen[self.vel[1]] = True
        above, below = seen & (qvel >= self.clip_high), seen & (qvel <= self.clip_low)
        low, high = np.where(above, self.clip_high, -np.inf), np.where(below, self.clip_low, np.inf)
        return States(qpos, qvel, above | below | ~seen, low, high)

    def clip(self, qvel: Floats) -> Floats:
        """Return velocities [N, nv] as observations show them."""
        return np.clip(qvel, self.clip_low, self.clip_high)


class Transitions:
    """Batches of transitions of a known model on a thread pool; results do not depend on the number of threads."""

    def __init__(self, known: KnownModel, threads: int | None = None, rows: int = ROWS) -> None:
        """Create the batch.

        Args:
            known: the model.
            threads: threads of the simulator; all cores by default.
            rows: simulations that run at a time.
        """
        from mujoco.batch import Batch

        self.known, self.rows = known, rows
        self._batch = Batch(known.model, rows, nthread=min(threads or n_cpus(), rows))
        self._qpos, self._qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self._ctrl, self._time = self._batch.bind("ctrl"), self._batch.bind("time")
        self._time[:] = START
        self._fresh = self._batch.state[0].copy()

    def __call__(self, qpos: Floats, qvel: Floats, ctrl: Floats) -> tuple[Floats, Floats]:
        """Return positions and velocities one action later; NaN where the simulation is unstable.

        Args:
            qpos: [N, nq].
            qvel: [N, nv].
            ctrl: actions [N, nu].
        """
        known, end = self.known, np.empty((len(qpos), qpos.shape[1] + qvel.shape[1]))
        qvel = np.clip(qvel, -known.max_speed, known.max_speed)
        sane = (np.abs(np.concatenate([qpos, qvel], axis=1)) < MAX_STATE).all(axis=1)  # False for NaN as well
        end[~sane] = np.nan
        todo = np.flatnonzero(sane)
        with no_warnings():
            for first in range(0, len(todo), self.rows):
                steps = todo[first : first + self.rows]
                ids = np.arange(len(steps))
                self._batch.state[ids] = self._fresh
                self._qpos[ids], self._qvel[ids], self._ctrl[ids] = qpos[steps], qvel[steps], ctrl[steps]
                self._batch.step(ids, nstep=known.frame_skip)
                end[steps] = np.concatenate([self._qpos[ids], self._qvel[ids]], axis=1)
                # MuJoCo resets an unstable simulation to its initial state, and its clock to 0.
                end[steps[self._time[ids].reshape(-1) < START]] = np.nan
        return end[:, : qpos.shape[1]], end[:, qpos.shape[1] :]


def known_model(name: str, state_map: Path | None = None) -> KnownModel:
    """Return the model of a built-in environment or of an MJCF file.

    Args:
        name: a built-in name such as Hopper-v4 or maze2d-umaze-dense, or the path of an MJCF file.
        state_map: for an MJCF file, the file that describes observations, see `envs.state_map`.

    Raises:
        DataError: the file or the state map is invalid.
        SsorlError: there is no such model.
    """
    if name in BUILT_IN:
        if state_map is not None:
            raise SsorlError(f"--state-map is for models from files; {name} is built in, so leave it out")
        return _maze(name) if name in LAYOUTS else _locomotion(name, BY_ID.get(name) or SPECS[name])
    if not name.endswith(".xml"):
        raise SsorlError(
            f"--simulator {shown(name)}: ssorl cannot set the state of this environment; "
            f"{nearest(name, BUILT_IN)} Or give an MJCF file, MODEL.xml, with --state-map"
        )
    if state_map is None:
        raise SsorlError(
            f"--simulator {shown(name)}: needs --state-map FILE, which says what the numbers of an observation are"
        )
    return from_map(name, read_mjcf(Path(name)), read_state_map(state_map), str(state_map))


def known_or_none(name: str | None, state_map: str | Path | None) -> KnownModel | None:
    """Return what `known_model` returns, or None if no model is named.

    Raises:
        SsorlError: a state map comes without a model, or `known_model` raises.
    """
    if name is not None:
        return known_model(str(name), None if state_map is None else Path(state_map))
    if state_map is not None:
        raise SsorlError("--state-map describes a model; name it with --simulator MODEL.xml")
    return None


def _locomotion(name: str, spec: Spec) -> KnownModel:
    model = quiet_model(model_path(spec.xml))
    coordinates = [Coordinate("qpos", i) for i in range(1, model.nq)] + [Coordinate("qvel", i) for i in range(model.nv)]
    clip = ((None, -spec.clip_vel, spec.clip_vel),)
    return from_map(name, model, StateMap(spec.frame_skip, tuple(coordinates), clip, (Coordinate("qpos", 0),)), name)


def _maze(name: str) -> KnownModel:
    model = model_of(LAYOUTS[name])
    coordinates = [Coordinate(kind, i) for kind in ("qpos", "qvel") for i in range(2)]
    return from_map(name, model, StateMap(1, tuple(coordinates), max_speed=MAX_SPEED), name)


def from_map(name: str, model: mujoco.MjModel, state_map: StateMap, where: str) -> KnownModel:
    """Return a known model.

    Args:
        name: its name, for reports.
        model: the compiled model.
        state_map: what the numbers of observations and actions are.
        where: source of the state map, for messages.

    Raises:
        DataError: the map does not fit the model, or the model has states that cannot be observed.
    """
    if model.na:
        raise DataError(f"{name}: its actuators have states of their own, which no observation shows; use plain motors")
    if not model.nu:
        raise DataError(f"{name}: has no actuators, so there are no actions to find; give the whole model")
    index = {kind: _Index(model, kind, where) for kind in ("qpos", "qvel")}
    seen: dict[str, dict[int, int]] = {"qpos": {}, "qvel": {}}  # coordinate -> dimension
    for dimension, coordinate in enumerate(state_map.observation):
        if coordinate is not None:
            number = index[coordinate.kind](coordinate)
            if number in seen[coordinate.kind]:
                raise DataError(f"{where}: observation lists {coordinate.kind}[{number}] twice; write null once")
            seen[coordinate.kind][number] = dimension
    free = {index["qpos"](coordinate) for coordinate in state_map.free if coordinate.kind == "qpos"}
    for number in range(model.nq):
        if number not in seen["qpos"] and number not in free:
            raise DataError(
                f"{where}: position qpos[{number}] of {name} is not observed; list it under observation, or under "
                "free if it has no effect"
            )
    if not seen["qpos"] and not seen["qvel"]:
        raise DataError(f"{where}: no number of an observation is a coordinate of {name}; list them under observation")
    low, high = np.full(model.nv, -np.inf), np.full(model.nv, np.inf)
    for coordinate, least, most in state_map.clip:
        chosen = slice(None) if coordinate is None else index["qvel"](coordinate)
        low[chosen], high[chosen] = least, most
    ctrl = _ctrl_range(name, model, state_map, where)
    pos, vel = ((np.array(list(part.values()), np.int64), np.array(list(part), np.int64)) for part in seen.values())
    n_obs = len(state_map.observation)
    return KnownModel(name, model, state_map.frame_skip, pos, vel, low, high, *ctrl, n_obs, state_map.max_speed)


def _ctrl_range(name: str, model: mujoco.MjModel, state_map: StateMap, where: str) -> tuple[Floats, Floats]:
    if state_map.ctrl is None:
        if not model.actuator_ctrllimited.all():
            raise DataError(f"{name}: not all actuators have a range of controls; give ctrl in {where}")
        low, high = model.actuator_ctrlrange.T.copy()
        return low, high
    if len(state_map.ctrl) != model.nu:
        raise DataError(f"{where}: ctrl has {len(state_map.ctrl)} pairs, but {name} has {model.nu} actuators")
    low, high = np.array(state_map.ctrl).T.copy()
    return low, high


class _Index:
    """Translate coordinates of one kind to their index in a model."""

    def __init__(self, model: mujoco.MjModel, kind: Literal["qpos", "qvel"] | str, where: str) -> None:
        import mujoco

        self.kind, self.where = kind, where
        self.size = int(model.nq if kind == "qpos" else model.nv)
        address = model.jnt_qposadr if kind == "qpos" else model.jnt_dofadr
        single = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
        self.joints = {
            model.joint(i).name: int(address[i]) for i in range(model.njnt) if int(model.jnt_type[i]) in single
        }

    def __call__(self, coordinate: Coordinate) -> int:
        key = coordinate.key
        if isinstance(key, int):
            if key >= self.size:
                raise DataError(f"{self.where}: there is no {self.kind}[{key}]; the model has {self.size} of them")
            return key
        if key not in self.joints:
            raise DataError(
                f"{self.where}: the model has no joint {shown(key)!r} with one degree of freedom; "
                f"{nearest(key, self.joints)}"
            )
        return self.joints[key]
