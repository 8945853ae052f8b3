"""Environments by name."""

from __future__ import annotations

from ssorl.envs.base import Env
from ssorl.envs.custom import ENVS, build
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
        known = ", ".join([*SPECS, *(name for name in SCORES if name not in SPECS), "pointmass", *ENVS.names()])
        reason = " ".join(str(err).split()).rstrip(".")
        raise SsorlError(f"no environment {env!r} ({reason}); there are {known} and those of Gymnasium") from err


def is_built_in(name: str) -> bool:
    """Return whether ssorl has the environment itself, so that no extension can take the name."""
    return name in LAYOUTS or name == PointMass.name or name in SPECS or name in BY_ID


def make(name: str, n_envs: int, threads: int | None = None) -> Env:
    """Return `n_envs` copies of an environment.

    Args:
        name: 'hopper', 'walker2d', 'halfcheetah' (v4), 'maze2d-…-dense', 'pointmass', a registered or installed
            environment, or a Gymnasium id. A name `module:…`, which imports the module, must be a `TrustedName`.
        n_envs: how many.
        threads: of the batched simulators (default: all cores); they never change a result.
    """
    if name in LAYOUTS:
        return maze(name, n_envs, threads)
    if name == PointMass.name:
        return PointMass(n_envs)
    if spec := SPECS.get(name) or BY_ID.get(name):
        return Locomotion(name, spec, n_envs, threads)
    return build(name, n_envs) or VectorEnv(name, n_envs)
