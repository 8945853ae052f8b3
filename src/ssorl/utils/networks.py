"""Perceptrons whose weights are plain pytrees, their dropout, and Adam.

`optax.adam` is not used because its bits differ, and stored results must stay reproducible: one update of a 2x256
perceptron differs by up to 1.5e-8, 200 updates by up to 1e-2.
"""

from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.utils import kernels

Params = Any  # a pytree of arrays


def init_mlp(key: jax.Array, sizes: tuple[int, ...]) -> list[dict[str, jax.Array]]:
    """Return the initial weights of a multilayer perceptron, uniform in +-1/sqrt(fan in) like PyTorch's default.

    Args:
        key: random key.
        sizes: widths of the layers, from the input to the output.

    Returns:
        One dict per layer with `w` [n_in, n_out] and `b` [n_out].
    """
    counts = [(n_in + 1) * n_out for n_in, n_out in pairwise(sizes)]
    # All layers are drawn in one call, because on a CPU each call of the generator takes seconds to compile.
    draws = jnp.split(jax.random.uniform(key, (sum(counts),), minval=-1.0), list(accumulate(counts))[:-1])
    layers = []
    for draw, n_in, n_out in zip(draws, sizes[:-1], sizes[1:], strict=True):
        rows = draw.reshape(n_in + 1, n_out) * n_in**-0.5
        layers.append({"w": rows[:-1], "b": rows[-1]})
    return layers


def halved(layers: list[dict[str, jax.Array]]) -> list[dict[str, jax.Array]]:
    """Return all layers but the last in bfloat16, so that `mlp(..., half=True)` need not cast them."""
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), layers[:-1])


def mlp(
    layers: list[dict[str, jax.Array]],
    x: jax.Array,
    norm: bool = False,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    half: bool | None = False,
) -> jax.Array:
    """Apply a multilayer perceptron with ReLU after each hidden layer.

    Args:
        layers: weights, as from `init_mlp`.
        x: inputs [..., I].
        norm: apply layer norm before each ReLU.
        dropout: dropout rate after each hidden layer.
        key: random key of dropout; None: no dropout.
        half: compute the hidden layers in bfloat16, which halves memory traffic; the last layer is always float32.

    Returns:
        Outputs [..., n_out] in float32.
    """
    dropout = dropout if key is not None else 0.0
    large = x.size >= kernels.MIN_ROWS * x.shape[-1]
    if half and not norm and not dropout and large and (fused := kernels.kernel_for("mlp.fused_mlp", layers, x)):
        return fused(jax.tree.map(lambda w: w.astype(jnp.float32), layers), x)
    kind = jnp.bfloat16 if half else jnp.float32
    seeds = jax.random.bits(key, (len(layers) - 1,), jnp.uint32) if dropout and key is not None else None
    x = x.astype(kind)
    for i, layer in enumerate(layers[:-1]):
        x = x @ layer["w"].astype(kind)
        seed = None if seeds is None else seeds[i]
        if norm:
            x = _relu(layer_norm(x + layer["b"].astype(kind)), dropout, seed)
        else:
            x = hidden(dropout, x, layer["b"], seed)
    return x.astype(jnp.float32) @ layers[-1]["w"] + layers[-1]["b"]


def _relu(x: jax.Array, dropout: float, seed: jax.Array | None) -> jax.Array:
    """Apply ReLU, and dropout if there is a seed."""
    x = jax.nn.relu(x)
    if seed is None:
        return x
    number = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape)
    return jnp.where(keep_mask(number, dropout, seed), x / (1 - dropout), 0)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def hidden(dropout: float, x: jax.Array, b: jax.Array, seed: jax.Array | None) -> jax.Array:
    """Apply bias, ReLU and dropout of a hidden layer.

    The gradient depends only on where the result is 0. So x need not be stored, a GPU can apply bias and ReLU within
    the matrix product, and the dropout mask is computed once.

    Args:
        dropout: dropout rate.
        x: product of the layer's input and weights [..., N].
        b: biases [N].
        seed: scalar uint32 seed of dropout; None: no dropout.
    """
    return _relu(x + b.astype(x.dtype), dropout, seed)


def _hidden_forward(dropout: float, x: jax.Array, b: jax.Array, seed: jax.Array | None) -> tuple[jax.Array, Any]:
    # Without the barrier XLA would fuse bias and ReLU into the following products and write both x and y to memory; it
    # would also derive the gradient's mask from the ReLU's input instead of y.
    y: jax.Array = jax.lax.optimization_barrier(hidden(dropout, x, b, seed))
    return y, (y, b, seed)


def _hidden_backward(dropout: float, saved: Any, dy: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    y, b, seed = saved
    dx = jnp.where(y > 0, dy if seed is None else dy / (1 - dropout), 0)
    return dx, dx.reshape(-1, dx.shape[-1]).astype(jnp.float32).sum(0).astype(b.dtype), None


hidden.defvjp(_hidden_forward, _hidden_backward)


def keep_mask(number: jax.Array, rate: float, seed: jax.Array) -> jax.Array:
    """Return the mask of dropout: False for a share `rate` of the elements, True for those that are kept.

    The mask is a hash of each element's number and the seed (a Weyl sequence through a 32-bit mixer, like SplitMix).
    The compiler fuses these few operations into the layer's; JAX's generator would cost more than the layer.

    Args:
        number: number of each element, uint32 of any shape.
        rate: dropout rate.
        seed: scalar uint32.
    """
    z = number * np.uint32(0x9E3779B9) + seed
    z = (z ^ (z >> 16)) * np.uint32(0x21F0AAAD)
    z = (z ^ (z >> 15)) * np.uint32(0x735A2D97)
    z = z ^ (z >> 15)
    return z >= np.uint32(round(rate * 2**32))


def layer_norm(x: jax.Array) -> jax.Array:
    """Return x [..., I] with mean 0 and variance 1 over the last axis; there is no gain and no bias."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


class Adam(NamedTuple):
    """State of Adam (arXiv 1412.6980) for one pytree of parameters."""

    mean: Params
    square: Params
    step: jax.Array


def init_adam(params: Params) -> Adam:
    """Return Adam's state before the first step: moments of 0."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Adam(zeros, zeros, jnp.zeros((), jnp.int32))


def adam(params: Params, grad: Params, state: Adam, lr: float | jax.Array) -> tuple[Params, Adam]:
    """Do one step of Adam with the usual constants (0.9, 0.999, 1e-8).

    Args:
        params: pytree of parameters.
        grad: their gradient.
        state: state before the step.
        lr: learning rate.

    Returns:
        The new parameters and the new state.
    """
    step = state.step + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, grad)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state.square, grad)
    fix1, fix2 = 1 / (1 - 0.9**step), 1 / (1 - 0.999**step)
    params = jax.tree.map(lambda p, m, v: p - lr * m * fix1 / (jnp.sqrt(v * fix2) + 1e-8), params, mean, square)
    return params, Adam(mean, square, step)
