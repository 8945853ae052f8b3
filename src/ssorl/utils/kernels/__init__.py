"""Choose between GPU kernels and plain JAX. Pallas is imported lazily because it is slow to import.

There are kernels for perceptrons (`ssorl.utils.kernels.mlp`), attention (`attention`), and residual connections with
layer norm (`residual_norm`). The variable SSORL_FUSED switches all of them: 1 uses them on any GPU, 0 nowhere,
`interpret` everywhere (for tests). If it is not set, they are used on GPUs of NVIDIA's compute capability 9.0, where
they have been measured.

A kernel needs up to 213 KB of shared memory per block. Compute capability 9.0 (Hopper) has 227 KB, 8.0 has 163 KB, and
8.6, 8.9 and 12 have 99 KB. 10 has enough but compiles to other instructions, and was never tried. Runs are distributed
over several devices with `shard_map`, where each device compiles its own call, because XLA cannot partition a kernel.
"""

import os
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import jax

from ssorl.utils.errors import SsorlError

MEASURED = "9.0"  # compute capability: H100, H200, GH200
MIN_ROWS = 1024  # with fewer rows `networks.mlp` uses plain JAX


def kernel_for(name: str, *sizes: Any) -> Callable[..., Any] | None:
    """Return the kernel to use instead of plain JAX; None if plain JAX is to be used.

    Args:
        name: MODULE.FUNCTION of the kernel in this package.
        *sizes: arguments of the module's function `suits`, which checks shapes and types.

    Raises:
        SsorlError: SSORL_FUSED has an unknown value, or asks for kernels that this JAX does not support.
    """
    choice = os.environ.get("SSORL_FUSED")
    if choice not in (None, "0", "1", "interpret"):
        raise SsorlError(f"SSORL_FUSED is {choice!r}; set it to 1, 0 or (for tests) interpret, or unset it.")
    use_kernels = {None: is_measured, "0": lambda: False, "1": is_gpu, "interpret": lambda: True}[choice]
    if not use_kernels():
        return None
    module, function = name.split(".")
    try:
        imported: Any = import_module(f"{__name__}.{module}")
    except ImportError as err:
        if choice is None:  # Pallas has announced the removal of its Triton backend
            return None
        raise SsorlError(
            f"SSORL_FUSED is {choice}, but JAX {jax.__version__} has no Triton backend in Pallas ({err}); unset it."
        ) from err
    if not imported.suits(*sizes):
        return None
    ignore_deprecation()
    return partial(getattr(imported, function), tune=imported.Tune(interpret=choice == "interpret"))


def ignore_deprecation() -> None:
    """Ignore the warning that JAX 0.11 and newer raise when they lower a kernel."""
    # The filter is by message, because the warning is not raised within a function of this package.
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)


def is_gpu() -> bool:
    """Return whether programs run on a GPU; JAX's backend is called `gpu` for both CUDA and ROCm."""
    return jax.default_backend() == "gpu"


def is_measured() -> bool:
    """Return whether programs run only on GPUs with which the kernels have been measured."""
    default = getattr(jax.config, "jax_default_device", None)
    devices = jax.local_devices() if default is None else [default]
    # AMD's GPUs have names instead of numbers here; a CPU does not have the attribute.
    return all(getattr(device, "compute_capability", None) == MEASURED for device in devices)
