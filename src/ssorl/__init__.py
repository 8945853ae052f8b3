"""Semi-supervised offline reinforcement learning with action-free trajectories (arXiv 2210.06518)."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

PUBLIC: dict[str, str] = {  # name -> the module it is in, imported on first use: `import ssorl` stays quick
    "load": "ssorl.data",
    "split": "ssorl.api",
    "fit_idm": "ssorl.api",
    "label": "ssorl.api",
    "train": "ssorl.api",
    "evaluate": "ssorl.api",
    "run": "ssorl.runs",
    "load_policy": "ssorl.player",
}
__all__ = ["__version__", "evaluate", "fit_idm", "label", "load", "load_policy", "run", "split", "train"]

if TYPE_CHECKING:
    from ssorl.api import evaluate, fit_idm, label, split, train
    from ssorl.data import load
    from ssorl.player import load_policy
    from ssorl.runs import run


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'ssorl' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})


class _Package(ModuleType):
    """Keeps `ssorl.train` and `ssorl.evaluate` the functions.

    Importing a submodule binds it to its name in the package; here the public name goes first.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
