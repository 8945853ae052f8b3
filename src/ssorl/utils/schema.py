"""Kinds of JSON values, and a check of objects against a schema: a dict of the kind of each key.

The schemas are `RUN_RESULT` (report/schema.py), `CELL_RESULT` (study/schema.py) and `LABEL_REPORT` (idm/schema.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ssorl.utils.errors import DataError

RERUN = "run the command again to write a new file"
# A kind of value: its description, and a function that returns whether a value is of this kind.
Kind = tuple[str, Callable[[Any], bool]]


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def list_of(of: Kind) -> Kind:
    """Return the kind of lists of a kind."""
    return f"a list, each {of[0]}", lambda value: isinstance(value, list) and all(of[1](x) for x in value)


def or_null(kind: Kind) -> Kind:
    """Return the kind that also has null."""
    return f"{kind[0]} or null", lambda value: value is None or kind[1](value)


def map_of(of: Kind) -> Kind:
    """Return the kind of objects whose values are of a kind."""
    return f"an object, each {of[0]}", lambda value: isinstance(value, dict) and all(of[1](x) for x in value.values())


TEXT: Kind = ("a string", lambda value: isinstance(value, str))
FLAG: Kind = ("true or false", lambda value: isinstance(value, bool))
COUNT: Kind = ("a count", lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0)
TABLE: Kind = ("an object", lambda value: isinstance(value, dict))
NUMBER: Kind = ("a number or null", lambda value: value is None or is_number(value))
NUMBERS = list_of(NUMBER)
PER_SEED = list_of(NUMBERS)


def check_object(value: Any, schema: dict[str, Kind], where: str) -> None:
    """Check that an object has every key of a schema, with a value of its kind; it may have other keys, too.

    Args:
        value: a JSON value.
        schema: the kind of each key.
        where: name of the object, for the message.

    Raises:
        DataError: the first deviation.
    """
    if not isinstance(value, dict):
        raise DataError(f"{where} is {short_repr(value)}, expected an object; {RERUN}")
    for key, (description, matches) in schema.items():
        if key not in value:
            raise DataError(f"{where}: {key} is missing, expected {description}; {RERUN}")
        if not matches(value[key]):
            raise DataError(f"{where}: {key} is {short_repr(value[key])}, expected {description}; {RERUN}")


def short_repr(value: Any) -> str:
    """Return the start of a value's repr."""
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"
