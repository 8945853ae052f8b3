"""A GPT-2 over interleaved (return-to-go, state, action) tokens, as plain pytrees.

Causal blocks with the norm first. `half` computes the blocks in bfloat16; embeddings, the statistics of norms and the
softmax stay float32. Inputs may have any leading axes, or none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.utils import kernels
from ssorl.utils.networks import Params, coins, hidden

# Weights ---------------------------------------------------------------------------------------------------


class Draw(NamedTuple):
    """An array to be drawn from a normal distribution; with `std` 0 it is constant."""

    shape: tuple[int, ...]
    std: float = 0.0
    mean: float = 0.0


def draw(key: jax.Array, tree: Any) -> Params:
    """The arrays of a tree of `Draw`s, from one call of the generator: each call costs seconds to compile on a CPU."""
    draws, shape = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, Draw))
    sizes = [int(np.prod(d.shape)) if d.std else 0 for d in draws]
    parts = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    arrays = [
        d.mean + d.std * part.reshape(d.shape) if d.std else jnp.full(d.shape, d.mean, jnp.float32)
        for d, part in zip(draws, parts, strict=True)
    ]
    return jax.tree.unflatten(shape, arrays)


def linear_draws(n_in: int, n_out: int, std: float, offset: float = 0.0) -> dict[str, Draw]:
    """A linear layer; `offset` is the deviation of its biases."""
    return {"w": Draw((n_in, n_out), std), "b": Draw((n_out,), offset)}


def gpt_draws(n_obs: int, n_act: int, width: int, layers: int, max_time: int) -> dict[str, Any]:
    """The whole network; `max_time` 0 leaves the embedding of time out.

    As in GPT-2 the layers that end in the residual stream start smaller the more there are. Its deviation of 0.02 is
    kept at width 512 and grows as the layers get narrower, so that they start alike.
    """
    std = 0.45 * width**-0.5
    norm = {"gain": Draw((width,), mean=1.0), "bias": Draw((width,))}
    block = {
        "norm1": norm,
        "qkv": linear_draws(width, 3 * width, std),
        "join": linear_draws(width, width, std * (2 * layers) ** -0.5),
        "norm2": norm,
        "up": linear_draws(width, 4 * width, std),
        "down": linear_draws(4 * width, width, std * (2 * layers) ** -0.5),
    }
    # Without biases the norm would leave of a return-to-go its sign alone.
    inputs = {
        name: linear_draws(n, width, (3 * n) ** -0.5, (3 * n) ** -0.5)
        for name, n in (("rtg", 1), ("obs", n_obs), ("act", n_act))
    }
    time = {"time": Draw((max_time, width), 0.02)} if max_time else {}
    return {**inputs, **time, "norm": norm, "blocks": [block] * layers, "out": norm}


# The network -----------------------------------------------------------------------------------------------


def gpt(
    params: Params,
    rtg: jax.Array,
    obs: jax.Array,
    act: jax.Array,
    time: jax.Array,
    heads: int,
    ask: slice = slice(None),
    dropout: float = 0.0,
    key: jax.Array | None = None,
    half: bool | None = False,
) -> jax.Array:
    """What the network makes of rtg[..., K], obs[..., K, O], act[..., K, A], time[..., K] at the tokens `ask`.

    The tokens of a step are its return-to-go, state and action, in this order; the output is [..., tokens, width] in
    float32. The last block computes the tokens `ask` alone, and tokens after the last of them are left out.
    Without a key nothing is dropped.
    """
    n = range(3 * rtg.shape[-1])[ask][-1] + 1
    # One number a place where something is dropped: after the embedding, and three a block.
    seeds = None if key is None or not dropout else jax.random.bits(key, (1 + 3 * len(params["blocks"]),), jnp.uint32)

    x = _tokens(params, rtg, obs, act, time)[..., :n, :]
    x = _norm(params["norm"], x, jnp.bfloat16 if half else jnp.float32)
    x = _drop(x, dropout, None if seeds is None else seeds[0])
    h = _norm(params["blocks"][0]["norm1"], x, x.dtype)
    norms = [*(block["norm1"] for block in params["blocks"][1:]), params["out"]]
    for i, (block, norm) in enumerate(zip(params["blocks"], norms, strict=True)):
        own = None if seeds is None else seeds[3 * i + 1 : 3 * i + 4]
        last = i == len(norms) - 1
        x, h = _block(block, norm, x, h, heads, ask if last else slice(None), dropout, own)
    return h.astype(jnp.float32)


def linear(layer: Params, x: jax.Array) -> jax.Array:
    """`linear_draws` weights applied to x[..., I], in its precision."""
    y = x @ layer["w"].astype(x.dtype)
    # Biases are added in float32, so that their gradients, sums over thousands of tokens, are float32 too.
    return (y.astype(jnp.float32) + layer["b"]).astype(x.dtype)


def _tokens(params: Params, rtg: jax.Array, obs: jax.Array, act: jax.Array, time: jax.Array) -> jax.Array:
    """Embeddings in the order of the sequence, [..., 3 K, width]."""
    tokens = [linear(params["rtg"], rtg[..., None]), linear(params["obs"], obs), linear(params["act"], act)]
    if "time" in params:
        when = jnp.take(params["time"], time, axis=0, mode="clip")
        tokens = [x + when for x in tokens]
    x = jnp.stack(tokens, axis=-2)
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _block(
    p: Params,
    norm: Params,
    x: jax.Array,
    h: jax.Array,
    heads: int,
    ask: slice,
    dropout: float,
    seeds: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Attention and a two-layer network, each added to x[..., T, width], whose norm is h; the tokens `ask` come out.

    Beside them comes their norm, the one that whoever reads them next will want.
    """
    s_weights, s_join, s_down = (None, None, None) if seeds is None else seeds
    mixed = _attend(p["qkv"], h, heads, ask, dropout, s_weights)
    x = x[..., ask, :]
    x, h = _add(p["join"], p["norm2"], x, mixed.reshape(x.shape), dropout, s_join)
    h = hidden(0.0, h @ p["up"]["w"].astype(h.dtype), p["up"]["b"], None)
    return _add(p["down"], norm, x, h, dropout, s_down)


