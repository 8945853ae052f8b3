"""Time the kernels of ssorl.utils.kernels.mlp, with and without sweeps, and the plain network on a GPU.

    python benchmarks/fused.py | tee fused.jsonl     # 90 s at most; add other settings to TUNES
    python benchmarks/fused.py --small               # a test of the script on a CPU, whose times mean nothing
    python benchmarks/agent_speed.py --case td3bc:5120:30                  # the effect on an agent; and without:
    SSORL_FUSED=0 python benchmarks/agent_speed.py --case td3bc:5120:30

One JSON line a measurement, as soon as it is made. `off` is how far values or gradients are from the plain network's
(root mean square, relative, the worst array): a hidden unit that rounding opens or shuts costs some per cent in a
gradient, more than 0.1 is an error. TFLOP/s count what the plain network multiplies, for both.
"""

import argparse
import json
import os
import time
import warnings
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.utils import networks as nn
from ssorl.utils.kernels import mlp as fused

CASES = {  # runs, rows of a run, inputs, hidden layers, outputs
    "td3bc critic": (30, 5120, 14, (256, 256), 1),
    "cql critic": (5, 31 * 5120, 14, (256, 256, 256), 1),
}
SMALL = {"two layers": (2, 64, 14, (128, 128), 1), "three layers": (2, 64, 14, (128, 128, 128), 1)}
NEVER = 10**9  # more multiprocessors than a sweep could fill, so that none is used
TUNES = [fused.Tune(), fused.Tune(units=NEVER)]  # the default, and without sweeps


def functions(network: Any) -> dict[str, Any]:
    """Return the functions to time, over all runs: values, and gradients of weights or inputs."""

    def loss(layers, x):
        return jnp.square(network(layers, x)).sum() / 2

    return {
        "forward": jax.jit(jax.vmap(network)),
        "weights": jax.jit(jax.vmap(jax.grad(loss))),
        "inputs": jax.jit(jax.vmap(jax.grad(loss, argnums=1))),
    }


def flops(what: str, case: tuple) -> float:
    runs, rows, n_in, hidden, n_out = case
    sizes = (n_in, *hidden, n_out)
    products = [2.0 * runs * rows * a * b for a, b in pairwise(sizes)]
    return {"forward": 1, "weights": 3, "inputs": 2}[what] * sum(products) - (products[0] if what == "weights" else 0)


def seconds(f: Any, args: tuple, n: int) -> float:
    """Return the time of one call: the best of three rounds of n calls that do not wait for each other."""
    best = np.inf
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready([f(*args) for _ in range(n)][-1])
        best = min(best, (time.perf_counter() - began) / n)
    return best


def off(a: Any, b: Any) -> float:
    def off_array(a, b):
        return jnp.sqrt(jnp.square(a - b).mean() / jnp.square(b).mean())

    return max(float(off_array(x, y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def measure(f: Any, args: tuple, what: str, case: tuple, plain: Any, n: int) -> tuple[dict, Any]:
    began = time.perf_counter()
    out = jax.block_until_ready(f(*args))
    first = time.perf_counter() - began
    took = seconds(f, args, n)
    line = {"ms": round(1e3 * took, 4), "tflops": round(flops(what, case) / took / 1e12, 1), "first_s": round(first, 1)}
    return line | ({} if plain is None else {"off": round(off(out, plain), 5)}), out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=80, help="start no measurement after this")
    parser.add_argument("--small", action="store_true", help="tiny sizes, interpreted")
    args = parser.parse_args()
    os.environ["SSORL_FUSED"] = "0"  # the plain network must not use kernels
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    began, cases, n = time.perf_counter(), SMALL if args.small else CASES, 1 if args.small else 20
    print(json.dumps({"device": jax.devices()[0].device_kind, "jax": jax.__version__}), flush=True)

    plain, given = {}, {}
    for tune in [None, *(replace(tune, interpret=args.small) for tune in TUNES)]:
        for name, case in cases.items():
            runs, rows, n_in, hidden, n_out = case
            if tune is None:
                keys = jax.random.split(jax.random.key(0), runs)
                layers = jax.vmap(lambda k, s=(n_in, *hidden, n_out): nn.init_mlp(k, s))(keys)
                given[name] = layers, jax.random.normal(jax.random.key(1), (runs, rows, n_in))
                network = partial(nn.mlp, half=True)
            else:
                network = partial(fused.fused_mlp, tune=tune)
            for what, f in functions(network).items():
                line: dict = {"case": name, "what": what, "cut": tune and asdict(tune)}
                if time.perf_counter() - began > args.seconds:
                    print(json.dumps(line | {"error": "no time left for this and what follows"}), flush=True)
                    return
                try:
                    more, out = measure(f, given[name], what, case, plain.get((name, what)), n)
                except Exception as e:  # a setting may not fit the GPU; time the others
                    more, out = {"error": str(e).strip().split("\n")[0][:300] or type(e).__name__}, None
                if tune is None:
                    plain[name, what] = out
                print(json.dumps(line | more), flush=True)


if __name__ == "__main__":
    main()
