"""A GPT-2 over interleaved (return-to-go, state, action) tokens; its weights are plain pytrees.

The blocks are causal and pre-norm. `half` computes them in bfloat16; embeddings, the statistics of layer norms and the
softmax stay float32. Inputs may have any leading axes, or none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.utils import kernels
from ssorl.utils.networks import Params, hidden, keep_mask

# Weights ---------------------------------------------------------------------------------------------------


class Initial(NamedTuple):
    """The normal distribution of an array's initial values; with `std` 0 the array is constant."""

    shape: tuple[int, ...]
    std: float = 0.0
    mean: float = 0.0


def init_weights(key: jax.Array, tree: Any) -> Params:
    """Draw initial weights, in one call of the generator, because each call takes seconds to compile on a CPU.

    Args:
        key: random key.
        tree: pytree of `Initial`.

    Returns:
        A pytree of the same structure with arrays.
    """
    distributions, structure = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, Initial))
    sizes = [int(np.prod(d.shape)) if d.std else 0 for d in distributions]
    parts = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    arrays = [
        d.mean + d.std * part.reshape(d.shape) if d.std else jnp.full(d.shape, d.mean, jnp.float32)
        for d, part in zip(distributions, parts, strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)


def initial_linear(n_in: int, n_out: int, std: float, bias_std: float = 0.0) -> dict[str, Initial]:
    """Return the distributions of a linear layer's initial weights and biases.

    Args:
        n_in: size of the input.
        n_out: size of the output.
        std: standard deviation of the weights.
        bias_std: standard deviation of the biases.
    """
    return {"w": Initial((n_in, n_out), std), "b": Initial((n_out,), bias_std)}


def initial_gpt(n_obs: int, n_act: int, width: int, layers: int, max_time: int) -> dict[str, Any]:
    """Return the distributions of the network's initial weights.

    As in GPT-2, layers whose output is added to the residual stream start smaller the more blocks there are. At width
    512 the standard deviation is GPT-2's 0.02; it grows as 1 / sqrt(width), so that outputs start equally large.

    Args:
        n_obs: size of an observation O.
        n_act: size of an action A.
        width: width of the embedding.
        layers: number of blocks.
        max_time: rows of the embedding of time; 0: no such embedding.
    """
    std = 0.45 * width**-0.5
    norm = {"gain": Initial((width,), mean=1.0), "bias": Initial((width,))}
    block = {
        "norm1": norm,
        "qkv": initial_linear(width, 3 * width, std),
        "join": initial_linear(width, width, std * (2 * layers) ** -0.5),
        "norm2": norm,
        "up": initial_linear(width, 4 * width, std),
        "down": initial_linear(4 * width, width, std * (2 * layers) ** -0.5),
    }
    # Random biases: without them the layer norm after the embedding would reduce a return-to-go to its sign.
    inputs = {
        name: initial_linear(n, width, (3 * n) ** -0.5, (3 * n) ** -0.5)
        for name, n in (("rtg", 1), ("obs", n_obs), ("act", n_act))
    }
    time = {"time": Initial((max_time, width), 0.02)} if max_time else {}
    return {**inputs, **time, "norm": norm, "blocks": [block] * layers, "out": norm}


# The network -----------------------------------------------------------------------------------------------


def gpt(
    params: Params,
    rtg: jax.Array,
    obs: jax.Array,
    act: jax.Array,
    time: jax.Array,
    heads: int,
    out_tokens: slice = slice(None),
    dropout: float = 0.0,
    key: jax.Array | None = None,
    half: bool | None = False,
) -> jax.Array:
    """Return the network's outputs at the tokens `out_tokens`.

    The tokens of a step are its return-to-go, state and action, in this order. The last block computes `out_tokens`
    only, and tokens after the last of them are left out.

    Args:
        params: weights.
        rtg: scaled returns-to-go [..., K].
        obs: standardised observations [..., K, O].
        act: actions [..., K, A].
        time: index of each step in its trajectory, int32 [..., K].
        heads: attention heads.
        out_tokens: the tokens whose outputs are wanted.
        dropout: dropout rate.
        key: random key of dropout; None: no dropout.
        half: compute the blocks in bfloat16.

    Returns:
        Outputs [..., tokens, width] in float32.
    """
    n = range(3 * rtg.shape[-1])[out_tokens][-1] + 1
    # One seed for each dropout: after the embedding, and three in a block.
    seeds = None if key is None or not dropout else jax.random.bits(key, (1 + 3 * len(params["blocks"]),), jnp.uint32)

    x = _tokens(params, rtg, obs, act, time)[..., :n, :]
    x = _norm(params["norm"], x, jnp.bfloat16 if half else jnp.float32)
    x = _drop(x, dropout, None if seeds is None else seeds[0])
    h = _norm(params["blocks"][0]["norm1"], x, x.dtype)
    norms = [*(block["norm1"] for block in params["blocks"][1:]), params["out"]]
    for i, (block, norm) in enumerate(zip(params["blocks"], norms, strict=True)):
        own = None if seeds is None else seeds[3 * i + 1 : 3 * i + 4]
        last = i == len(norms) - 1
        x, h = _block(block, norm, x, h, heads, out_tokens if last else slice(None), dropout, own)
    return h.astype(jnp.float32)


def linear(layer: Params, x: jax.Array) -> jax.Array:
    """Apply a linear layer, with the weights of `initial_linear`, to x [..., I] in the precision of x."""
    y = x @ layer["w"].astype(x.dtype)
    # Biases are added in float32, so that their gradients, sums over thousands of tokens, are computed in float32.
    return (y.astype(jnp.float32) + layer["b"]).astype(x.dtype)


def _tokens(params: Params, rtg: jax.Array, obs: jax.Array, act: jax.Array, time: jax.Array) -> jax.Array:
    """Return the embedded tokens in the order of the sequence, [..., 3 K, width]."""
    tokens = [linear(params["rtg"], rtg[..., None]), linear(params["obs"], obs), linear(params["act"], act)]
    if "time" in params:
        time_embedding = jnp.take(params["time"], time, axis=0, mode="clip")
        tokens = [x + time_embedding for x in tokens]
    x = jnp.stack(tokens, axis=-2)
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _block(
    p: Params,
    norm: Params,
    x: jax.Array,
    h: jax.Array,
    heads: int,
    out_tokens: slice,
    dropout: float,
    seeds: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Apply a block: add attention and an MLP to the residual stream x [..., T, width], whose layer norm is h.

    Returns:
        The new stream at `out_tokens`, and its layer norm with the weights `norm` of the next layer.
    """
    s_weights, s_join, s_down = (None, None, None) if seeds is None else seeds
    mixed = _attend(p["qkv"], h, heads, out_tokens, dropout, s_weights)
    x = x[..., out_tokens, :]
    x, h = _add(p["join"], p["norm2"], x, mixed.reshape(x.shape), dropout, s_join)
    h = hidden(0.0, h @ p["up"]["w"].astype(h.dtype), p["up"]["b"], None)
    return _add(p["down"], norm, x, h, dropout, s_down)


def _add(
    layer: Params, norm: Params, x: jax.Array, h: jax.Array, dropout: float, seed: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Return x plus the dropped-out output of a linear layer for h, and the layer norm of this sum."""
    if fused := kernels.kernel_for("residual_norm.add_and_norm", x, x.dtype):
        return fused(x, h @ layer["w"].astype(h.dtype), layer["b"], norm, dropout, seed)
    x = x + _drop(linear(layer, h), dropout, seed)
    return x, _norm(norm, x, x.dtype)


def _attend(
    p: Params, h: jax.Array, heads: int, out_tokens: slice, dropout: float, seed: jax.Array | None
) -> jax.Array:
    """Return the causal attention [..., Q, heads, D] of the Q tokens `out_tokens` over h [..., T, width]."""
    width, position = h.shape[-1], np.arange(h.shape[-2])
    if out_tokens == slice(None):
        projections = [(p, h)]
    else:  # queries only of `out_tokens`
        queries, others = (jax.tree.map(lambda w, cut=cut: w[..., cut], p) for cut in np.s_[:width, width:])
        projections = [(queries, h[..., out_tokens, :]), (others, h)]
    if fused := kernels.kernel_for("attention.attention", width // heads, len(position), h.dtype):
        parts = tuple(_by_head(x @ layer["w"].astype(x.dtype), width, heads) for layer, x in projections)
        biases = tuple(_by_head(layer["b"], width, heads) for layer, _ in projections)
        return fused(parts, biases, out_tokens, dropout, seed)
    parts = [_by_head(linear(layer, x), width, heads) for layer, x in projections]
    q, k, v = (part[..., i, :, :] for part in parts for i in range(part.shape[-3]))
    return _attention(q, k, v, position[out_tokens][:, None] >= position, dropout, seed)


def _by_head(x: jax.Array, width: int, heads: int) -> jax.Array:
    """Split the last axis of x, n projections (queries, keys or values) end to end, into [..., n, heads, D]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // width, heads, width // heads)


def _attention(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: np.ndarray, dropout: float, seed: jax.Array | None
) -> jax.Array:
    """Return attention [..., Q, H, D] over keys and values [..., T, H, D]; mask [Q, T] is True where visible."""
    # The scores are cast after the product: a product in float32 would make those of the backward pass float32, too.
    scores = jnp.einsum("...qhd,...thd->...hqt", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)).astype(v.dtype)
    return jnp.einsum("...hqt,...thd->...qhd", _drop(weights, dropout, seed), v)


def _norm(p: Params, x: jax.Array, kind: Any) -> jax.Array:
    """Apply layer norm with gain and bias over the last axis; statistics are float32, the result is of type `kind`."""
    if fused := kernels.kernel_for("residual_norm.norm", x, kind):
        return fused(x, p)
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)
    return (y * p["gain"] + p["bias"]).astype(kind)


def _drop(x: jax.Array, rate: float, seed: jax.Array | None) -> jax.Array:
    """Apply dropout: zero a share `rate` of the elements and scale the others by 1 / (1 - rate). No seed: return x."""
    if seed is None:
        return x
    scaled = (x.astype(jnp.float32) / (1 - rate)).astype(x.dtype)
    return jnp.where(keep_mask(jax.lax.iota(jnp.uint32, x.size).reshape(x.shape), rate, seed), scaled, 0)
