"""The code blocks of README.md and docs/: what each is marked as, and what can be asked of it.

| block | what the tests do |
|---|---|
| `python` | runs, in order, all of a page in one namespace and one folder |
| `sh` | every line is a command of ours and runs |
| `toml`, `yaml`, `json` | is parsed |
| `text` | nothing: output, or a picture of files |

A comment on the line above a block says otherwise. `<!-- not run: REASON -->`: it is only parsed, and every option and
name in it is looked up. `<!-- file: NAME -->`: it is that file for the blocks that follow. Other blocks are refused.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
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
    """A block of code as it stands on a page."""

    page: str
    line: int  # of its first line, from 1
    kind: str  # the word after the fence; "" if there is none or it is no fence
    reason: str | None  # why it is not run; None: it is
    file: str | None  # the name it is saved under
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


class WrongBlockError(Exception):
    """A block that cannot be what it says."""


def blocks(page: str, text: str | None = None) -> list[Block]:
    """All blocks of a page, however they are written."""
    text = (ROOT / page).read_text() if text is None else text
    lines, found = text.splitlines(), []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type not in ("fence", "code_block") or token.map is None:
            continue
        first = token.map[0]
        above = lines[first - 1].strip() if first else ""
        mark = re.fullmatch(r"<!-- (not run|file): (.+) -->", above)
        said = {mark[1]: mark[2]} if mark else {}
        start = first + 2 if token.type == "fence" else first + 1
        kind = token.info.strip() if token.type == "fence" else ""
        found.append(Block(page, start, kind, said.get("not run"), said.get("file"), token.content))
    return found


def commands(block: Block) -> list[list[str]]:
    """A shell block's commands as words: what is continued is one line, and pipes and the like come between two."""
    found: list[list[str]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        line = re.sub(r'"\$\((.*?)\)"', r"; \1 ;", line)  # a command whose output is a word of another
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        found.append([])
        for word in words:
            if set(word) <= set("();<>|&"):
                found.append([])
            else:
                found[-1].append(word)
    return [words for words in found if words]


def check(block: Block) -> None:
    """Everything that can be known of a block without running it."""
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
    """Commands that are not ours: what they name of ours has to be there."""
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
        if "ssorl" in words:  # behind another command, as in a job's script
            parsed(words[words.index("ssorl") + 1 :], where)
    if missing:
        raise WrongBlockError(f"{where}: there is no {', '.join(sorted(missing))}")


def parsed(args: list[str], where: str) -> object:
    """The command that `ssorl ARGS` would run, by the real parser, with the names in it looked up."""
    import tyro
    from pytest import MonkeyPatch

    from ssorl.cli import main

    met: list[Any] = []
    real = tyro.cli

    def parse_only(*given: Any, **options: Any) -> Any:
        met.append(real(*given, **options))
        return SimpleNamespace(command=SimpleNamespace(run=lambda: None))  # nothing that could be run gets out of here

    with MonkeyPatch.context() as patch:
        patch.setattr(tyro, "cli", parse_only)
        try:
            main(args)
        except SystemExit as err:
            raise WrongBlockError(f"{where}: `ssorl {shlex.join(args)}` is no command") from err
    if len(met) != 1:
        raise WrongBlockError(f"{where}: `ssorl {shlex.join(args)}` runs nothing")
    command = met[0]
    while hasattr(command, "command"):
        command = command.command
    _check_names(command, where)
    return command


def _check_names(command: object, where: str) -> None:
    """An agent, a dataset or a study of that name; files are the reader's own."""
    part, given = getattr(command, "part", command), getattr(command, "input", None)
    names = {"agent": getattr(command, "agent", None), "study": getattr(part, "name", None)}
    names["dataset"] = getattr(given, "dataset", None)
    known = _known()
    for what, name in names.items():
        ours = name and not Path(name).suffix and (what != "dataset" or name.startswith(("sim/", "builtin/", "d4rl/")))
        if ours and name not in known[what]:
            raise WrongBlockError(f"{where}: there is no {what} {name}")


@cache
def _known() -> dict[str, set[str]]:
    from ssorl.agents import AGENTS
    from ssorl.data.catalogue import catalogue
    from ssorl.study.paper import STUDIES

    return {"agent": set(AGENTS), "study": set(STUDIES), "dataset": {row["name"] for row in catalogue()}}


def run(block: Block, names: dict, change: Callable[[str], str] = lambda text: text) -> None:
    """Run a block in the folder that we are in; `change` puts a small thing in the place of a large one."""
    check(block)
    if block.file:
        Path(block.file).write_text(block.text)
    if block.reason or block.kind not in ("python", "sh"):
        return
    block = block._replace(text=change(block.text))
    if block.kind == "python":
        # Blank lines before it, so that a traceback has the page's own line.
        exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / block.page), "exec"), names)
        return
    from ssorl.cli import main

    for words in commands(block):
        try:
            main(words[1:])
        except SystemExit as err:
            if err.code:
                raise WrongBlockError(f"{block.where}: {shlex.join(words)} ends with {err.code}") from err
