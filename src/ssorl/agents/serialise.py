"""An agent as plain values in a file, and back. What a file says is never executed: agents come from `AGENTS`."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from ssorl.agents import AGENTS
from ssorl.agents.base import Agent
from ssorl.utils.errors import DataError
from ssorl.utils.identity import identifying_fields

TIMES = 1000  # how many times its default a setting may be, so that a file cannot ask for a million layers
LONGEST = 100  # numbers in one setting, such as widths of layers


def describe(agent: Agent) -> dict:
    """An agent as plain values."""
    names = {kind: name for name, kind in AGENTS.items()}
    kind: Any = type(agent)
    return {"agent": names.get(kind, kind.__qualname__), "settings": identifying_fields(agent)}


def rebuild(about: dict) -> Agent:
    """The agent that `describe` described, each setting of the type that its default has."""
    name, found = about["agent"], about["settings"]
    if not isinstance(name, str) or name not in AGENTS:
        raise DataError(f"the file is of an agent called {str(name)[:40]!r}; this version has {', '.join(AGENTS)}")
    defaults = {f.name: f.default for f in fields(AGENTS[name])}  # type: ignore[arg-type]
    if odd := sorted(set(found) - set(defaults)):
        raise DataError(f"the file has settings that {name} does not have here: {', '.join(odd)[:200]}")
    return AGENTS[name](**{key: _like(key, value, defaults[key]) for key, value in found.items()})


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
