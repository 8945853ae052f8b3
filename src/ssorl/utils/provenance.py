"""Where and with what a result was made: versions, hardware, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("ssorl", "jax", "jaxlib", "numpy", "optax", "mujoco", "gymnasium")


def everything() -> dict:
    """All of it, for a run's record."""
    return {"versions": versions(), "hardware": hardware(), "commit": commit()}


def versions() -> dict[str, str]:
    """Python and the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict:
    """The machine and the device that JAX uses."""
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
    """Of the checkout that this code runs from, `-dirty` where it was changed; None for an installed package.

    Where the files went without their repository, into a container for one, SSORL_COMMIT tells it.
    """
    here = Path(__file__).parents[1]

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=here, capture_output=True, text=True, check=True, timeout=20).stdout

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # a folder of a foreign checkout may hold a package
        return git("rev-parse", "--short=12", "HEAD").strip() + ("-dirty" if git("status", "--short", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SSORL_COMMIT")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
