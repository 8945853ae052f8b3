"""Decide which environment names may import code.

For a name `module:Id` Gymnasium imports `module`. The user may give such a name on the command line or as an argument.
A name that was read from a file must not import a module, or a dataset, policy or study could run any code.

Only a `TrustedName` or a name that was registered in this process is trusted. All other strings are not, whatever their
source, so a new file format needs no check of its own. `require_trusted` is called before every `gymnasium.make`.
"""

from __future__ import annotations

import shlex

from ssorl.envs.custom import ENVS
from ssorl.utils.registry import TrustedName, UntrustedNameError, shown


def imports_code(name: str) -> bool:
    """Return whether creating an environment of this name would import a module without the user's consent."""
    return ":" in name and not isinstance(name, TrustedName) and name not in ENVS


def flag(name: str) -> str:
    """Return the option that names an environment, quoted for a shell."""
    return f"--env {shlex.quote(shown(name))}"


def require_trusted(name: str, source: object = "a file", cure: str = "") -> str:
    """Return the name, or raise if it came from a file and would import a module.

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
