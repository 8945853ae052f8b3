"""Networks as plain pytrees, and the optimiser: small enough to read, nothing hidden in a class."""

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl import kernels

Params = Any  # a pytree of arrays


def init_mlp(key: jax.Array, sizes: tuple[int, ...]) -> list[dict[str, jax.Array]]:
    """Weights of a multilayer perceptron, uniform in +-1/sqrt(fan in) as PyTorch's default."""
    counts = [(n_in + 1) * n_out for n_in, n_out in pairwise(sizes)]
    # One draw for all layers: on a CPU each call of the generator costs seconds of compile time.
    draws = jnp.split(jax.random.uniform(key, (sum(counts),), minval=-1.0), list(accumulate(counts))[:-1])
    layers = []
    for draw, n_in, n_out in zip(draws, sizes[:-1], sizes[1:], strict=True):
        rows = draw.reshape(n_in + 1, n_out) * n_in**-0.5
        layers.append({"w": rows[:-1], "b": rows[-1]})
    return layers


def mlp(
    layers: list[dict[str, jax.Array]],
    x: jax.Array,
    norm: bool = False,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    half: bool | None = False,
) -> jax.Array:
    """Apply `init_mlp` weights to x[..., I]: ReLU between layers, layer norm before it if `norm`.

    With a key, dropout acts after each hidden layer; without one it never does. `half` keeps the hidden layers in
    bfloat16, half the memory traffic; the last layer is always float32.
    """
    dropout = dropout if key is not None else 0.0
    if half and not norm and not dropout and (fused := kernels.wanted(layers, x)):
        return fused(layers, x)
    kind = jnp.bfloat16 if half else jnp.float32
    seeds = jax.random.bits(key, (len(layers) - 1,), jnp.uint32) if dropout and key is not None else None
    x = x.astype(kind)
    for i, layer in enumerate(layers[:-1]):
        x = x @ layer["w"].astype(kind) + layer["b"].astype(kind)
        x = jax.nn.relu(layer_norm(x) if norm else x)
        if seeds is not None:
            number = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape)
            x = jnp.where(coins(number, dropout, seeds[i]), x / (1 - dropout), 0)
    return x.astype(jnp.float32) @ layers[-1]["w"] + layers[-1]["b"]


def coins(number: jax.Array, rate: float, seed: jax.Array) -> jax.Array:
    """True but for a share `rate` of the places with these numbers: what dropout keeps.

    A coin is a hash of a place's number and the seed (a Weyl sequence through a 32-bit mixer, as SplitMix): a few
    operations that the compiler fuses into the layer's, where JAX's generator would cost more than the layer.
    """
    z = number * np.uint32(0x9E3779B9) + seed
    z = (z ^ (z >> 16)) * np.uint32(0x21F0AAAD)
    z = (z ^ (z >> 15)) * np.uint32(0x735A2D97)
    z = z ^ (z >> 15)
    return z >= np.uint32(round(rate * 2**32))


def layer_norm(x: jax.Array) -> jax.Array:
    """x[..., I] with mean 0 and variance 1; without gain and bias, the next layer has its own."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


class Adam(NamedTuple):
    """State of Adam (arXiv 1412.6980) for one pytree of parameters."""

    mean: Params
    square: Params
    step: jax.Array


def init_adam(params: Params) -> Adam:
    """Fresh moments."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Adam(zeros, zeros, jnp.zeros((), jnp.int32))


def adam(params: Params, grad: Params, state: Adam, lr: float | jax.Array) -> tuple[Params, Adam]:
    """One step with the usual constants (0.9, 0.999, 1e-8)."""
    step = state.step + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, grad)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state.square, grad)
    fix1, fix2 = 1 / (1 - 0.9**step), 1 / (1 - 0.999**step)
    params = jax.tree.map(lambda p, m, v: p - lr * m * fix1 / (jnp.sqrt(v * fix2) + 1e-8), params, mean, square)
    return params, Adam(mean, square, step)
