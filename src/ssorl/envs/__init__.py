"""Simulators: batched MuJoCo for the locomotion tasks and mazes, Gymnasium's vector API for the rest."""

from ssorl.envs.base import Env, Step
from ssorl.envs.locomotion import SPECS, Locomotion
from ssorl.envs.registry import horizon, make, simulator
from ssorl.envs.scores import SCORES, normalise
from ssorl.envs.trust import TrustedName, require_trusted

__all__ = [
    "SCORES",
    "SPECS",
    "Env",
    "Locomotion",
    "Step",
    "TrustedName",
    "horizon",
    "make",
    "normalise",
    "simulator",
    "require_trusted",
]
