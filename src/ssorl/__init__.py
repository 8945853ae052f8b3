"""Semi-supervised offline reinforcement learning with action-free trajectories (arXiv 2210.06518)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ssorl.utils.version import __version__

PUBLIC: dict[str, str] = {  # name -> its module, imported on first use so that `import ssorl` is quick
    "load": "ssorl.data",
    "audit": "ssorl.idm.audit",
    "check": "ssorl.pipeline.check_data",
    "suggest": "ssorl.idm.suggest",
    "split": "ssorl.pipeline.steps",
    "fit_idm": "ssorl.pipeline.steps",
    "label": "ssorl.pipeline.steps",
    "train": "ssorl.pipeline.steps",
    "evaluate": "ssorl.pipeline.steps",
    "run": "ssorl.runs.run",
    "load_policy": "ssorl.evaluation.policy",
}
__all__ = ["__version__", "audit", "evaluate", "fit_idm", "label", "load", "load_policy", "run", "split", "suggest"]
__all__ += ["check", "train"]

if TYPE_CHECKING:
    from ssorl.data import load
    from ssorl.evaluation.policy import load_policy
    from ssorl.idm.audit import audit
    from ssorl.idm.suggest import suggest
    from ssorl.pipeline.check_data import check
    from ssorl.pipeline.steps import evaluate, fit_idm, label, split, train
    from ssorl.runs.run import run


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'ssorl' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
