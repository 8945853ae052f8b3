"""Where the GPU kernels stand in for plain networks; Pallas, slow to import, is not touched before.

There are kernels for a perceptron (`ssorl.utils.kernels.mlp`), for attention (`attention`) and for what stands
between a transformer's products (`residual_norm`). SSORL_FUSED decides for all: 1 is on any GPU, 0 nowhere,
`interpret` everywhere, for tests. Unset, they are used where they have been measured: on NVIDIA's compute capability
9.0. What they need of a GPU is shared memory, up to 213 KB a block, and Hopper has 227; 8.0 has 163, 8.6, 8.9 and 12
have 99. 10 has enough, but makes other instructions of them, and nobody has tried. Where runs are cut over several
devices that is by `shard_map`, in which each device compiles its own call: XLA's own partitioning could not look into
a kernel.
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
FEWEST_ROWS = 1024  # below this `nn.mlp` keeps to itself


def wanted(name: str, *sizes: Any) -> Callable[..., Any] | None:
    """The function MODULE.FUNCTION that shall stand in for plain code here, if it shall; `sizes` go to its `suits`."""
    choice = os.environ.get("SSORL_FUSED")
    if choice not in (None, "0", "1", "interpret"):
        raise SsorlError(f"SSORL_FUSED is {choice!r}; set it to 1, 0 or, for tests, interpret, or do not set it.")
    here = {None: measured, "0": lambda: False, "1": gpu, "interpret": lambda: True}[choice]
    if not here():
        return None
    module, function = name.split(".")
    try:
        found: Any = import_module(f"{__name__}.{module}")
    except ImportError as err:
        if choice is None:  # Pallas has said that it will give up its Triton backend
            return None
        raise SsorlError(
            f"SSORL_FUSED is {choice}, but this JAX {jax.__version__} has no Triton in Pallas ({err}); do not set it."
        ) from err
    if not found.suits(*sizes):
        return None
    hush()
    return partial(getattr(found, function), tune=found.Tune(interpret=choice == "interpret"))


def hush() -> None:
    """JAX 0.11 warns when it lowers a kernel, in no function of ours: by its words is the closest one can get."""
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)


def gpu() -> bool:
    """Whether programs go to a GPU, of whatever make: JAX calls CUDA and ROCm both so."""
    return jax.default_backend() == "gpu"


def measured() -> bool:
    """Whether programs go to GPUs on which the kernels are known to fit. AMD's have names here, a CPU has nothing."""
    told = getattr(jax.config, "jax_default_device", None)
    devices = jax.local_devices() if told is None else [told]
    return all(getattr(device, "compute_capability", None) == MEASURED for device in devices)
