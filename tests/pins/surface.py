"""The public names and signatures, and the fields that are serialised, as plain values."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def describe() -> dict[str, Any]:
    """Every public name by its full path."""
    import ssorl
    from ssorl import agents, data
    from ssorl.idm import IDMS
    from ssorl.idm.model import IdmConfig
    from ssorl.pipeline.plan import make_plan

    found: dict[str, Any] = {}
    for module in (ssorl, data):
        found |= {f"{module.__name__}.{name}": _one(getattr(module, name)) for name in sorted(module.__all__)}
    found["choices of ssorl.run"] = _one(make_plan)
    found["ssorl.agents.AGENTS"] = sorted(agents.AGENTS)
    found["ssorl.agents.make"] = _one(agents.make)
    found |= _members("ssorl.data.Episodes", data.Episodes) | _members("ssorl.data.Split", data.Split)
    found |= {f"agent {name}": _fields(kind) for name, kind in agents.AGENTS.items()}
    found |= {f"presets of {name}": _plain(kind.PRESETS) for name, kind in agents.AGENTS.items()}
    found["IdmConfig"] = _fields(IdmConfig)
    found |= {f"IDM {name}": {f.name: _plain(getattr(c, f.name)) for f in fields(c)} for name, c in IDMS.items()}
    return found


def _members(path: str, kind: type) -> dict[str, Any]:
    """The public methods and properties of a class."""
    there = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    found = {}
    for name, member in there.items():
        member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        found[f"{path}.{name}"] = _one(member) if inspect.isfunction(member) else "attribute"
    # Fields without a default are no attributes of the class.
    return found | {f"{path}.{f.name}": "attribute" for f in (fields(kind) if is_dataclass(kind) else ())}


def _one(value: Any) -> Any:
    """A function or class by its parameters, another value by its type."""
    if not callable(value):
        return type(value).__name__
    told = []
    for name, p in inspect.signature(value).parameters.items():
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        only = {p.POSITIONAL_ONLY: " (positional only)", p.KEYWORD_ONLY: " (keyword only)"}.get(p.kind, "")
        told.append(f"{star}{name}{'' if p.default is p.empty else f' = {_default(p.default)}'}{only}")
    return told


def _default(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | bool | tuple | None) else "made anew"


def _fields(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass with their defaults: a hash depends on what differs from these."""
    return {f.name: _plain(f.default) for f in fields(kind)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    value = value.item() if isinstance(value, np.generic) else value
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
