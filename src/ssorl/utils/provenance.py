"""Record how a result was computed: package versions, hardware, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("ssorl", "jax", "jaxlib", "numpy", "optax", "mujoco", "gymnasium")


def everything() -> dict:
    """Return versions, hardware and commit, for the record of a run."""
    return {"versions": versions(), "hardware": hardware(), "commit": commit()}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    by_package = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            by_package[name] = version(name)
        except PackageNotFoundError:
            continue
    return by_package


def hardware() -> dict:
    """Describe the machine and the devices that JAX uses."""
    import jax

    devices = jax.local_devices()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": devices[0].device_kind,
        "devices": len(devices),
    }


def commit() -> str | None:
    """Return the commit of the checkout that this code runs from, with `-dirty` if files of the package were changed.

    Outside a checkout, for example in an installed package or a container, the value of SSORL_COMMIT is returned,
    or None if it is not set.
    """
    here = Path(__file__).parents[1]

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=here, capture_output=True, text=True, check=True, timeout=20).stdout

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # fails if the package only lies inside another checkout
        return git("rev-parse", "--short=12", "HEAD").strip() + ("-dirty" if git("status", "--short", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SSORL_COMMIT")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
