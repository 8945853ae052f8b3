"""Simulators: batched MuJoCo for the locomotion tasks and mazes, Gymnasium's vector API for the rest."""

from ssorl.envs.base import Env, Step
from ssorl.envs.locomotion import BY_ID, SPECS, Locomotion
from ssorl.envs.maze import LAYOUTS, maze
from ssorl.envs.pointmass import PointMass
from ssorl.envs.scores import SCORES, normalise
from ssorl.envs.trust import TrustedName, require_trusted
from ssorl.envs.vector import VectorEnv

__all__ = ["SCORES", "SPECS", "Env", "Locomotion", "Step", "TrustedName", "make", "normalise", "require_trusted"]


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
