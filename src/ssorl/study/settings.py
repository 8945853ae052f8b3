"""Valid values of a study's settings. They are checked when the study is read, before anything is computed."""

from __future__ import annotations

from functools import cache
from typing import Any

from ssorl.envs.trust import imports_code
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.validation import WHOLE_FROM_0, WHOLE_FROM_1, Rule, is_seed, number, whole

PINNED = "0.1"  # the version whose default settings reference.py holds
THIRDS = ("low", "med", "high")
CHOICES: dict[str, tuple[Any, ...]] = {
    "kind": ("return", "idm", "data"),
    "setup": ("coupled", "decoupled", None),
    "variant": ("baseline", "ss", "oracle"),
    "policy": ("last", "average", None),
    "defaults": (PINNED, None),
    "labelled": (*THIRDS, None),
    "unlabelled": (*THIRDS, None),
}
SHARE: Rule = (lambda v: number(v) and 0 < v <= 1, "give a share above 0 and at most 1")
SIZE: Rule = (
    lambda v: whole(v, 1) or v == "full" or (isinstance(v, str) and v.isdecimal() and int(v) > 0),
    "give a number of steps, or `full`",
)
RULES: dict[str, Rule] = {
    **dict.fromkeys(("fraction", "labelled_fraction", "unlabelled_fraction", "certain"), SHARE),
    **dict.fromkeys(("seeds", "episodes", "looks", "members"), WHOLE_FROM_1),
    **dict.fromkeys(("rounds", "past", "future"), WHOLE_FROM_0),
    "seed": (is_seed, "give a whole number from 0 up and below 2**32"),
    "quality": (lambda v: number(v) and 0 < v <= 100, "give a percentage above 0 and at most 100"),
    "size": SIZE,
    "env": (
        lambda v: isinstance(v, str) and not imports_code(v),
        "give the id of an environment without a module, or write the study as a .py file that imports the module",
    ),
}
REQUIRED = ("seed", "rounds")  # the other settings may be None: the scale or a default sets them


def check_setting(name: str, value: Any) -> None:
    """Raise if a setting cannot have a value.

    Args:
        name: name of the setting.
        value: the value to check.

    Raises:
        SsorlError: the value is invalid; the message names the valid values.
    """
    if name in CHOICES and value not in CHOICES[name]:
        raise SsorlError(f"{name} is {value!r}; {nearest(value, CHOICES[name])}")
    if name in RULES and (value is not None or name in REQUIRED):
        is_valid, cure = RULES[name]
        if not is_valid(value):
            raise SsorlError(f"{name} is {value!r}; {cure}")
    if name == "dataset" and isinstance(value, str) and value.startswith("sim/"):
        _check_simulated(value)


@cache
def _check_simulated(name: str) -> None:
    from ssorl.data.sim.datasets import names

    known = [f"sim/{dataset}" for dataset in names()]
    if name.partition(":")[0] not in known:
        raise SsorlError(f"{name}: is not a simulated dataset; {nearest(name, known)}")
