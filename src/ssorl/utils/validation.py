"""Check the values of settings before any long computation starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from ssorl.utils.errors import SsorlError, nearest

Rule = tuple[Callable[[Any], bool], str]  # whether a value is valid, and what the user should give instead


def number(value: Any) -> bool:
    """Return whether a value is a finite number; booleans are not numbers here."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def whole(value: Any, least: int) -> bool:
    """Return whether a value is a whole number of at least `least`; 10.0 is a whole number."""
    return number(value) and value == int(value) and value >= least


ABOVE = "give a number above 0"
WHOLE_FROM_1: Rule = (lambda v: whole(v, 1), "give a whole number from 1 up")
WHOLE_FROM_0: Rule = (lambda v: whole(v, 0), "give a whole number from 0 up")
NUMBER_FROM_0: Rule = (lambda v: number(v) and v >= 0, "give a number from 0 up")
NAMED: dict[str, Rule] = {  # rules by name of the setting; other settings follow the type of their default
    **dict.fromkeys(
        ("batch", "updates", "steps", "layers", "heads", "width", "context", "n_actions", "members"), WHOLE_FROM_1
    ),
    **dict.fromkeys(("policy_every", "unlabelled", "validate_every"), WHOLE_FROM_1),
    **dict.fromkeys(("lr", "actor_lr", "critic_lr", "temperature_lr"), (lambda v: number(v) and v > 0, ABOVE)),
    **dict.fromkeys(("temperature", "decay", "beta"), NUMBER_FROM_0),
    **dict.fromkeys(("alpha", "noise", "noise_clip", "min_q_weight", "lambda_s", "lambda_r"), NUMBER_FROM_0),
    **dict.fromkeys(("expectile", "edge"), (lambda v: number(v) and 0 < v < 1, "give a number above 0 and below 1")),
    **dict.fromkeys(("target", "scale"), (lambda v: v is None or number(v), "give a number, or leave it out")),
    "clip": (lambda v: number(v) and v > 0, ABOVE),
    "dropout": (lambda v: number(v) and 0 <= v < 1, "give a number from 0 up and below 1"),
    "hidden": (
        lambda v: isinstance(v, list | tuple) and all(whole(n, 1) for n in v),
        "give a list of whole numbers from 1 up, one for each layer",
    ),
    "gamma": (lambda v: number(v) and 0 <= v < 1, "give a number from 0 up and below 1"),
    "tau": (lambda v: number(v) and 0 < v <= 1, "give a number above 0 and at most 1"),
    "half": (lambda v: v is None or isinstance(v, bool), "give true or false, or leave it out"),
}


def check_settings(owner: str, settings: Any, config: Any) -> None:
    """Raise on unknown setting names and invalid values.

    Args:
        owner: name of the agent or model, for messages.
        settings: values by name of the setting.
        config: dataclass whose fields are the known settings; for anything else names are not checked.

    Raises:
        SsorlError: a name is unknown, a value is invalid, or `settings` is not a mapping.
    """
    if not isinstance(settings, Mapping):
        raise SsorlError(f"the settings of {owner} are {settings!r}; give names and values, such as {{'lr': 0.001}}")
    if not is_dataclass(config):
        return
    known = {field.name: field.default for field in fields(config)}
    for name, value in settings.items():
        if name not in known:
            raise SsorlError(f"{owner} has no setting {name!r}; {nearest(name, known)}")
        valid, cure = NAMED[name] if name in NAMED else _rule_for(known[name])
        if not valid(value):
            raise SsorlError(f"{name} of {owner} is {value!r}; {cure}")


def plain(value: Any) -> Any:
    """Return a value in canonical form: 10 for 10.0, a tuple for a list, Python numbers for NumPy numbers."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:  # larger integers do not fit into JAX
        return int(value)
    return tuple(plain(v) for v in value) if isinstance(value, list | tuple) else value


def _rule_for(default: Any) -> Rule:
    """Return the rule for a setting with this default: a value of the same type."""
    if isinstance(default, bool):
        return lambda v: isinstance(v, bool), "give true or false"
    if isinstance(default, int):
        return WHOLE_FROM_0
    if isinstance(default, float):
        return number, "give a number"
    if isinstance(default, tuple):
        return lambda v: isinstance(v, list | tuple) and all(map(number, v)), "give a list of numbers"
    if isinstance(default, str):
        return lambda v: isinstance(v, str), "give text"
    return lambda v: True, ""


# Seeds ---------------------------------------------------------------------------------------------------

SEED_END = 2**32  # JAX uses a seed modulo this number, so larger seeds would repeat smaller ones


def is_seed(value: object) -> bool:
    """Return whether a value is a valid seed: a whole number from 0 up and below 2**32."""
    return isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) < SEED_END


def check_seed(value: object, name: str = "the seed") -> None:
    """Raise if a value is not a valid seed.

    Args:
        value: the seed to check.
        name: how the message names it.

    Raises:
        SsorlError: the value is not a whole number from 0 up and below 2**32.
    """
    if not is_seed(value):
        raise SsorlError(f"{name} is {value}; give a whole number from 0 up and below 2**32")
