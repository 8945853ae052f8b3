"""Simulators: batched MuJoCo for the locomotion tasks and mazes, Gymnasium's vector API for the rest."""

from ssorl.envs.base import Env, Step
from ssorl.envs.custom import ENVS, env_name, register_env
from ssorl.envs.locomotion import SPECS, Locomotion
from ssorl.envs.registry import horizon, make, simulator
from ssorl.envs.scores import SCORES, normalise
from ssorl.envs.trust import TrustedName, require_trusted

__all__ = [
    "ENVS",
    "SCORES",
    "SPECS",
    "Env",
    "Locomotion",
    "Step",
    "TrustedName",
    "horizon",
    "make",
    "env_name",
    "normalise",
    "register_env",
    "require_trusted",
    "simulator",
]
