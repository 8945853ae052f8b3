"""Which values a setting may have, told before anything long begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from ssorl.utils.errors import SsorlError, nearest

Rule = tuple[Callable[[Any], bool], str]


def number(value: Any) -> bool:
    """A finite number, and not a truth value, which Python takes for one."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def whole(value: Any, least: int) -> bool:
    """A whole number; 10.0 is one."""
    return number(value) and value == int(value) and value >= least


ABOVE = "give a number above 0"
SOME: Rule = (lambda v: whole(v, 1), "give a whole number from 1 up")
ANY: Rule = (lambda v: whole(v, 0), "give a whole number from 0 up")
FROM_0: Rule = (lambda v: number(v) and v >= 0, "give a number from 0 up")
NAMED: dict[str, Rule] = {  # where more is known than the kind of the default
    **dict.fromkeys(("batch", "updates", "steps", "layers", "heads", "width", "context", "n_actions", "members"), SOME),
    **dict.fromkeys(("policy_every", "unlabelled", "validate_every"), SOME),
    **dict.fromkeys(("lr", "actor_lr", "critic_lr", "temperature_lr"), (lambda v: number(v) and v > 0, ABOVE)),
    **dict.fromkeys(("temperature", "decay", "beta"), FROM_0),
    **dict.fromkeys(("alpha", "noise", "noise_clip", "min_q_weight", "lambda_s", "lambda_r"), FROM_0),
    **dict.fromkeys(("expectile", "edge"), (lambda v: number(v) and 0 < v < 1, "give a number above 0 and below 1")),
    **dict.fromkeys(("target", "scale"), (lambda v: v is None or number(v), "give a number, or leave it out")),
    "clip": (lambda v: number(v) and v > 0, ABOVE),
    "dropout": (lambda v: number(v) and 0 <= v < 1, "give a number from 0 up and below 1"),
    "hidden": (
        lambda v: isinstance(v, list | tuple) and all(whole(n, 1) for n in v),
        "give a list of whole numbers from 1 up, one a layer",
    ),
    "gamma": (lambda v: number(v) and 0 <= v < 1, "give a number from 0 up and below 1"),
    "tau": (lambda v: number(v) and 0 < v <= 1, "give a number above 0 and at most 1"),
    "half": (lambda v: v is None or isinstance(v, bool), "give true or false, or leave it out"),
}


def check_settings(whose: str, settings: Any, config: Any) -> None:
    """Refuse a setting that there is none of, or a value that is none. What has no fields says so itself."""
    if not isinstance(settings, Mapping):
        raise SsorlError(f"the settings of {whose} are {settings!r}; give a table of names and values")
    if not is_dataclass(config):
        return
    known = {field.name: field.default for field in fields(config)}
    for name, value in settings.items():
        if name not in known:
            raise SsorlError(f"{whose} has no setting {name!r}; {nearest(name, known)}")
        fits, cure = NAMED[name] if name in NAMED else like(known[name])
        if not fits(value):
            raise SsorlError(f"{name} of {whose} is {value!r}; {cure}")


def plain(value: Any) -> Any:
    """One spelling of equal values: 10 for 10.0, a tuple for a list, Python's numbers for NumPy's."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:  # beyond, an integer is no number of JAX
        return int(value)
    return tuple(plain(v) for v in value) if isinstance(value, list | tuple) else value


def like(default: Any) -> Rule:
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


# Seeds ---------------------------------------------------------------------------------------------------

END = 2**32  # JAX takes a seed modulo this: larger ones would repeat the smaller


def is_seed(value: object) -> bool:
    """Whether draws of its own belong to it."""
    return isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) < END


def check_seed(value: object, name: str = "the seed") -> None:
    """Refuse what is none."""
    if not is_seed(value):
        raise SsorlError(f"{name} is {value}; give a whole number from 0 up and below 2**32")
