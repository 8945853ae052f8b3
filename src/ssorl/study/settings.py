"""Which values the settings of a study may have: a wrong one is told when the study is read, not after hours."""

from __future__ import annotations

from functools import cache
from typing import Any

from ssorl.envs.trust import imports_code
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.validation import WHOLE_FROM_0, WHOLE_FROM_1, Rule, is_seed, number, whole

PINNED = "0.1"  # the version whose default settings are kept in reference.py
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
        "give the id of an environment without a module, which no study may import: write the study as a .py file that "
        "imports the module itself",
    ),
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


@cache
def _simulated(name: str) -> None:
    from ssorl.data.sim.datasets import names

    known = [f"sim/{one}" for one in names()]
    if name.partition(":")[0] not in known:
        raise SsorlError(f"{name}: is no simulated dataset; {nearest(name, known)}")
