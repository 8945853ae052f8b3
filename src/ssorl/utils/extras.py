"""Optional packages: which extra of ssorl installs them, and the error when one is missing.

Call `require` directly before the import, inside the function that needs the package:

    require("parquet")
    import pyarrow as pa
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import NamedTuple

from ssorl.utils.errors import SsorlError


class MissingExtraError(SsorlError):
    """A package of an extra is not installed."""


class Extra(NamedTuple):
    """One extra of pyproject.toml."""

    needed_by: str  # the subject of the error message, in the plural
    packages: tuple[str, ...]  # the names under which they are imported


EXTRAS: dict[str, Extra] = {
    "sim": Extra("simulators", ("mujoco", "gymnasium", "gymnasium_robotics")),
    "minari": Extra("Minari datasets", ("minari", "gymnasium")),
    "parquet": Extra("Parquet files", ("pyarrow",)),
    "zarr": Extra("Zarr files", ("zarr",)),
    "rlds": Extra("RLDS datasets", ("tfrecord",)),
    "mcap": Extra("MCAP files", ("mcap",)),
    "export": Extra("exported policies", ("onnx", "onnxruntime", "flatbuffers")),
    "ray": Extra("Ray clusters", ("ray", "fsspec")),
    "wandb": Extra("Weights & Biases logs", ("wandb",)),
    "tensorboard": Extra("TensorBoard logs", ("tensorboardX",)),
}


def require(extra: str, *packages: str) -> None:
    """Raise an error with the pip command if packages of an extra are not installed; import nothing.

    Args:
        extra: a key of `EXTRAS`.
        *packages: the packages of the extra that are needed; without names, all of them.

    Raises:
        MissingExtraError: a package is not installed.
    """
    missing = [name for name in packages or EXTRAS[extra].packages if not _is_installed(name)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f"{EXTRAS[extra].needed_by} need {' and '.join(missing)}, which {verb} not installed; "
            f"run: pip install 'ssorl[{extra}]'"
        )


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None
    spec = find_spec(package)
    # A folder without __init__.py is a package without origin for Python; `wandb` creates such a folder where it runs.
    return spec is not None and spec.origin is not None
