"""Causal attention over short sequences as GPU kernels: one block of threads has all of a sequence's head on the chip.

The same function as `gpt._attention` after the bias of its projection, which writes scores and weights to memory and
turns queries, keys, values and result about. Here they are read as the projection wrote them, [..., T, 3, heads, D],
and the result is written as the next layer reads it. Backward the weights are made again, and each block adds up its
part of the bias's gradient; the parts are summed in a fixed order.

When it is used: `ssorl.utils.kernels`. From JAX 0.11 on, Pallas warns that it will give up its Triton backend.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ssorl.utils.networks import coins

MOST_TOKENS = 64  # scores of more would not fit in the registers
SIZES = (16, 32, 64, 128)  # of a head


@dataclass(frozen=True)
class Tune:
    """How the kernels are run; none of it changes the result beyond rounding."""

    forward: int = 4  # warps of 32 threads, a block; on an H200 eight took half as long again
    backward: int = 4
    interpret: bool = False  # as plain JAX: for tests without a GPU


@dataclass(frozen=True)
class Shape:
    """The static sizes of one call."""

    batch: int
    heads: int
    size: int  # of a head
    queries: range  # the places of the tokens that ask
    tokens: int
    dropout: float  # 0: none
    tune: Tune

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows of queries and of keys in the kernel: tensor cores want 16 or more."""
        some, every = (max(16, pl.next_power_of_2(n)) for n in (len(self.queries), self.tokens))
        return some, every


def suits(size: int, tokens: int, kind: Any) -> bool:
    """Whether the kernels know heads of this size and so many tokens."""
    return size in SIZES and 0 < tokens <= MOST_TOKENS and kind == jnp.bfloat16


def attention(
    parts: tuple[jax.Array, ...],
    biases: tuple[jax.Array, ...],
    ask: slice = slice(None),
    dropout: float = 0.0,
    seed: jax.Array | None = None,
    tune: Tune | None = None,
) -> jax.Array:
    """What the tokens `ask` see, [..., Q, heads, D] in bfloat16.

    `parts` are queries, keys and values without their bias: one array [..., T, 3, heads, D] or, where not all tokens
    ask, queries [..., Q, 1, heads, D] and the rest [..., T, 2, heads, D]. `biases` have the same last three axes. With
    a seed, weights are dropped by the coins of `gpt._drop`.
    """
    lead, (tokens, _, heads, size) = parts[-1].shape[:-4], parts[-1].shape[-4:]
    flat = tuple(x.reshape(-1, *x.shape[-4:]) for x in parts)
    shape = Shape(
        len(flat[0]), heads, size, range(tokens)[ask], tokens, 0.0 if seed is None else dropout, tune or Tune()
    )
    seeds = jnp.zeros(1, jnp.uint32) if seed is None else seed.reshape(1)
    mixed: jax.Array = _attention(shape, flat, biases, seeds)
    return mixed.reshape(*lead, *mixed.shape[1:])


# Derivatives -----------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(shape: Shape, parts: Any, biases: Any, seed: jax.Array) -> jax.Array:
    like = jax.ShapeDtypeStruct((shape.batch, len(shape.queries), shape.heads, shape.size), jnp.bfloat16)
    spec = _by_head(shape, shape.tiles[0])
    return _call(_forward_kernel, shape, parts, biases, seed, [], [(like, spec)])[0]


def _ahead(shape: Shape, parts: Any, biases: Any, seed: jax.Array) -> tuple[jax.Array, Any]:
    return _attention(shape, parts, biases, seed), (parts, biases, seed)


def _back(shape: Shape, kept: Any, dmixed: jax.Array) -> tuple[Any, Any, None]:
    parts, biases, seed = kept
    outputs = [(jax.ShapeDtypeStruct(x.shape, x.dtype), spec) for x, spec in zip(parts, _specs(shape), strict=True)]
    for b in biases:
        like = jax.ShapeDtypeStruct((shape.batch, *b.shape), jnp.float32)
        outputs.append((like, _by_head(shape, len(b))))
    given = [(dmixed, _by_head(shape, shape.tiles[0]))]
    out = _call(_backward_kernel, shape, parts, biases, seed, given, outputs)
    return tuple(out[: len(parts)]), tuple(x.sum(0) for x in out[len(parts) :]), None


_attention.defvjp(_ahead, _back)


def _by_head(shape: Shape, rows: int) -> pl.BlockSpec:
    """Of an array [batch, rows, heads, D]."""
    return pl.BlockSpec((None, rows, None, shape.size), lambda b, h: (b, 0, h, 0))


def _specs(shape: Shape) -> list[pl.BlockSpec]:
    """Of the parts."""
    whole, (some, every) = len(shape.queries) == shape.tokens, shape.tiles
    cuts = [(every, 3)] if whole else [(some, 1), (every, 2)]
    return [pl.BlockSpec((None, *cut, None, shape.size), lambda b, h: (b, 0, 0, h, 0)) for cut in cuts]


