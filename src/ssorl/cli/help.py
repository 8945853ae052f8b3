"""The help pages, printed by tyro, with lines wrapped to the terminal's width.

tyro prints a command's whole docstring in the list of commands, and does not wrap it on the command's own page. Here
the list has the summary line only, and the page has all paragraphs, wrapped.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tyro

LONGEST_LINE = 100  # characters, for readable paragraphs in wide terminals
CHOICES = re.compile(r"\{[\w,]{40,}\}")  # all commands in the usage, which are listed below it
ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colour codes, which would count as characters


def subcommand(name: str, kind: type) -> Any:
    """Return the mark of a subcommand, for a Union of commands.

    Args:
        name: what the user types.
        kind: the command; the first line of its docstring is the description in the list of commands.
    """
    return tyro.conf.subcommand(name, description=_paragraphs(kind)[0])


@contextmanager
def wrapped_help(kind: type) -> Iterator[None]:
    """Complete and wrap the help of a command that tyro prints in this block, without colours if NO_COLOR is set.

    Args:
        kind: the command.
    """
    real, term = sys.stdout, os.environ.get("TERM")
    sys.stdout = buffer = _Buffer(real)
    if os.environ.get("NO_COLOR") and term:
        os.environ["TERM"] = "dumb"
    try:
        yield
    finally:
        sys.stdout = real
        if term:
            os.environ["TERM"] = term
        if text := buffer.getvalue():
            print(_wrap(text, kind), end="")


class _Buffer(io.StringIO):
    """A string buffer that pretends to be a stream, so that tyro uses the same colours and box characters."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._stream.isatty()


def _wrap(text: str, kind: type) -> str:
    """Insert the further paragraphs of the description, and wrap every line before the first box."""
    width = min(shutil.get_terminal_size().columns, LONGEST_LINE)
    summary, *details = _paragraphs(kind)
    head, boxes = re.fullmatch(r"(.*?)([^\n]*╭.*)?", text, re.DOTALL).groups(default="")  # type: ignore[union-attr]
    lines = []
    for line in head.splitlines():
        lines += _fill(CHOICES.sub("COMMAND", ANSI.sub("", line)), width)
        if line.strip() == summary:
            for paragraph in details:
                lines += ["", *_fill(paragraph, width)]
    return "\n".join([*lines, boxes])


def _fill(line: str, width: int) -> list[str]:
    indent = "       " if line.startswith("usage: ") else ""
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


def _paragraphs(kind: type) -> list[str]:
    """Return the paragraphs of a class's docstring, each on one line."""
    return [" ".join(part.split()) for part in (inspect.getdoc(kind) or "").split("\n\n")]
