"""The words of the command line: its commands, options and choices, for suggestions and for completion."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import tyro

from ssorl.utils.errors import SsorlError, nearest

COMMON = ("--debug", "--quiet")  # understood by every command, at any place


class Option(NamedTuple):
    """One thing that a command can be told."""

    name: str  # as the field is called
    choices: tuple[str, ...]  # () where any value will do
    flag: bool  # takes no value
    many: bool  # takes several
    positional: bool

    @property
    def word(self) -> str:
        """As it is written."""
        return "--" + self.name.replace("_", "-")


@cache
def commands(kind: type) -> dict[str, type]:
    """The commands that one is made of; none if it does the work itself."""
    hints = typing.get_type_hints(kind, include_extras=True) if is_dataclass(kind) else {}
    found = {}
    for one in typing.get_args(hints.get("command")):
        name = next(m.name for m in one.__metadata__ if getattr(m, "name", None))
        found[name] = typing.get_args(one)[0]
    return found


@cache
def options(kind: type) -> tuple[Option, ...]:
    """All that a command can be told."""
    found: list[Option] = []
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        bare = typing.get_args(hint)[0] if marks else hint
        if is_dataclass(bare):
            found += options(bare)  # type: ignore[arg-type]
        elif typing.get_origin(bare) is not typing.ClassVar:
            positional = any(mark == tyro.conf.Positional for mark in marks)
            found.append(Option(name, _choices(bare), bare is bool, "..." in str(bare), positional))
    return tuple(found)


def descend(kind: type, words: Sequence[str]) -> tuple[type, list[str]]:
    """The command that the first words name, and the words after them."""
    rest = [word for word in words if word not in COMMON]
    while rest and rest[0] in commands(kind):
        kind, rest = commands(kind)[rest[0]], rest[1:]
    return kind, rest


def check(kind: type, words: Sequence[str]) -> None:
    """Refuse a command, an option or a choice that does not exist and looks like one that does; tyro does the rest."""
    at, rest = descend(kind, words)
    there = commands(at)
    if there:
        if not rest:
            raise SsorlError(f"name a command: {', '.join(there)}; --help tells what they do")
        if not rest[0].startswith("-"):
            raise SsorlError(f"there is no command {rest[0]!r}; {nearest(rest[0], there)}")
        return
    known = {option.word: option for option in options(at) if not option.positional}
    told = next((o for o in options(at) if o.positional and o.choices), None)  # the option whose value is to come
    for word in rest:
        if word == "--":
            return
        value = word
        if word.startswith("--"):
            name, _, value = word.partition("=")
            name = name.replace("_", "-")
            told = known.get(name)
            if not told and name != "--help" and known.get(name.replace("--no-", "--", 1)) is None:
                raise SsorlError(f"there is no option {name}; {nearest(name, known, 'see --help')}")
        if told and told.choices and value and value not in told.choices:
            what = told.name if told.positional else told.word
            raise SsorlError(f"{what} is {value!r}; {nearest(value, told.choices)}")
        if value and told and not told.many:
            told = None


def _choices(hint: Any) -> tuple[str, ...]:
    """The values of a Literal, wherever it is in a type."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return next((found for part in typing.get_args(hint) if (found := _choices(part))), ())
