"""Which environment names may import code.

Gymnasium imports `module` where a name is `module:Id`. That is welcome in a name the user gives, on the command line
or as an argument, and refused in one that was read from a file: a dataset, a policy or a study could run any module.

A name is trusted only if it is a `TrustedName`. Any other text, whatever its source, is not, so that a new format or
file needs no check of its own. `require_trusted` stands before every `gymnasium.make`.
"""

from __future__ import annotations

import shlex

from ssorl.utils.errors import SsorlError


class TrustedName(str):
    """An environment name that the user gave. Once it has been written to a file and read again, it is plain text."""

    __slots__ = ()


class UntrustedNameError(SsorlError):
    """An environment name from a file that would import a module."""


def imports_code(name: str) -> bool:
    """Return whether an environment of this name would import a module that may not be imported."""
    return ":" in name and not isinstance(name, TrustedName)


def flag(name: str) -> str:
    """Return the option that names an environment, fit to be pasted into a shell whatever the name holds."""
    return f"--env {shlex.quote(shown(name))}"


def shown(name: str) -> str:
    """Return a name from a file made fit for one line of a sentence."""
    return name.encode("unicode_escape").decode()[:80]


def require_trusted(name: str, source: object = "a file", cure: str = "") -> str:
    """Return the name, or raise where it would import a module on the word of a file.

    Args:
        name: the environment's name.
        source: the file, or whatever else the name was read from.
        cure: what the user can do; by default, to name the environment.

    Raises:
        UntrustedNameError: the name has a `:` and is not a `TrustedName`.
    """
    if imports_code(name):
        told = shown(name)
        raise UntrustedNameError(
            f"{source}: names the environment {told!r}, and files may not import a module; "
            f"{cure or f'if you trust the module, name it yourself with {flag(name)} or, in Python, env={told!r}'}"
        )
    return name
