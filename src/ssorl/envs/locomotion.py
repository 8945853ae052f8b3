"""Batches of Hopper, Walker2d and HalfCheetah: MuJoCo on a thread pool, rewards and endings in vectorised NumPy.

The environments equal Gymnasium's v4 and v5 step by step (see tests/unit/envs/test_locomotion.py). Of the installed
Gymnasium only the model files are read.
"""

# MuJoCo is a compiled module without stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ssorl.envs.base import Floats, Step
from ssorl.utils.extras import require

if TYPE_CHECKING:
    import mujoco


@dataclass(frozen=True)
class Spec:
    """The constants of one environment."""

    xml: str  # model file among Gymnasium's MuJoCo assets
    frame_skip: int  # simulator steps of one action
    ctrl_cost: float  # weight of |act|^2 in the reward
    reset_noise: float  # scale of the noise on the initial state
    alive: float = 0.0  # reward of each step without a fall
    alive_when_fallen: bool = True  # v4 also pays `alive` on the step of the fall, v5 does not
    clip_vel: float = np.inf  # bound of the observed velocities
    z: tuple[float, float] | None = None  # healthy heights; None: episodes never terminate
    angle: tuple[float, float] = (-np.inf, np.inf)  # healthy torso angles
    state: float = np.inf  # healthy bound of all coordinates except x and z
    normal_vel: bool = False  # initial velocities are normal instead of uniform
    horizon: int = 1000  # steps of an episode


# v4, the version that D4RL's data comes from.
SPECS: dict[str, Spec] = {
    "hopper": Spec(
        "hopper.xml", 4, 1e-3, 5e-3, alive=1.0, clip_vel=10.0, z=(0.7, np.inf), angle=(-0.2, 0.2), state=100.0
    ),
    "walker2d": Spec("walker2d.xml", 4, 1e-3, 5e-3, alive=1.0, clip_vel=10.0, z=(0.8, 2.0), angle=(-1.0, 1.0)),
    "halfcheetah": Spec("half_cheetah.xml", 5, 0.1, 0.1, normal_vel=True),
}

BY_ID: dict[str, Spec] = {
    "Hopper-v4": SPECS["hopper"],
    "Walker2d-v4": SPECS["walker2d"],
    "HalfCheetah-v4": SPECS["halfcheetah"],
    "Hopper-v5": replace(SPECS["hopper"], alive_when_fallen=False),
    "Walker2d-v5": replace(SPECS["walker2d"], alive_when_fallen=False, xml="walker2d_v5.xml"),
    "HalfCheetah-v5": SPECS["halfcheetah"],
}


def model_path(xml: str) -> Path:
    """Return the path of a model file of the installed Gymnasium, without importing Gymnasium, which is slow."""
    return package_folder("gymnasium") / "envs" / "mujoco" / "assets" / xml


def package_folder(package: str) -> Path:
    """Return the folder of a package with MuJoCo models, without importing the package.

    Raises:
        SsorlError: the package or MuJoCo is not installed.
    """
    require("sim", "mujoco", package)
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def n_cpus() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@contextmanager
def no_warnings() -> Iterator[None]:
    """Keep MuJoCo's warnings off the screen and out of MUJOCO_LOG.TXT in the current folder during the block."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def quiet_model(path: Path) -> mujoco.MjModel:
    """Compile a model file without MuJoCo's warnings."""
    import mujoco

    with no_warnings():
        return mujoco.MjModel.from_xml_path(str(path))


class Locomotion:
    """A batch of one of these environments; results do not depend on the number of threads."""

    cut = np.zeros(1, bool)  # these environments never truncate

    def __init__(self, name: str, spec: Spec, n_envs: int, threads: int | None = None):
        model = quiet_model(model_path(spec.xml))
        from mujoco.batch import Batch

        self.name, self.spec, self.n_envs, self.horizon = name, spec, n_envs, spec.horizon
        self.n_obs, self.n_act = model.nq + model.nv - 1, model.nu
        self.act_low, self.act_high = model.actuator_ctrlrange.T.copy()
        self._dt = model.opt.timestep * spec.frame_skip
        # A Batch row includes the solver's warm start; without it rollouts drift from Gymnasium's.
        self._batch = Batch(model, n_envs, nthread=min(threads or n_cpus(), n_envs))
        self._qpos, self._qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self._ctrl = self._batch.bind("ctrl")
        self._qpos0 = model.qpos0.copy()

    def reset(self, rng: np.random.Generator, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Start new episodes where `mask` is True; only these consume random numbers, in row order."""
        n = self.n_envs if mask is None else int(np.count_nonzero(mask))
        noise, nv = self.spec.reset_noise, self._qvel.shape[1]
        qpos = self._qpos0 + rng.uniform(-noise, noise, (n, self._qpos0.size))
        qvel = noise * rng.standard_normal((n, nv)) if self.spec.normal_vel else rng.uniform(-noise, noise, (n, nv))
        return self.set_state(qpos, qvel, mask)

    def set_state(self, qpos: Floats, qvel: Floats, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Start episodes from given coordinates.

        Args:
            qpos: positions [M, nq], one row for each environment in `mask`.
            qvel: velocities [M, nv].
            mask: environments [N] to set; all by default.

        Returns:
            The observations of all environments [N, O].
        """
        ids = np.arange(self.n_envs) if mask is None else np.flatnonzero(mask)
        if ids.size:
            import mujoco

            self._batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
            self._qpos[ids], self._qvel[ids] = qpos, qvel
            self._batch.forward(ids)
        return self._obs()

    def step(self, act: Floats, ids: NDArray[np.int64] | None = None) -> Step:
        """Apply actions for `frame_skip` simulator steps.

        Args:
            act: actions [N, A].
            ids: indices of the environments to step; all by default.
        """
        x = self._qpos[:, 0].copy()
        self._ctrl[:] = act
        self._batch.step(ids, nstep=self.spec.frame_skip)
        healthy = self._healthy()
        alive = self.spec.alive if self.spec.alive_when_fallen else self.spec.alive * healthy
        rew = (self._qpos[:, 0] - x) / self._dt + alive - self.spec.ctrl_cost * np.square(act).sum(axis=-1)
        return Step(self._obs(), rew, ~healthy)

    def save(self) -> Floats:
        """Return the state of the simulator, including the solver's warm start."""
        return self._batch.state.copy()

    def load(self, state: Floats) -> Floats:
        """Restore a state that `save` returned, and return the observations."""
        self._batch.state[:] = state
        return self._obs()

    def _obs(self) -> Floats:
        clip = self.spec.clip_vel
        return np.concatenate([self._qpos[:, 1:], np.clip(self._qvel, -clip, clip)], axis=1)

    def _healthy(self) -> NDArray[np.bool_]:
        spec = self.spec
        if spec.z is None:
            return np.ones(self.n_envs, bool)
        z, angle = self._qpos[:, 1], self._qpos[:, 2]
        healthy = (spec.z[0] < z) & (z < spec.z[1]) & (spec.angle[0] < angle) & (angle < spec.angle[1])
        if np.isfinite(spec.state):
            healthy &= (np.abs(self._qpos[:, 2:]) < spec.state).all(axis=1)
            healthy &= (np.abs(self._qvel) < spec.state).all(axis=1)
        return healthy
