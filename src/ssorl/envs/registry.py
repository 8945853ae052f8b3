"""Environments by name."""

from __future__ import annotations

from ssorl.envs.base import Env
from ssorl.envs.locomotion import BY_ID, SPECS, Locomotion
from ssorl.envs.maze import LAYOUTS, maze
from ssorl.envs.pointmass import PointMass
from ssorl.envs.scores import SCORES
from ssorl.envs.vector import VectorEnv
from ssorl.utils.errors import SsorlError


def horizon(env: str) -> int:
    """Steps after which an episode is cut."""
    return simulator(env, 1, 1).horizon


def simulator(env: str, n_envs: int, threads: int | None) -> Env:
    """The environments of that name; says in a sentence what is wrong with it."""
    try:
        return make(env, n_envs, threads)
    except Exception as err:
        # Gymnasium's own errors, without importing it where it was not needed.
        if not (isinstance(err, (ValueError, ImportError)) or type(err).__module__.startswith("gymnasium")):
            raise
        known = ", ".join([*SPECS, *(name for name in SCORES if name not in SPECS), "pointmass"])
        reason = " ".join(str(err).split()).rstrip(".")
        raise SsorlError(f"no environment {env!r} ({reason}); there are {known} and those of Gymnasium") from err


def make(name: str, n_envs: int, threads: int | None = None) -> Env:
    """`n_envs` copies of 'hopper', 'walker2d', 'halfcheetah' (v4), 'maze2d-…-dense', 'pointmass' or a Gymnasium id.

    A name `module:Id`, for which Gymnasium imports the module, must be a `TrustedName`: see `trust`.
    `threads` (default: all cores) serves the batched simulators only and never changes a result.
    """
    if name in LAYOUTS:
        return maze(name, n_envs, threads)
    if name == PointMass.name:
        return PointMass(n_envs)
    spec = SPECS.get(name) or BY_ID.get(name)
    return Locomotion(name, spec, n_envs, threads) if spec else VectorEnv(name, n_envs)
