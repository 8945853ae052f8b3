"""Time implementations of the Decision Transformer's attention and residual connections on a GPU.

    python benchmarks/attention.py | tee attention.jsonl   # under 60 s
    python benchmarks/attention.py --small      # a test of the script on a CPU, whose times mean nothing

256 sequences of 59 tokens, 4 heads of 128, bfloat16, from the projection's product without its bias to what the next
layer reads; dropout 0.1, but for cuDNN, which has none of its own here. `forward`, and `both`: with the gradients of
product and bias. `states` are the last block's, where a third of the tokens asks. `add` is residual, bias, dropout and
norm of as many tokens (ssorl.utils.kernels.residual_norm). One JSON line a measurement; `off` is how far it is from the
plain one (root mean square, relative, the worst array): 0.01 is rounding, 0.1 an error.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents import gpt
from ssorl.utils.kernels import attention
from ssorl.utils.kernels import residual_norm as residual

STATES = slice(1, None, 3)
DROPOUT = 0.1


def split(parts: Any, biases: Any) -> list[jax.Array]:
    """Return queries, keys and values [..., T, heads, D] with their biases, as in the plain network."""
    sums = [(x.astype(jnp.float32) + b).astype(x.dtype) for x, b in zip(parts, biases, strict=True)]
    return [x[..., i, :, :] for x in sums for i in range(x.shape[-3])]


def plain(ask: slice, parts: Any, biases: Any, seed: jax.Array) -> jax.Array:
    q, k, v = split(parts, biases)
    place = np.arange(k.shape[-3])
    return gpt._attention(q, k, v, place[ask][:, None] >= place, DROPOUT, seed)


def padded(ask: slice, parts: Any, biases: Any, seed: jax.Array, multiple: int = 64) -> jax.Array:
    """Return attention padded to aligned matrices; elements are numbered differently, so dropout differs."""
    q, k, v = split(parts, biases)
    place = np.arange(k.shape[-3])
    mask = place[ask][:, None] >= place
    more = [(0, -n % multiple) for n in mask.shape]
    mask = np.pad(np.pad(mask, (more[0], (0, 0)), constant_values=True), ((0, 0), more[1]))  # no row is masked entirely
    n, none = q.shape[-3], (0, 0)
    q, k, v = (jnp.pad(x, (none, m, none, none)) for x, m in ((q, more[0]), (k, more[1]), (v, more[1])))
    return gpt._attention(q, k, v, mask, DROPOUT, seed)[..., :n, :, :]


def cudnn(ask: slice, parts: Any, biases: Any, seed: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(*split(parts, biases), is_causal=True, implementation="cudnn")


def kernel(tune: attention.Tune, ask: slice, parts: Any, biases: Any, seed: jax.Array) -> jax.Array:
    return attention.attention(parts, biases, ask, DROPOUT, seed, tune)


def functions(f: Any) -> dict[str, Any]:
    """Return the functions to time."""

    def both(parts, biases, seed, dy):
        y, back = jax.vjp(lambda p, b: f(p, b, seed), parts, biases)
        return y, back(dy)

    return {"forward": lambda parts, biases, seed, dy: f(parts, biases, seed), "both": both}


def inputs(ask: slice, batch: int, tokens: int, heads: int, size: int) -> list[tuple]:
    """Return four sets of parts, biases, seed and cotangent for one call, because of the host's time per call."""
    n, inputs = len(range(tokens)[ask]), []
    cuts = [(tokens, 3)] if n == tokens else [(n, 1), (tokens, 2)]
    for seed in range(4):
        rng = np.random.default_rng(seed)
        parts = tuple(
            jnp.asarray(rng.standard_normal((batch, *c, heads, size), np.float32), jnp.bfloat16) for c in cuts
        )
        biases = tuple(jnp.asarray(0.1 * rng.standard_normal((c[1], heads, size)), jnp.float32) for c in cuts)
        dy = jnp.asarray(rng.standard_normal((batch, n, heads, size)), jnp.bfloat16)
        inputs.append((parts, biases, jnp.uint32(seed), dy))
    return inputs


def plain_add(stream: jax.Array, product: jax.Array, bias: jax.Array, norm: Any, seed: jax.Array) -> Any:
    more = (product.astype(jnp.float32) + bias).astype(product.dtype)
    new = stream + gpt._drop(more, DROPOUT, seed)
    return new, gpt._norm(norm, new, new.dtype)


