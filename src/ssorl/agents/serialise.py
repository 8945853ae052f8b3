"""Agents as plain values in files, and back.

What a file says is never executed: its agent is built in, registered in this process, installed, or named by the user.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from ssorl.agents import AGENTS
from ssorl.agents.base import Agent
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.identity import identifying_fields
from ssorl.utils.registry import shown

TIMES = 1000  # how many times its default a setting may be, so that a file cannot ask for a million layers
LONGEST = 100  # numbers in one setting, such as widths of layers


def describe(agent: Agent) -> dict:
    """Return an agent as plain values; one that is neither registered nor installed is `module:Class`."""
    kind: Any = type(agent)
    return {"agent": AGENTS.name_of(kind), "settings": identifying_fields(agent)}


def rebuild(about: dict, source: object = "the file", named: type[Agent] | None = None) -> Agent:
    """Return the agent that `describe` described, each setting of the type that its default has.

    Args:
        about: what `describe` returned, read from a file.
        source: the file, for messages.
        named: the class that the user named for this file; needed where the file's agent is neither built in nor
            registered nor installed.

    Raises:
        UntrustedNameError: the agent is of a module that the user has not named.
        DataError: there is no such agent, or it does not have these settings.
    """
    name, found = about["agent"], about["settings"]
    if not isinstance(name, str):
        raise DataError(f"{source}: names no agent; write the file again")
    kind = AGENTS.find(name, source) if named is None or AGENTS.known(name) else named
    if named is not None and kind is not named:
        raise SsorlError(
            f"{source}: is of the agent {shown(name)}, not of {AGENTS.name_of(named)}; leave out {AGENTS.flag} or name "
            "another"
        )
    defaults = {f.name: f.default for f in fields(kind)}  # type: ignore[arg-type]
    if odd := sorted(set(found) - set(defaults)):
        raise DataError(f"{source}: has settings that the agent {name} does not have here: {', '.join(odd)[:200]}")
    return kind(**{key: _like(key, value, defaults[key]) for key, value in found.items()})


def _like(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple) and isinstance(value, list) and len(value) <= LONGEST:
        return tuple(_like(name, v, default[0] if default else 0) for v in value)
    if type(value) is int and type(default) is int and abs(value) <= TIMES * max(1, abs(default)):
        return value
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if number and type(default) is float:
        return float(value)  # type: ignore[arg-type]
    if (number and default is None) or (
        type(value) in (bool, str, type(None)) and type(default) in (type(value), type(None))
    ):
        return value
    raise ValueError(f"the setting {name} is {str(value)[:80]}")
