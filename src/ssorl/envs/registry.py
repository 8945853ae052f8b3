"""Create environments by name."""

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
    """Return the number of steps after which an episode of the environment is truncated."""
    return simulator(env, 1, 1).horizon


def simulator(env: str, n_envs: int, threads: int | None) -> Env:
    """Create a batch of environments as `make` does, with errors for users.

    Args:
        env: name of the environment.
        n_envs: number of copies N.
        threads: threads of the simulator; all cores if None.

    Raises:
        SsorlError: the environment does not exist or cannot be created.
    """
    try:
        return make(env, n_envs, threads)
    except Exception as err:
        # Recognise Gymnasium's errors by their module, so that Gymnasium need not be imported.
        if not (isinstance(err, (ValueError, ImportError)) or type(err).__module__.startswith("gymnasium")):
            raise
        known = ", ".join([*SPECS, *(name for name in SCORES if name not in SPECS), "pointmass", *ENVS.names()])
        reason = " ".join(str(err).split()).rstrip(".")
        raise SsorlError(f"no environment {env!r} ({reason}); there are {known} and those of Gymnasium") from err


def is_built_in(name: str) -> bool:
    """Return whether ssorl has the environment itself, so that no extension can take the name."""
    return name in LAYOUTS or name == PointMass.name or name in SPECS or name in BY_ID


def make(name: str, n_envs: int, threads: int | None = None) -> Env:
    """Create a batch of environments.

    Args:
        name: "hopper", "walker2d", "halfcheetah" (v4), "maze2d-…-dense", "pointmass", a registered or installed
            environment, or a Gymnasium id. A name `module:…` imports the module and must be a `TrustedName`.
        n_envs: number of copies N.
        threads: threads of the batched simulators, all cores by default; they never change a result.
    """
    if name in LAYOUTS:
        return maze(name, n_envs, threads)
    if name == PointMass.name:
        return PointMass(n_envs)
    if spec := SPECS.get(name) or BY_ID.get(name):
        return Locomotion(name, spec, n_envs, threads)
    return build(name, n_envs) or VectorEnv(name, n_envs)