def _add(
    layer: Params, norm: Params, x: jax.Array, h: jax.Array, dropout: float, seed: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """What a layer makes of h, added to x; and the norm of that."""
    if fused := kernels.wanted("residual_norm.add_and_norm", x, x.dtype):
        return fused(x, h @ layer["w"].astype(h.dtype), layer["b"], norm, dropout, seed)
    x = x + _drop(linear(layer, h), dropout, seed)
    return x, _norm(norm, x, x.dtype)


def _attend(p: Params, h: jax.Array, heads: int, ask: slice, dropout: float, seed: jax.Array | None) -> jax.Array:
    """What the tokens `ask` of h[..., T, width] make of those before them, [..., Q, heads, D]."""
    width, place = h.shape[-1], np.arange(h.shape[-2])
    if ask == slice(None):
        given = [(p, h)]
    else:  # of the tokens that are not asked for, no query either
        queries, others = (jax.tree.map(lambda w, cut=cut: w[..., cut], p) for cut in np.s_[:width, width:])
        given = [(queries, h[..., ask, :]), (others, h)]
    if fused := kernels.wanted("attention.attention", width // heads, len(place), h.dtype):
        parts = tuple(_by_head(x @ layer["w"].astype(x.dtype), width, heads) for layer, x in given)
        return fused(parts, tuple(_by_head(layer["b"], width, heads) for layer, _ in given), ask, dropout, seed)
    parts = [_by_head(linear(layer, x), width, heads) for layer, x in given]
    q, k, v = (part[..., i, :, :] for part in parts for i in range(part.shape[-3]))
    return _attention(q, k, v, place[ask][:, None] >= place, dropout, seed)


def _by_head(x: jax.Array, width: int, heads: int) -> jax.Array:
    """Queries, keys or values, one after another in the last axis of x, as [..., n, heads, D]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // width, heads, width // heads)


def _attention(
    q: jax.Array, k: jax.Array, v: jax.Array, sees: np.ndarray, dropout: float, seed: jax.Array | None
) -> jax.Array:
    """Mixtures of v[..., T, H, D] for the queries [..., Q, H, D]; sees[Q, T] says which token sees which."""
    # Scores in float32 would draw the products of the backward pass into float32 too.
    scores = jnp.einsum("...qhd,...thd->...hqt", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(sees, scores, -jnp.inf)).astype(v.dtype)
    return jnp.einsum("...hqt,...thd->...qhd", _drop(weights, dropout, seed), v)


def _norm(p: Params, x: jax.Array, kind: Any) -> jax.Array:
    """Layer norm with gain and bias over the last axis, in this precision with statistics in float32."""
    if fused := kernels.wanted("residual_norm.norm", x, kind):
        return fused(x, p)
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)
    return (y * p["gain"] + p["bias"]).astype(kind)


def _drop(x: jax.Array, rate: float, seed: jax.Array | None) -> jax.Array:
    """Dropout: zeros at a share `rate` of the places, the rest grown to keep the mean. Without a seed, x itself."""
    if seed is None:
        return x
    grown = (x.astype(jnp.float32) / (1 - rate)).astype(x.dtype)
    return jnp.where(coins(jax.lax.iota(jnp.uint32, x.size).reshape(x.shape), rate, seed), grown, 0)
