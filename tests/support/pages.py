"""The code blocks of README.md and docs/: their marks and checks.

| block | what the tests do |
|---|---|
| `python` | run in order; all blocks of a page share a namespace and a folder |
| `sh` | run; every line must be an `ssorl` command |
| `toml`, `yaml`, `json` | parse |
| `text` | nothing; it is output or a diagram |

A comment on the line above a block changes this. `<!-- not run: REASON -->`: the block is only parsed, and its options
and names are looked up. `<!-- file: NAME -->`: the block is saved under this name for the next blocks. Other blocks
raise WrongBlockError.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml
from markdown_it import MarkdownIt

from support.paths import ROOT

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
KINDS = ("python", "sh", "toml", "yaml", "json", "text")


class Block(NamedTuple):
    """A block of code on a page."""

    page: str
    line: int  # of its first line, from 1
    kind: str  # the word after the fence; "" without a word or a fence
    reason: str | None  # why it is not run; None if it is run
    file: str | None  # the name it is saved under
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


class WrongBlockError(Exception):
    """Raised for a block that is not what its mark says."""


def blocks(page: str, text: str | None = None) -> list[Block]:
    """Return all blocks of a page, fenced or indented."""
    text = (ROOT / page).read_text() if text is None else text
    lines, out = text.splitlines(), []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type not in ("fence", "code_block") or token.map is None:
            continue
        first = token.map[0]
        above = lines[first - 1].strip() if first else ""
        mark = re.fullmatch(r"<!-- (not run|file): (.+) -->", above)
        marks = {mark[1]: mark[2]} if mark else {}
        start = first + 2 if token.type == "fence" else first + 1
        kind = token.info.strip() if token.type == "fence" else ""
        out.append(Block(page, start, kind, marks.get("not run"), marks.get("file"), token.content))
    return out


def commands(block: Block) -> list[list[str]]:
    """Return the words of each command of a shell block; pipes and separators end a command."""
    commands: list[list[str]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        line = re.sub(r'"\$\((.*?)\)"', r"; \1 ;", line)  # command substitution: a command of its own
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        commands.append([])
        for word in words:
            if set(word) <= set("();<>|&"):
                commands.append([])
            else:
                commands[-1].append(word)
    return [words for words in commands if words]


def check(block: Block) -> None:
    """Raise WrongBlockError if a block is wrong, without running it."""
    if block.kind not in KINDS:
        raise WrongBlockError(f"{block.where}: a block is one of {', '.join(KINDS)}, and this is {block.kind!r}")
    if block.kind == "text" and (block.reason or block.file):
        raise WrongBlockError(f"{block.where}: output is neither run nor a file")
    try:
        if block.kind == "python":
            compile(block.text, block.where, "exec")
        elif block.kind == "json":
            json.loads(block.text)
        elif block.kind == "toml":
            tomllib.loads(block.text)
        elif block.kind == "yaml":
            yaml.safe_load(block.text)
        elif block.kind == "sh":
            _check_shell(block)
    except (SyntaxError, ValueError, yaml.YAMLError) as err:
        raise WrongBlockError(f"{block.where}: {err}") from err


def _check_shell(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    if done.returncode:
        raise WrongBlockError(f"{block.where}: {done.stderr}")
    for words in commands(block):
        if words[0] == "ssorl":
            parsed(words[1:], block.where)
        elif not block.reason:
            raise WrongBlockError(f"{block.where}: {words[0]} is not run by the tests; say why in <!-- not run: … -->")
        else:
            _check_other(words, block.where)


def _check_other(words: list[str], where: str) -> None:
    """Check the targets, extras and files that commands other than ssorl name."""
    if words[0] == "make":
        known = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
        missing = set(words[1:]) - set(known)
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        missing = {e for w in words for e in "".join(re.findall(r"ssorl\[(.+)\]", w)).split(",") if e} - set(extras)
    elif words[0] == "python":
        missing = {w for w in words[1:] if w.endswith(".py") and not (ROOT / w).exists()}
    else:
        missing = set()
        if "ssorl" in words:  # started by another command, such as srun
            parsed(words[words.index("ssorl") + 1 :], where)
    if missing:
        raise WrongBlockError(f"{where}: there is no {', '.join(sorted(missing))}")


def parsed(args: list[str], where: str) -> object:
    """Parse `ssorl ARGS` with the real parser, look up its names, and return the command without running it."""
    import tyro
    from pytest import MonkeyPatch

    from ssorl.cli import main

    parsed_commands: list[Any] = []
    real = tyro.cli

    def parse_only(*given: Any, **options: Any) -> Any:
        parsed_commands.append(real(*given, **options))
        return SimpleNamespace(command=SimpleNamespace(run=lambda: None))  # so that nothing runs

    with MonkeyPatch.context() as patch:
        patch.setattr(tyro, "cli", parse_only)
        try:
            main(args)
        except SystemExit as err:
            raise WrongBlockError(f"{where}: `ssorl {shlex.join(args)}` is no command") from err
    if len(parsed_commands) != 1:
        raise WrongBlockError(f"{where}: `ssorl {shlex.join(args)}` runs nothing")
    command = parsed_commands[0]
    while hasattr(command, "command"):
        command = command.command
    _check_names(command, where)
    return command


def _check_names(command: object, where: str) -> None:
    """Raise if there is no agent, dataset or study of a name; files are the reader's own."""
    names = {"agent": _option(command, "agent"), "study": _option(command, "name")}
    names["dataset"] = _option(command, "dataset")
    known = _known()
    for kind, name in names.items():
        ours = name and not Path(name).suffix and (kind != "dataset" or name.startswith(("sim/", "builtin/", "d4rl/")))
        if ours and name not in known[kind]:
            raise WrongBlockError(f"{where}: there is no {kind} {name}")


def _option(options: Any, name: str) -> str | None:
    """Return the text of an option of a command, which may be in a group of options."""
    if not is_dataclass(options):
        return None
    if isinstance(value := getattr(options, name, None), str):
        return value
    groups = [_option(getattr(options, group.name), name) for group in fields(options)]
    return next(filter(None, groups), None)


@cache
def _known() -> dict[str, set[str]]:
    from ssorl.agents import AGENTS
    from ssorl.data.catalogue import catalogue
    from ssorl.study.paper import STUDIES

    return {"agent": set(AGENTS), "study": set(STUDIES), "dataset": {row["name"] for row in catalogue()}}


def run(block: Block, names: dict, change: Callable[[str], str] = lambda text: text) -> None:
    """Run a block in the current folder.

    Args:
        block: the block.
        names: namespace of the page.
        change: replaces parts of the text that take long.
    """
    check(block)
    if block.file:
        Path(block.file).write_text(block.text)
    if block.reason or block.kind not in ("python", "sh"):
        return
    block = block._replace(text=change(block.text))
    if block.kind == "python":
        # Blank lines give a traceback the line numbers of the page.
        exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / block.page), "exec"), names)
        return
    from ssorl.cli import main

    for words in commands(block):
        try:
            main(words[1:])
        except SystemExit as err:
            if err.code:
                raise WrongBlockError(f"{block.where}: {shlex.join(words)} ends with {err.code}") from err
