"""ssorl completion: scripts with which a shell completes words on Tab.

tyro can print completion scripts too (`--tyro-print-completion`). We tried those of tyro 1.0.16 and keep our own. They
know commands, options and choices, but complete no names of datasets, studies, agents, models or formats. They do not
offer `--quiet` and `--debug`, which every command accepts. They embed all options (47 kB), so they are out of date
after each update of ssorl. Ours ask the installed ssorl.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ssorl.cli.options import arg
from ssorl.cli.words import COMMON, commands, descend, options

COMPLETE = "__complete"  # `ssorl __complete WORD … BEGINNING` prints the candidates for the last word, one a line
# Each script asks the command that is being typed; if that has no answer, the shell completes file names.
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
    local -a candidates
    candidates=(${(f)"$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#candidates} )); then compadd -a candidates; else _files; fi
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
    """Print a script with which a shell completes words on Tab.

    In ~/.bashrc: eval "$(ssorl completion bash)".

    In ~/.zshrc, after compinit: eval "$(ssorl completion zsh)".

    In ~/.config/fish/config.fish: ssorl completion fish | source
    """

    shell: Annotated[tyro.conf.Positional[Literal["bash", "zsh", "fish"]], arg("{bash,zsh,fish}", "your shell")]

    def run(self) -> None:
        """Print the script."""
        print(SCRIPTS[self.shell])


def candidates(kind: type, words: Sequence[str]) -> list[str]:
    """Return the words that the last word can become.

    Args:
        kind: the outermost command.
        words: the command line; the last word is incomplete, and may be empty.
    """
    *before, beginning = words or [""]
    command, rest = descend(kind, before)
    if commands(command):
        version = ["--version"] if command is kind else []
        names = [*commands(command), *_if_dashed(beginning, "--help", *COMMON, *version)]
        return [word for word in names if word.startswith(beginning)]
    known = {option.name: option for option in options(command) if not option.positional}
    last = max((i for i, word in enumerate(rest) if word in known), default=None)
    option = None if last is None else known[rest[last]]
    takes_value = option and not option.is_flag and (option.takes_many or last == len(rest) - 1)
    if option and takes_value and not beginning.startswith("-"):
        names = option.choices or _names(option.field)
    else:
        positional = [o.choices or _names(o.field) for o in options(command) if o.positional]
        names = [*(positional[0] if positional else ()), *_if_dashed(beginning, *known, "--help", *COMMON)]
    return [word for word in names if word.startswith(beginning)]


def _if_dashed(beginning: str, *options: str) -> tuple[str, ...]:
    """Return the options only after a dash: without one, users mostly want names."""
    return options if beginning.startswith("-") else ()


def _names(field: str) -> list[str]:
    return NAMES[field]() if field in NAMES else []


def _datasets() -> list[str]:
    from ssorl.data.formats import listed_names

    return listed_names()


def _studies() -> list[str]:
    from ssorl.study.paper import STUDIES

    return list(STUDIES)


def _literal_keys(module: str, name: str) -> list[str]:
    """Return the keys of a dict literal in a module's source, which is not imported: importing JAX takes a second."""
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
    """Return the names of installed extensions of one kind; none is imported."""
    from importlib.metadata import entry_points

    return sorted(point.name for point in entry_points(group=group))


def _formats() -> list[str]:
    return [*_literal_keys("data/formats/__init__.py", "BUILT_IN"), *_installed("ssorl.formats")]


NAMES: dict[str, Callable[[], list[str]]] = {  # candidates by the field of the option
    "dataset": _datasets,
    "words": _datasets,
    "name": _studies,
    "agent": lambda: [*_literal_keys("agents/__init__.py", "BUILT_IN"), *_installed("ssorl.agents")],
    "idm": lambda: [*_literal_keys("idm/__init__.py", "BUILT_IN"), *_installed("ssorl.idms")],
    "format": _formats,
    "to": _formats,
    "env": lambda: _installed("ssorl.envs"),
}
