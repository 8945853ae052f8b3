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
    """Return the class if it has all that an agent needs.

    Raises:
        SsorlError: it is not a frozen dataclass with defaults, or it lacks a method or an attribute.
    """
    if not isinstance(kind, type):
        raise SsorlError(f"the agent {name} is {kind!r}; an agent is a class, a frozen dataclass of its settings")
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise SsorlError(f"the agent {name}: {kind.__name__} is not a frozen dataclass; see docs/your-own-agent.md")
    if bare := [f.name for f in fields(kind) if f.default is MISSING]:
        raise SsorlError(f"the agent {name}: the setting {bare[0]} has no default; give it one")
    settings = {f.name for f in fields(kind)}
    lacking = [one for one in METHODS if not callable(getattr(kind, one, None))]
    lacking += [one for one in ATTRIBUTES if not hasattr(kind, one) and one not in settings]
    if lacking:
        raise SsorlError(f"the agent {name}: {kind.__name__} has no {lacking[0]}; see docs/your-own-agent.md")
    return cast(type[Agent], kind)


AGENTS: Registry[type[Agent]] = Registry("agent", "ssorl.agents", "--agent", BUILT_IN, check_agent)


def register_agent(name: str, kind: type[Agent]) -> None:
    """Make an agent known under a name in this process, as `AGENTS` knows the built-in ones.

    Other processes do not know it. A package that declares the class as an entry point of the group `ssorl.agents`
    makes it known wherever the package is installed.

    Args:
        name: what `--agent`, files and results call it; not the name of a built-in agent.
        kind: the class, a frozen dataclass with the methods of `ssorl.agents.base.Agent`.

    Raises:
        SsorlError: the name is taken, or the class lacks something.
    """
    AGENTS.register(name, kind)


def make(name: str, preset: str = "paper", **settings: Any) -> Agent:
    """Return the agent of that name with a preset and changes to it.

    Args:
        name: a built-in, registered or installed agent; where it is a `TrustedName` also `module:Class`.
        preset: `paper` has the published settings; `quick` is lighter, for a CPU.
        **settings: fields of the agent.

    Raises:
        SsorlError: there is no such agent, preset or setting.
    """
    kind = AGENTS.find(name)
    if preset not in kind.PRESETS:
        raise SsorlError(f"{name} has no preset {preset!r}; {nearest(preset, kind.PRESETS)}")
    check_settings(name, settings, kind)
    return kind(**{**kind.PRESETS[preset], **{key: plain(value) for key, value in settings.items()}})


def resolve(agent: str | Agent | type[Agent], preset: str = "paper", settings: dict[str, Any] | None = None) -> Agent:
    """Return the agent that the user chose by name, class or instance; classes and instances become known by it.

    Args:
        agent: a name, `module:Class`, a class, or an instance, which brings its own settings.
        preset: as for `make`; without effect on an instance.
        settings: fields of the agent.

    Raises:
        SsorlError: there is no such agent, preset or setting, or an instance comes with settings.
    """
    kind = agent_class(agent)
    if isinstance(agent, str | type):
        return make(agent if isinstance(agent, str) else AGENTS.name_of(kind), preset, **(settings or {}))
    if settings:
        raise SsorlError(f"{next(iter(settings))} is a setting of the agent, which was given ready-made; set it there")
    return agent


def agent_class(agent: str | Agent | type[Agent]) -> type[Agent]:
    """Return the class of the agent that the user named or passed, which is known in this process from then on.

    Args:
        agent: a name, `module:Class`, a class, or an instance.

    Raises:
        SsorlError: there is no such agent, or the class lacks something.
    """
    if isinstance(agent, str):
        return AGENTS.find(TrustedName(agent))
    kind = agent if isinstance(agent, type) else type(agent)
    if kind not in AGENTS.values():
        AGENTS.adopt(kind)
    return kind
