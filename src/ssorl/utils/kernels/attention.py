"""GPU kernels for causal attention over short sequences: one block of threads computes one head of one sequence.

The kernels compute the same function as adding biases and calling `gpt._attention`, which writes scores and weights to
memory and transposes queries, keys, values and result. The kernels read queries, keys and values in the layout of the
projection, [..., T, 3, heads, D], and write the result in the layout that the next layer reads. The backward kernel
recomputes the attention weights, and each block writes its part of the biases' gradient; the parts are then summed in a
fixed order.

`ssorl.utils.kernels` decides when they are used. From JAX 0.11 on, Pallas warns that its Triton backend is deprecated.
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

from ssorl.utils.networks import keep_mask

MAX_TOKENS = 64  # the scores of more tokens would not fit into the registers
HEAD_SIZES = (16, 32, 64, 128)


@dataclass(frozen=True)
class Tune:
    """How the kernels run; it affects results only by rounding."""

    forward: int = 4  # warps of 32 threads in a block of the forward kernel; on an H200 eight took 1.5 times as long
    backward: int = 4  # warps in a block of the backward kernel
    interpret: bool = False  # run the kernels as plain JAX, for tests without a GPU


@dataclass(frozen=True)
class Shape:
    """The static sizes of one call."""

    batch: int
    heads: int
    size: int  # size of a head D
    queries: range  # positions of the tokens with a query
    tokens: int  # length of a sequence T
    dropout: float  # dropout rate; 0: no dropout
    tune: Tune

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows of queries and of keys in the kernel: powers of two, at least 16 as tensor cores require."""
        query_rows, key_rows = (max(16, pl.next_power_of_2(n)) for n in (len(self.queries), self.tokens))
        return query_rows, key_rows


def suits(size: int, tokens: int, kind: Any) -> bool:
    """Return whether the kernels support this attention.

    Args:
        size: size of a head.
        tokens: length of a sequence.
        kind: type of the activations.
    """
    return size in HEAD_SIZES and 0 < tokens <= MAX_TOKENS and kind == jnp.bfloat16


