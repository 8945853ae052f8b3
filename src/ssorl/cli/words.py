"""The commands, options and choices of the command line, for suggestions and for completion."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import tyro

from ssorl.cli.options import option_name
from ssorl.utils.errors import SsorlError, nearest

COMMON = ("--debug", "--quiet")  # every command accepts them, at any place


class Option(NamedTuple):
    """An option or positional argument of a command."""

    field: str  # name of the dataclass field
    name: str  # as the user writes it: "--min-length", or "shell" for a positional argument
    choices: tuple[str, ...]  # () if any value is possible
    is_flag: bool  # takes no value
    takes_many: bool  # takes several values
    positional: bool


@cache
def commands(kind: type) -> dict[str, type]:
    """Return the subcommands of a command by name; empty for a command that has none."""
    hints = typing.get_type_hints(kind, include_extras=True) if is_dataclass(kind) else {}
    kinds = {}
    for hint in typing.get_args(hints.get("command")):
        name = next(mark.name for mark in hint.__metadata__ if getattr(mark, "name", None))
        kinds[name] = typing.get_args(hint)[0]
    return kinds


@cache
def options(kind: type) -> tuple[Option, ...]:
    """Return the options of a command, those of its groups included."""
    result: list[Option] = []
    for field, hint in typing.get_type_hints(kind, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        bare = typing.get_args(hint)[0] if marks else hint
        if is_dataclass(bare):
            result += options(bare)  # type: ignore[arg-type]
        elif typing.get_origin(bare) is not typing.ClassVar:
            positional = any(mark == tyro.conf.Positional for mark in marks)
            own = next((mark.name for mark in marks if getattr(mark, "name", None)), None) or field
            name = own if positional else option_name(own)
            result.append(Option(field, name, _choices(bare), bare is bool, "..." in str(bare), positional))
    return tuple(result)


def descend(kind: type, words: Sequence[str]) -> tuple[type, list[str]]:
    """Return the command that the first words name, and the words after them."""
    rest = [word for word in words if word not in COMMON]
    while rest and rest[0] in commands(kind):
        kind, rest = commands(kind)[rest[0]], rest[1:]
    return kind, rest


def check(kind: type, words: Sequence[str]) -> None:
    """Raise SsorlError, with a suggestion, on unknown commands, options and choices; tyro checks everything else.

    Args:
        kind: the outermost command.
        words: the command line.
    """
    command, rest = descend(kind, words)
    subcommands = commands(command)
    if subcommands:
        if not rest:
            raise SsorlError(f"name a command: {', '.join(subcommands)}; --help describes them")
        if not rest[0].startswith("-"):
            raise SsorlError(f"there is no command {rest[0]!r}; {nearest(rest[0], subcommands)}")
        return
    known = {option.name: option for option in options(command) if not option.positional}
    expected = next((o for o in options(command) if o.positional and o.choices), None)  # the next word is its value
    for word in rest:
        if word == "--":
            return
        value = word
        if word.startswith("--"):
            name, _, value = word.partition("=")
            name = name.replace("_", "-")
            expected = known.get(name)
            if not expected and name != "--help" and known.get(name.replace("--no-", "--", 1)) is None:
                raise SsorlError(f"there is no option {name}; {nearest(name, known, 'see --help')}")
        if expected and expected.choices and value and value not in expected.choices:
            raise SsorlError(f"{expected.name} is {value!r}; {nearest(value, expected.choices)}")
        if value and expected and not expected.takes_many:
            expected = None


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the values of the first Literal in a type."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return next((choices for part in typing.get_args(hint) if (choices := _choices(part))), ())