def kernel_add(
    tune: residual.Tune, stream: jax.Array, product: jax.Array, bias: jax.Array, norm: Any, seed: jax.Array
) -> Any:
    return residual.add_and_norm(stream, product, bias, norm, DROPOUT, seed, tune)


def add_functions(f: Any) -> dict[str, Any]:
    def both(stream, product, bias, norm, seed, dy):
        values, back = jax.vjp(lambda *args: f(*args, seed), stream, product, bias, norm)
        return values, back(dy)

    return {"forward": lambda *args: f(*args[:-1]), "both": both}


def add_inputs(*shape: int) -> list[tuple]:
    """Return four sets of stream, product, bias, norm, seed and cotangents."""
    inputs = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        stream, product, *dy = (jnp.asarray(rng.standard_normal(shape, np.float32), jnp.bfloat16) for _ in range(4))
        bias, gain, offset = (jnp.asarray(rng.standard_normal(shape[-1]), jnp.float32) for _ in range(3))
        inputs.append((stream, product, bias, {"gain": gain, "bias": offset}, jnp.uint32(seed), tuple(dy)))
    return inputs


def seconds(f: Any, given: list[tuple], n: int) -> float:
    """Return the time per set of inputs: the best of three rounds of n calls that do not wait for each other."""
    best = np.inf
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready([f(given) for _ in range(n)][-1])
        best = min(best, (time.perf_counter() - began) / n / len(given))
    return best


def off(a: Any, b: Any) -> float:
    def off_array(a, b):
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        return jnp.sqrt(jnp.square(a - b).mean() / jnp.square(b).mean())

    return max(float(off_array(x, y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def cases(small: bool) -> Iterator[tuple[str, str, Any, Any, Any]]:
    """Yield name, operation, function, timed part and maker of the inputs."""
    batch, tokens, heads, size = sizes = (2, 11, 2, 16) if small else (256, 59, 4, 128)
    every = {"all": slice(None), "states": STATES}
    ways: dict[str, Any] = {"plain": plain, "kernel": partial(kernel, attention.Tune(interpret=small))}
    adds: dict[str, Any] = {"plain": plain_add}
    for rows, warps in ((16, 4), (8, 4), (16, 8), (4, 4)):
        adds[f"kernel, {rows} rows, {warps} warps"] = partial(kernel_add, residual.Tune(rows, warps, interpret=small))
    for way, f in adds.items():
        yield way, "add", f, add_functions, partial(add_inputs, batch, tokens, heads * size)
    for way, f in ways.items():
        for which, ask in every.items():
            yield way, which, partial(f, ask), functions, partial(inputs, ask, *sizes)
    yield "padded", "all", partial(padded, every["all"]), functions, partial(inputs, every["all"], *sizes)
    yield "cudnn", "all", partial(cudnn, every["all"]), functions, partial(inputs, every["all"], *sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=50, help="start no measurement after this")
    parser.add_argument("--small", action="store_true", help="tiny sizes, interpreted")
    args = parser.parse_args()
    os.environ["SSORL_FUSED"] = "0"  # the plain network must not use kernels
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    began = time.perf_counter()
    print(json.dumps({"device": jax.devices()[0].device_kind, "jax": jax.__version__}), flush=True)
    known: dict[Any, Any] = {}
    for way, which, f, make, make_inputs in cases(args.small):
        given = make_inputs()
        for what, g in make(f).items():
            line: dict = {"way": way, "which": which, "what": what}
            if time.perf_counter() - began > args.seconds:
                print(json.dumps(line | {"error": "no time left for this and what follows"}), flush=True)
                return
            try:
                g = jax.jit(lambda many, g=g: [g(*x) for x in many])
                out = jax.block_until_ready(g(given))[0]
                line["us"] = round(1e6 * seconds(g, given, 1 if args.small else 10), 1)
                if way == "plain":
                    known[which, what] = out
                elif "kernel" in way and (which, what) in known:  # others have other dropout masks
                    line["off"] = round(off(out, known[which, what]), 5)
            except Exception as e:  # an implementation may not run here; time the others
                line["error"] = str(e).strip().split("\n")[0][:300] or type(e).__name__
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
