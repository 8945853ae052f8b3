"""ssorl completion: what the Tab key does in a shell."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ssorl.cli.options import arg
from ssorl.cli.words import COMMON, commands, descend, options

ASK = "__complete"  # `ssorl __complete WORD … BEGUN` prints what the last word can become, a line each
# Each asks the command that is being typed. Where it has no answer, file names are completed.
SCRIPTS = {
    "bash": """\
_ssorl() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _ssorl ssorl""",
    "zsh": """\
#compdef ssorl
_ssorl() {
    local -a found
    found=(${(f)"$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#found} )); then compadd -a found; else _files; fi
}
compdef _ssorl ssorl""",
    "fish": """\
function __ssorl
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..] 2>/dev/null
end
complete -c ssorl -a '(__ssorl)'""",
}


@dataclass(frozen=True)
class Completion:
    """Print a script by which a shell completes commands, options and names on Tab.

    In ~/.bashrc: eval "$(ssorl completion bash)". In ~/.zshrc, after compinit: eval "$(ssorl completion zsh)". In
    ~/.config/fish/config.fish: ssorl completion fish | source
    """

    shell: Annotated[tyro.conf.Positional[Literal["bash", "zsh", "fish"]], arg("{bash,zsh,fish}", "which shell")]

    def run(self) -> None:
        """Print it."""
        print(SCRIPTS[self.shell])


def candidates(kind: type, words: Sequence[str]) -> list[str]:
    """What the last word can become, after those before it."""
    *before, begun = words or [""]
    at, rest = descend(kind, before)
    if commands(at):
        found = [*commands(at), *_dashed(begun, "--help", *COMMON, *(["--version"] if at is kind else []))]
        return [word for word in found if word.startswith(begun)]
    known = {option.name: option for option in options(at) if not option.positional}
    last = max((i for i, word in enumerate(rest) if word in known), default=None)
    told = None if last is None else known[rest[last]]
    if told and not told.is_flag and not begun.startswith("-") and (told.takes_many or last == len(rest) - 1):
        found = told.choices or _names(told.field)
    else:
        named = [o.choices or _names(o.field) for o in options(at) if o.positional]
        found = [*(named[0] if named else ()), *_dashed(begun, *known, "--help", *COMMON)]
    return [word for word in found if word.startswith(begun)]


def _dashed(begun: str, *words: str) -> tuple[str, ...]:
    """Options only once a dash is there: names are what one mostly looks for."""
    return words if begun.startswith("-") else ()


def _names(field: str) -> list[str]:
    return NAMES[field]() if field in NAMES else []


def _datasets() -> list[str]:
    from ssorl.data.formats import _listed_names

    return _listed_names()


def _studies() -> list[str]:
    from ssorl.study.paper import STUDIES

    return list(STUDIES)


def _keys(module: str, name: str) -> list[str]:
    """The keys of a literal dict, read and not imported: importing what needs JAX takes a second."""
    tree = ast.parse((Path(__file__).parents[1] / module).read_text())
    for node in tree.body:
        if (
            isinstance(node, ast.AnnAssign)
            and getattr(node.target, "id", "") == name
            and isinstance(node.value, ast.Dict)
        ):
            return [
                key.value for key in node.value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
    return []


def _installed(group: str) -> list[str]:
    """The extensions of one kind that packages install; none is imported."""
    from importlib.metadata import entry_points

    return sorted(point.name for point in entry_points(group=group))


NAMES: dict[str, Callable[[], list[str]]] = {  # by the field that they are for
    "dataset": _datasets,
    "words": _datasets,
    "name": _studies,
    "agent": lambda: [*_keys("agents/__init__.py", "BUILT_IN"), *_installed("ssorl.agents")],
    "idm": lambda: [*_keys("idm/__init__.py", "BUILT_IN"), *_installed("ssorl.idms")],
    "format": lambda: [*_keys("data/formats/__init__.py", "BUILT_IN"), *_installed("ssorl.formats")],
    "to": lambda: [*_keys("data/formats/__init__.py", "BUILT_IN"), *_installed("ssorl.formats")],
    "env": lambda: _installed("ssorl.envs"),
}
