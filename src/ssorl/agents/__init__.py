"""Offline RL agents, by name."""

from __future__ import annotations

from typing import Any

from ssorl.agents.base import Agent
from ssorl.agents.bc import BC
from ssorl.agents.cql import CQL
from ssorl.agents.dt import DT
from ssorl.agents.dt_joint import DTJoint
from ssorl.agents.iql import IQL
from ssorl.agents.td3bc import TD3BC
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.validation import check_settings, plain

AGENTS: dict[str, type[Agent]] = {
    "bc": BC,
    "cql": CQL,
    "dt": DT,
    "dt-joint": DTJoint,
    "iql": IQL,
    "td3bc": TD3BC,
}


def make(name: str, preset: str = "paper", **settings: Any) -> Agent:
    """The agent of that name with a preset and changes to it.

    `paper` has the published settings; `quick` is lighter, for a CPU.
    """
    if name not in AGENTS:
        raise SsorlError(f"no agent is called {name!r}; {nearest(name, AGENTS)}")
    kind = AGENTS[name]
    if preset not in kind.PRESETS:
        raise SsorlError(f"{name} has no preset {preset!r}; {nearest(preset, kind.PRESETS)}")
    check_settings(name, settings, kind)
    return kind(**{**kind.PRESETS[preset], **{key: plain(value) for key, value in settings.items()}})