def attention(
    parts: tuple[jax.Array, ...],
    biases: tuple[jax.Array, ...],
    queries: slice = slice(None),
    dropout: float = 0.0,
    seed: jax.Array | None = None,
    tune: Tune | None = None,
) -> jax.Array:
    """Return the causal attention of Q tokens over their sequences of T tokens.

    Args:
        parts: queries, keys and values without their biases: one array [..., T, 3, heads, D] or, if only some tokens
            have a query, queries [..., Q, 1, heads, D] and the others [..., T, 2, heads, D].
        biases: biases of each part, with the same last three axes.
        queries: the tokens that have a query.
        dropout: dropout rate of the attention weights.
        seed: scalar uint32 seed of dropout, with the same mask as `gpt._drop`; None: no dropout.
        tune: how the kernels run.

    Returns:
        Values [..., Q, heads, D] in bfloat16.
    """
    lead, (tokens, _, heads, size) = parts[-1].shape[:-4], parts[-1].shape[-4:]
    flat = tuple(x.reshape(-1, *x.shape[-4:]) for x in parts)
    shape = Shape(
        len(flat[0]), heads, size, range(tokens)[queries], tokens, 0.0 if seed is None else dropout, tune or Tune()
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


def _attention_forward(shape: Shape, parts: Any, biases: Any, seed: jax.Array) -> tuple[jax.Array, Any]:
    return _attention(shape, parts, biases, seed), (parts, biases, seed)


def _attention_backward(shape: Shape, saved: Any, dmixed: jax.Array) -> tuple[Any, Any, None]:
    parts, biases, seed = saved
    outputs = [(jax.ShapeDtypeStruct(x.shape, x.dtype), spec) for x, spec in zip(parts, _specs(shape), strict=True)]
    for b in biases:
        like = jax.ShapeDtypeStruct((shape.batch, *b.shape), jnp.float32)
        outputs.append((like, _by_head(shape, len(b))))
    inputs = [(dmixed, _by_head(shape, shape.tiles[0]))]
    out = _call(_backward_kernel, shape, parts, biases, seed, inputs, outputs)
    return tuple(out[: len(parts)]), tuple(x.sum(0) for x in out[len(parts) :]), None


_attention.defvjp(_attention_forward, _attention_backward)


def _by_head(shape: Shape, rows: int) -> pl.BlockSpec:
    """Return the blocks of an array [batch, rows, heads, D]: one head of one sequence."""
    return pl.BlockSpec((None, rows, None, shape.size), lambda b, h: (b, 0, h, 0))


def _specs(shape: Shape) -> list[pl.BlockSpec]:
    """Return the blocks of the parts."""
    all_query, (query_rows, key_rows) = len(shape.queries) == shape.tokens, shape.tiles
    sizes = [(key_rows, 3)] if all_query else [(query_rows, 1), (key_rows, 2)]
    return [pl.BlockSpec((None, *size, None, shape.size), lambda b, h: (b, 0, 0, h, 0)) for size in sizes]


def _call(kernel: Any, shape: Shape, parts: Any, biases: Any, seed: jax.Array, inputs: Any, outputs: Any) -> Any:
    """Run a kernel on every head of every sequence; inputs are (array, blocks), outputs (shape, blocks)."""
    bias_specs = [pl.BlockSpec((len(b), None, shape.size), lambda b, h: (0, h, 0)) for b in biases]
    warps = shape.tune.forward if kernel is _forward_kernel else shape.tune.backward
    return pl.pallas_call(
        partial(kernel, shape),
        out_shape=[like for like, _ in outputs],
        out_specs=[spec for _, spec in outputs],
        in_specs=[pl.BlockSpec((1,), lambda b, h: (0,)), *_specs(shape), *bias_specs, *(spec for _, spec in inputs)],
        grid=(shape.batch, shape.heads),
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=shape.tune.interpret,
        name="attention" + kernel.__name__,
    )(seed, *parts, *biases, *(x for x, _ in inputs))


# Kernels ---------------------------------------------------------------------------------------------------


def _forward_kernel(shape: Shape, seed: Any, *refs: Any) -> None:
    *inputs, out = refs
    q, k, v = _load(shape, inputs)
    weights = _softmax(shape, q, k).astype(jnp.bfloat16)
    keep = _dropout_mask(shape, seed, weights.shape)
    mixed = _dot(_drop(shape, keep, weights).astype(jnp.bfloat16), v)
    triton.store(out, mixed.astype(jnp.bfloat16), mask=_inside(mixed.shape, len(shape.queries)))


def _backward_kernel(shape: Shape, seed: Any, *refs: Any) -> None:
    n = 1 if len(shape.queries) == shape.tokens else 2
    inputs, dmixed_ref, grads, sums = refs[: 2 * n], refs[2 * n], refs[2 * n + 1 : 3 * n + 1], refs[3 * n + 1 :]
    q, k, v = _load(shape, inputs)
    dmixed = triton.load(dmixed_ref, mask=_inside(dmixed_ref.shape, len(shape.queries)), other=0.0)
    weights = _softmax(shape, q, k)
    keep = _dropout_mask(shape, seed, weights.shape)

    def store(which: int, grad: jax.Array) -> None:
        """Store the gradient of queries, keys or values, and its sum over rows, the bias's gradient."""
        part, index, rows = _location(shape, which)
        triton.store(grads[part].at[:, jnp.int32(index), :], grad.astype(jnp.bfloat16), mask=_inside(grad.shape, rows))
        sums[part][index, :] = jnp.sum(grad, axis=0)

    store(2, _dot(_drop(shape, keep, weights.astype(jnp.bfloat16)).astype(jnp.bfloat16), dmixed, (0, 0)))
    dweights = _drop(shape, keep, _dot(dmixed, v, (1, 1)))
    dscores = weights * (dweights - jnp.sum(dweights * weights, axis=1, keepdims=True))
    dscores = (dscores * shape.size**-0.5).astype(jnp.bfloat16)
    store(0, _dot(dscores, k))
    store(1, _dot(dscores, q, (0, 0)))


def _location(shape: Shape, which: int) -> tuple[int, int, int]:
    """Return, for queries (0), keys (1) or values (2), the part, the index within it, and the number of rows."""
    if len(shape.queries) == shape.tokens:
        return 0, which, shape.tokens
    return (0, 0, len(shape.queries)) if which == 0 else (1, which - 1, shape.tokens)


def _load(shape: Shape, inputs: Any) -> list[jax.Array]:
    """Return queries, keys and values with their biases; rows beyond the array contain only the bias."""
    parts, biases, loaded = inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :], []
    for which in range(3):
        part, index, rows = _location(shape, which)
        ref = parts[part].at[:, jnp.int32(index), :]
        x = triton.load(ref, mask=_inside((parts[part].shape[0], shape.size), rows), other=0.0)
        loaded.append((x.astype(jnp.float32) + biases[part][index, :][None, :]).astype(jnp.bfloat16))
    return loaded


def _softmax(shape: Shape, q: jax.Array, k: jax.Array) -> jax.Array:
    """Return the attention weights in float32; rows beyond the array come later, so the causal mask covers them."""
    scores = _dot(q, k, (1, 1)) * shape.size**-0.5
    row, column = (lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
    scores = jnp.where(shape.queries.start + shape.queries.step * row >= column, scores, -jnp.inf)
    exp = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
    return exp / jnp.sum(exp, axis=1, keepdims=True)


def _dropout_mask(shape: Shape, seed: Any, size: tuple[int, ...]) -> jax.Array | None:
    """Return this block's part of the mask of `gpt._drop` for weights [batch, heads, Q, T]; None without dropout."""
    if not shape.dropout:
        return None
    row, column = (lax.broadcasted_iota(jnp.uint32, size, axis) for axis in (0, 1))
    head = (pl.program_id(0) * shape.heads + pl.program_id(1)).astype(jnp.uint32)
    number = (head * np.uint32(len(shape.queries)) + row) * np.uint32(shape.tokens) + column
    return keep_mask(number, shape.dropout, seed[0])


def _drop(shape: Shape, keep: jax.Array | None, x: jax.Array) -> jax.Array:
    """Apply dropout in float32."""
    x = x.astype(jnp.float32)
    return x if keep is None else jnp.where(keep, x / (1 - shape.dropout), 0.0)


def _dot(a: jax.Array, b: jax.Array, axes: tuple[int, int] = (1, 0)) -> jax.Array:
    """Return the product of two matrices, contracted over one axis of each, with float32 sums."""
    return lax.dot_general(a, b, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32)


def _inside(size: tuple[int, ...], rows: int) -> jax.Array | None:
    """Return the mask of a block's rows that are within the array; None if all are."""
    return lax.broadcasted_iota(jnp.int32, size, 0) < rows if rows < size[0] else None
