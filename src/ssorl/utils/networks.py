"""Networks as plain pytrees, and the optimiser: small enough to read, nothing hidden in a class."""

from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.utils import kernels

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


def halved(layers: list[dict[str, jax.Array]]) -> list[dict[str, jax.Array]]:
    """All layers but the last as `mlp` casts them for `half`: given these, it has nothing to cast."""
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), layers[:-1])


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
    large = x.size >= kernels.FEWEST_ROWS * x.shape[-1]
    if half and not norm and not dropout and large and (fused := kernels.wanted("mlp.fused_mlp", layers, x)):
        return fused(jax.tree.map(lambda w: w.astype(jnp.float32), layers), x)  # as are its gradients
    kind = jnp.bfloat16 if half else jnp.float32
    seeds = jax.random.bits(key, (len(layers) - 1,), jnp.uint32) if dropout and key is not None else None
    x = x.astype(kind)
    for i, layer in enumerate(layers[:-1]):
        x = x @ layer["w"].astype(kind)
        seed = None if seeds is None else seeds[i]
        if norm:
            x = _active(layer_norm(x + layer["b"].astype(kind)), dropout, seed)
        else:
            x = hidden(dropout, x, layer["b"], seed)
    return x.astype(jnp.float32) @ layers[-1]["w"] + layers[-1]["b"]


def _active(x: jax.Array, dropout: float, seed: jax.Array | None) -> jax.Array:
    """ReLU, and dropout if there is a seed."""
    x = jax.nn.relu(x)
    if seed is None:
        return x
    number = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape)
    return jnp.where(coins(number, dropout, seed), x / (1 - dropout), 0)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def hidden(dropout: float, x: jax.Array, b: jax.Array, seed: jax.Array | None) -> jax.Array:
    """What a hidden layer does to its product x[..., N]: bias, ReLU and dropout.

    Its gradient asks only where the result is not 0. So x need not be kept, which lets a GPU add the bias and cut at 0
    on the way out of the product, and coins are thrown once.
    """
    return _active(x + b.astype(x.dtype), dropout, seed)


def _hidden_ahead(dropout: float, x: jax.Array, b: jax.Array, seed: jax.Array | None) -> tuple[jax.Array, Any]:
    # The barrier, because XLA would have the products after this take the sum and cut it at 0 themselves, and so would
    # write both; and because it knows that the gradient could as well ask what the ReLU was given.
    y: jax.Array = jax.lax.optimization_barrier(hidden(dropout, x, b, seed))
    return y, (y, b, seed)


def _hidden_back(dropout: float, kept: Any, dy: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    y, b, seed = kept
    dx = jnp.where(y > 0, dy if seed is None else dy / (1 - dropout), 0)
    return dx, dx.reshape(-1, dx.shape[-1]).astype(jnp.float32).sum(0).astype(b.dtype), None


hidden.defvjp(_hidden_ahead, _hidden_back)


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
