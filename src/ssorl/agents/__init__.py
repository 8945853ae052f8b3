"""Offline RL agents, by name."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, cast

from ssorl.agents.base import Agent
from ssorl.agents.bc import BC
from ssorl.agents.cql import CQL
from ssorl.agents.dt import DT
from ssorl.agents.dt_joint import DTJoint
from ssorl.agents.iql import IQL
from ssorl.agents.td3bc import TD3BC
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.registry import Registry, TrustedName
from ssorl.utils.validation import check_settings, plain

BUILT_IN: dict[str, type[Agent]] = {
    "bc": BC,
    "cql": CQL,
    "dt": DT,
    "dt-joint": DTJoint,
    "iql": IQL,
    "td3bc": TD3BC,
}
METHODS = ("init", "update", "policy", "begin", "act")
ATTRIBUTES = ("PRESETS", "updates", "period", "view")


def check_agent(name: str, kind: Any) -> type[Agent]:
    """Return the class if it meets the interface of `Agent`.

    Args:
        name: the agent's name, for messages.
        kind: the class.

    Raises:
        SsorlError: it is not a frozen dataclass with defaults, or it lacks a method or an attribute.
    """
    if not isinstance(kind, type):
        raise SsorlError(f"the agent {name} is {kind!r}; give a class, a frozen dataclass of the agent's settings")
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise SsorlError(f"the agent {name}: {kind.__name__} is not a frozen dataclass; see docs/your-own-agent.md")
    if without_default := [f.name for f in fields(kind) if f.default is MISSING]:
        raise SsorlError(f"the agent {name}: the setting {without_default[0]} has no default; add one")
    settings = {f.name for f in fields(kind)}
    missing = [method for method in METHODS if not callable(getattr(kind, method, None))]
    missing += [attribute for attribute in ATTRIBUTES if not hasattr(kind, attribute) and attribute not in settings]
    if missing:
        raise SsorlError(f"the agent {name}: {kind.__name__} has no {missing[0]}; see docs/your-own-agent.md")
    return cast(type[Agent], kind)


AGENTS: Registry[type[Agent]] = Registry("agent", "ssorl.agents", "--agent", BUILT_IN, check_agent)


def register_agent(name: str, kind: type[Agent]) -> None:
    """Register an agent class under a name in this process.

    Other processes do not have the registration. To make an agent available wherever its package is installed, declare
    the class as an entry point of the group `ssorl.agents`.

    Args:
        name: the agent's name for `--agent`, in files and in results; built-in names are taken.
        kind: the class, a frozen dataclass with the methods of `ssorl.agents.base.Agent`.

    Raises:
        SsorlError: the name is taken, or the class does not meet the interface.
    """
    AGENTS.register(name, kind)


def make(name: str, preset: str = "paper", **settings: Any) -> Agent:
    """Return an agent by name, with a preset and changed settings.

    Args:
        name: a built-in, registered or installed agent; a `TrustedName` may also be `module:Class`.
        preset: `paper` has the published settings; `quick` is lighter, for a CPU.
        **settings: fields of the agent that differ from the preset.

    Raises:
        SsorlError: there is no such agent, preset or setting.
    """
    kind = AGENTS.find(name)
    if preset not in kind.PRESETS:
        raise SsorlError(f"{name} has no preset {preset!r}; {nearest(preset, kind.PRESETS)}")
    check_settings(name, settings, kind)
    return kind(**{**kind.PRESETS[preset], **{key: plain(value) for key, value in settings.items()}})


def resolve(agent: str | Agent | type[Agent], preset: str = "paper", settings: dict[str, Any] | None = None) -> Agent:
    """Return the agent that the user chose by name, class or instance; register a class that is new.

    Args:
        agent: a name, `module:Class`, a class, or an instance, which has its own settings.
        preset: as for `make`; it has no effect on an instance.
        settings: fields of the agent that differ from the preset; not for an instance.

    Raises:
        SsorlError: there is no such agent, preset or setting, or an instance comes with settings.
    """
    kind = agent_class(agent)
    if isinstance(agent, str | type):
        return make(agent if isinstance(agent, str) else AGENTS.name_of(kind), preset, **(settings or {}))
    if settings:
        raise SsorlError(f"the agent is an instance, so {next(iter(settings))} has no effect; set it on the instance")
    return agent


def agent_class(agent: str | Agent | type[Agent]) -> type[Agent]:
    """Return the class of the agent that the user chose by name, class or instance; register a class that is new.

    Args:
        agent: a name, `module:Class`, a class, or an instance.

    Raises:
        SsorlError: there is no such agent, or the class does not meet the interface.
    """
    if isinstance(agent, str):
        return AGENTS.find(TrustedName(agent))
    kind = agent if isinstance(agent, type) else type(agent)
    if kind not in AGENTS.values():
        AGENTS.adopt(kind)
    return kind
