"""Convert agents to JSON values and back.

Nothing in a file is executed: its agent is built in, registered in this process, installed, or named by the user.
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

MAX_FACTOR = 1000  # largest ratio of a setting to its default, so that a file cannot ask for a million layers
MAX_LENGTH = 100  # largest number of values in one setting, such as widths of layers


def describe(agent: Agent) -> dict:
    """Return an agent's name and settings for a file.

    The name is `module:Class` if the agent is neither registered nor installed.
    """
    kind: Any = type(agent)
    return {"agent": AGENTS.name_of(kind), "settings": identifying_fields(agent)}


def rebuild(about: dict, source: object = "the file", named: type[Agent] | None = None) -> Agent:
    """Rebuild an agent from the output of `describe`; each setting must have the type of its default.

    Args:
        about: what `describe` returned, read from a file.
        source: the file, for messages.
        named: the class that the user named for this file; needed if the file's agent is not built in, registered or
            installed.

    Raises:
        UntrustedNameError: the agent is in a module that the user has not named.
        DataError: the agent is unknown, or it does not have these settings.
        ValueError: a setting has another type than its default, or is too large.
    """
    name, settings = about["agent"], about["settings"]
    if not isinstance(name, str):
        raise DataError(f"{source}: does not name an agent; write the file again")
    kind = AGENTS.find(name, source) if named is None or AGENTS.known(name) else named
    if named is not None and kind is not named:
        raise SsorlError(
            f"{source}: has the agent {shown(name)}, not {AGENTS.name_of(named)}; "
            f"leave out {AGENTS.flag} or name another"
        )
    defaults = {f.name: f.default for f in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(settings) - set(defaults)):
        raise DataError(f"{source}: has settings that the agent {name} does not have here: {', '.join(unknown)[:200]}")
    return kind(**{key: _convert(key, value, defaults[key]) for key, value in settings.items()})


def _convert(name: str, value: Any, default: Any) -> Any:
    """Return a setting with the type of its default, or raise ValueError."""
    if isinstance(default, tuple) and isinstance(value, list) and len(value) <= MAX_LENGTH:
        return tuple(_convert(name, v, default[0] if default else 0) for v in value)
    if type(value) is int and type(default) is int and abs(value) <= MAX_FACTOR * max(1, abs(default)):
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and type(default) is float:
        return float(value)  # type: ignore[arg-type]
    if (is_number and default is None) or (
        type(value) in (bool, str, type(None)) and type(default) in (type(value), type(None))
    ):
        return value
    raise ValueError(f"the setting {name} is {str(value)[:80]}, which does not fit its default {str(default)[:80]}")
