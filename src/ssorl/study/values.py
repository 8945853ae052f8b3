"""Which values the settings of a study may have: a wrong one is told when the study is read, not after hours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from ssorl.errors import SsorlError, nearest

THIRDS = ("low", "med", "high")
CHOICES: dict[str, tuple[Any, ...]] = {
    "kind": ("return", "idm", "data"),
    "setup": ("coupled", "decoupled", None),
    "variant": ("baseline", "ss", "oracle"),
    "policy": ("last", "average", None),
    "labelled": (*THIRDS, None),
    "unlabelled": (*THIRDS, None),
}


def number(value: Any) -> bool:
    """A number, and not a truth value, which Python takes for one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(value: Any, least: int) -> bool:
    """A whole number; 10.0 is one."""
    return number(value) and value == int(value) and value >= least


Rule = tuple[Callable[[Any], bool], str]
SHARE: Rule = (lambda v: number(v) and 0 < v <= 1, "give a share above 0 and at most 1")
SOME: Rule = (lambda v: whole(v, 1), "give a whole number from 1 up")
ANY: Rule = (lambda v: whole(v, 0), "give a whole number from 0 up")
SIZE: Rule = (
    lambda v: whole(v, 1) or v == "full" or (isinstance(v, str) and v.isdecimal() and int(v) > 0),
    "give a number of steps, or `full`",
)
RULES: dict[str, Rule] = {
    **dict.fromkeys(("fraction", "labelled_fraction", "unlabelled_fraction", "certain"), SHARE),
    **dict.fromkeys(("seeds", "episodes", "looks", "members"), SOME),
    **dict.fromkeys(("seed", "rounds", "past", "future"), ANY),
    "quality": (lambda v: number(v) and 0 < v <= 100, "give a percentage above 0 and at most 100"),
    "size": SIZE,
}
NEEDED = ("seed", "rounds")  # the others may be left to the scale or to the defaults


def check(name: str, value: Any) -> None:
    """Refuse a value that the setting cannot have."""
    if name in CHOICES and value not in CHOICES[name]:
        raise SsorlError(f"{name} is {value!r}; {nearest(value, CHOICES[name])}")
    if name in RULES and not (value is None and name not in NEEDED):
        fits, cure = RULES[name]
        if not fits(value):
            raise SsorlError(f"{name} is {value!r}; {cure}")
    if name == "dataset" and isinstance(value, str) and value.startswith("sim/"):
        _simulated(value)


def check_settings(whose: str, settings: Any, config: Any) -> None:
    """Refuse a setting that there is none of, or of another kind. What has no configuration is refused elsewhere."""
    if not isinstance(settings, Mapping):
        raise SsorlError(f"the settings of {whose} are {settings!r}; give a table of names and values")
    if config is None:
        return
    known = {field.name: field.default for field in fields(config)}
    for name, value in settings.items():
        if name not in known:
            raise SsorlError(f"{whose} has no setting {name!r}; {nearest(name, known)}")
        fits, cure = _like(known[name])
        if not fits(value):
            raise SsorlError(f"{name} of {whose} is {value!r}; {cure}")


def _like(default: Any) -> Rule:
    """What may stand in place of a default."""
    if isinstance(default, bool):
        return lambda v: isinstance(v, bool), "give true or false"
    if isinstance(default, int):
        return ANY
    if isinstance(default, float):
        return number, "give a number"
    if isinstance(default, tuple):
        return lambda v: isinstance(v, list | tuple) and all(map(number, v)), "give a list of numbers"
    if isinstance(default, str):
        return lambda v: isinstance(v, str), "give text"
    return lambda v: True, ""


@cache
def _simulated(name: str) -> None:
    from ssorl.behaviour.datasets import names

    known = [f"sim/{one}" for one in names()]
    if name.partition(":")[0] not in known:
        raise SsorlError(f"{name}: is no simulated dataset; {nearest(name, known)}")
