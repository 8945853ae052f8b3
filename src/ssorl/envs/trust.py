"""Which environment names may import code.

Gymnasium imports `module` where a name is `module:Id`. That is welcome in a name the user gives, on the command line
or as an argument, and refused in one that was read from a file: a dataset, a policy or a study could run any module.

A name is trusted only if it is a `TrustedName`, or if it was registered in this process. Any other text, whatever its
source, is not, so that a new format or file needs no check of its own. `require_trusted` stands before every
`gymnasium.make`.
"""

from __future__ import annotations

import shlex

from ssorl.envs.custom import ENVS
from ssorl.utils.registry import TrustedName, UntrustedNameError, shown


def imports_code(name: str) -> bool:
    """Return whether an environment of this name would import a module that may not be imported."""
    return ":" in name and not isinstance(name, TrustedName) and name not in ENVS


def flag(name: str) -> str:
    """Return the option that names an environment, fit to be pasted into a shell whatever the name holds."""
    return f"--env {shlex.quote(shown(name))}"


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
        raise UntrustedNameError(ENVS.refusal(name, source, cure))
    return name