def _call(kernel: Any, shape: Shape, parts: Any, biases: Any, seed: jax.Array, more: Any, outputs: Any) -> Any:
    """Run one block of threads a sequence and head; `more` and `outputs` are arrays or their likes, with their cuts."""
    of_bias = [pl.BlockSpec((len(b), None, shape.size), lambda b, h: (0, h, 0)) for b in biases]
    warps = shape.tune.forward if kernel is _forward_kernel else shape.tune.backward
    return pl.pallas_call(
        partial(kernel, shape),
        out_shape=[like for like, _ in outputs],
        out_specs=[spec for _, spec in outputs],
        in_specs=[pl.BlockSpec((1,), lambda b, h: (0,)), *_specs(shape), *of_bias, *(spec for _, spec in more)],
        grid=(shape.batch, shape.heads),
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=shape.tune.interpret,
        name="attention" + kernel.__name__,
    )(seed, *parts, *biases, *(x for x, _ in more))


# Kernels ---------------------------------------------------------------------------------------------------


def _forward_kernel(shape: Shape, seed: Any, *refs: Any) -> None:
    *given, out = refs
    q, k, v = _load(shape, given)
    weights = _softmax(shape, q, k).astype(jnp.bfloat16)
    kept = _kept(shape, seed, weights.shape)
    mixed = _dot(_grown(shape, kept, weights).astype(jnp.bfloat16), v)
    triton.store(out, mixed.astype(jnp.bfloat16), mask=_inside(mixed.shape, len(shape.queries)))


def _backward_kernel(shape: Shape, seed: Any, *refs: Any) -> None:
    n = 1 if len(shape.queries) == shape.tokens else 2
    given, dmixed_ref, grads, sums = refs[: 2 * n], refs[2 * n], refs[2 * n + 1 : 3 * n + 1], refs[3 * n + 1 :]
    q, k, v = _load(shape, given)
    dmixed = triton.load(dmixed_ref, mask=_inside(dmixed_ref.shape, len(shape.queries)), other=0.0)
    weights = _softmax(shape, q, k)
    kept = _kept(shape, seed, weights.shape)

    def give(which: int, grad: jax.Array) -> None:
        """Of queries, keys or values; and its sum, for the bias."""
        part, place, rows = _where(shape, which)
        triton.store(grads[part].at[:, jnp.int32(place), :], grad.astype(jnp.bfloat16), mask=_inside(grad.shape, rows))
        sums[part][place, :] = jnp.sum(grad, axis=0)

    give(2, _dot(_grown(shape, kept, weights.astype(jnp.bfloat16)).astype(jnp.bfloat16), dmixed, (0, 0)))
    dweights = _grown(shape, kept, _dot(dmixed, v, (1, 1)))
    dscores = weights * (dweights - jnp.sum(dweights * weights, axis=1, keepdims=True))
    dscores = (dscores * shape.size**-0.5).astype(jnp.bfloat16)
    give(0, _dot(dscores, k))
    give(1, _dot(dscores, q, (0, 0)))


def _where(shape: Shape, which: int) -> tuple[int, int, int]:
    """The part and the place in it where queries (0), keys or values are, and how many rows they have."""
    if len(shape.queries) == shape.tokens:
        return 0, which, shape.tokens
    return (0, 0, len(shape.queries)) if which == 0 else (1, which - 1, shape.tokens)


def _load(shape: Shape, given: Any) -> list[jax.Array]:
    """Queries, keys and values with their bias; rows that do not exist are the bias alone."""
    parts, biases, found = given[: len(given) // 2], given[len(given) // 2 :], []
    for which in range(3):
        part, place, rows = _where(shape, which)
        ref = parts[part].at[:, jnp.int32(place), :]
        x = triton.load(ref, mask=_inside((parts[part].shape[0], shape.size), rows), other=0.0)
        found.append((x.astype(jnp.float32) + biases[part][place, :][None, :]).astype(jnp.bfloat16))
    return found


def _softmax(shape: Shape, q: jax.Array, k: jax.Array) -> jax.Array:
    """The weights, in float32. No query sees a row that does not exist, for all of those come later."""
    scores = _dot(q, k, (1, 1)) * shape.size**-0.5
    row, column = (lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
    scores = jnp.where(shape.queries.start + shape.queries.step * row >= column, scores, -jnp.inf)
    grown = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
    return grown / jnp.sum(grown, axis=1, keepdims=True)


def _kept(shape: Shape, seed: Any, size: tuple[int, ...]) -> jax.Array | None:
    """The coins of `gpt._drop` for weights [batch, heads, Q, T]."""
    if not shape.dropout:
        return None
    row, column = (lax.broadcasted_iota(jnp.uint32, size, axis) for axis in (0, 1))
    head = (pl.program_id(0) * shape.heads + pl.program_id(1)).astype(jnp.uint32)
    number = (head * np.uint32(len(shape.queries)) + row) * np.uint32(shape.tokens) + column
    return coins(number, shape.dropout, seed[0])


def _grown(shape: Shape, kept: jax.Array | None, x: jax.Array) -> jax.Array:
    """Dropout in float32."""
    x = x.astype(jnp.float32)
    return x if kept is None else jnp.where(kept, x / (1 - shape.dropout), 0.0)


def _dot(a: jax.Array, b: jax.Array, over: tuple[int, int] = (1, 0)) -> jax.Array:
    """The product of two matrices over these axes, with float32 sums."""
    return lax.dot_general(a, b, (((over[0],), (over[1],)), ((), ())), preferred_element_type=jnp.float32)


def _inside(size: tuple[int, ...], rows: int) -> jax.Array | None:
    """Which rows of a block exist; None where all do."""
    return lax.broadcasted_iota(jnp.int32, size, 0) < rows if rows < size[0] else None
