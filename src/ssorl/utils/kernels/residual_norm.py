"""GPU kernels for a residual connection followed by layer norm, one forward and one backward.

    stream' = stream + dropout(product + bias)        out = layer norm(stream')

XLA uses two kernels for this, and five or six with float32 copies of the stream for the gradients, because it cannot
sum over rows and over columns in one kernel. Here each block of threads holds whole rows on the chip. It writes the sum
over its rows of the gradients of gain and biases; these sums are then added in a fixed order. The backward pass needs
only the stream. There are also kernels for layer norm alone, which is applied to the embedding.

`ssorl.utils.kernels` decides when they are used.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ssorl.utils.networks import keep_mask

WIDTHS = (32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Tune:
    """How the kernels run; it affects results only by rounding."""

    rows: int = 16  # rows of a block of threads
    warps: int = 4  # warps of 32 threads in a block
    interpret: bool = False  # run the kernels as plain JAX, for tests without a GPU


@dataclass(frozen=True)
class Shape:
    """The static sizes of one call."""

    rows: int
    width: int
    dropout: float  # dropout rate; 0: no dropout
    tune: Tune


def suits(x: jax.Array, kind: Any) -> bool:
    """Return whether the kernels support a stream and a type.

    Args:
        x: the stream [..., width].
        kind: type of the norm's result.
    """
    return x.shape[-1] in WIDTHS and x.size > 0 and kind == jnp.bfloat16


def add_and_norm(
    stream: jax.Array,
    product: jax.Array,
    bias: jax.Array,
    norm: dict[str, jax.Array],
    dropout: float = 0.0,
    seed: jax.Array | None = None,
    tune: Tune | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the new stream and its layer norm, each [..., width] in bfloat16.

    Args:
        stream: residual stream [..., width].
        product: product of a layer's input and weights [..., width].
        bias: the layer's bias [width].
        norm: gain and bias of the layer norm, each [width].
        dropout: dropout rate.
        seed: scalar uint32 seed of dropout, with the same mask as `gpt._drop`; None: no dropout.
        tune: how the kernels run.
    """
    width = stream.shape[-1]
    shape = Shape(stream.size // width, width, 0.0 if seed is None else dropout, tune or Tune())
    seeds = jnp.zeros(1, jnp.uint32) if seed is None else seed.reshape(1)
    flat = (x.reshape(-1, width) for x in (stream, product))
    outputs: Any = _add_and_norm(shape, *flat, bias, norm["gain"], norm["bias"], seeds)
    new, out = (x.reshape(stream.shape) for x in outputs)
    return new, out


def norm(x: jax.Array, p: dict[str, jax.Array], tune: Tune | None = None) -> jax.Array:
    """Return the layer norm of x in bfloat16.

    Args:
        x: rows [..., width] in bfloat16 or float32.
        p: gain and bias, each [width].
        tune: how the kernels run.
    """
    shape = Shape(x.size // x.shape[-1], x.shape[-1], 0.0, tune or Tune())
    out: Any = _norm(shape, x.reshape(-1, shape.width), p["gain"], p["bias"])
    return out.reshape(x.shape)


# Derivatives -----------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_and_norm(shape: Shape, stream: Any, product: Any, bias: Any, gain: Any, offset: Any, seed: Any) -> Any:
    like = _like(shape, jnp.bfloat16)
    return _call(_forward_kernel, shape, [seed, bias, gain, offset], [stream, product], [like, like])


def _add_and_norm_forward(shape: Shape, *args: Any) -> tuple[Any, Any]:
    outputs: Any = _add_and_norm(shape, *args)
    return outputs, (outputs[0], args[3], args[5])


def _add_and_norm_backward(shape: Shape, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    (new, gain, seed), (dnew, dout) = saved, cotangents
    likes = [*[_like(shape, jnp.bfloat16)] * 2, _sums(shape, 3)]
    dstream, dproduct, sums = _call(_backward_kernel, shape, [seed, gain], [new, dnew, dout], likes)
    dgain, doffset, dbias = sums.sum(0)
    return dstream, dproduct, dbias, dgain, doffset, None


_add_and_norm.defvjp(_add_and_norm_forward, _add_and_norm_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm(shape: Shape, x: Any, gain: Any, offset: Any) -> Any:
    return _call(_norm_forward_kernel, shape, [gain, offset], [x], [_like(shape, jnp.bfloat16)])[0]


def _norm_forward(shape: Shape, x: Any, gain: Any, offset: Any) -> tuple[Any, Any]:
    return _norm(shape, x, gain, offset), (x, gain)


def _norm_backward(shape: Shape, saved: Any, dout: Any) -> tuple[Any, ...]:
    x, gain = saved
    dx, sums = _call(_norm_backward_kernel, shape, [gain], [x, dout], [_like(shape, x.dtype), _sums(shape, 2)])
    return dx, *sums.sum(0)


_norm.defvjp(_norm_forward, _norm_backward)


def _like(shape: Shape, kind: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((shape.rows, shape.width), kind)


def _sums(shape: Shape, n: int) -> jax.ShapeDtypeStruct:
    """Return the shape of n sums [width] for each tile of rows."""
    return jax.ShapeDtypeStruct((pl.cdiv(shape.rows, shape.tune.rows), n, shape.width), jnp.float32)


def _call(kernel: Any, shape: Shape, vectors: Any, arrays: Any, likes: Any) -> Any:
    """Run a kernel on every tile of rows; an output (`likes`) is [rows, width] or [tiles, ...]."""
    by_row = pl.BlockSpec((shape.tune.rows, shape.width), lambda t: (t, 0))
    by_tile = [pl.BlockSpec((None, *like.shape[1:]), lambda t: (t, 0, 0)) for like in likes]
    whole = [pl.BlockSpec(v.shape, lambda t: (0,)) for v in vectors]
    return pl.pallas_call(
        partial(kernel, shape),
        out_shape=list(likes),
        out_specs=[by_row if len(like.shape) == 2 else spec for like, spec in zip(likes, by_tile, strict=True)],
        in_specs=[*whole, *(by_row for _ in arrays)],
        grid=(pl.cdiv(shape.rows, shape.tune.rows),),
        compiler_params=triton.CompilerParams(num_warps=shape.tune.warps, num_stages=1),
        interpret=shape.tune.interpret,
        name="residual" + kernel.__name__,
    )(*vectors, *arrays)


# Kernels ---------------------------------------------------------------------------------------------------


def _forward_kernel(shape: Shape, seed: Any, bias: Any, gain: Any, offset: Any, *refs: Any) -> None:
    stream, product, new_ref, out_ref = refs
    update = (_load(shape, product) + bias[...][None, :]).astype(jnp.bfloat16)
    update = _drop(shape, seed, update.astype(jnp.float32)).astype(jnp.bfloat16)
    new = (_load(shape, stream) + update.astype(jnp.float32)).astype(jnp.bfloat16)
    _store(shape, new_ref, new)
    _store_norm(shape, new.astype(jnp.float32), gain, offset, out_ref)


def _backward_kernel(shape: Shape, seed: Any, gain: Any, *refs: Any) -> None:
    new, dnew, dout, dstream_ref, dproduct_ref, sums = refs
    dx = _norm_gradient(shape, new, gain, dout, sums)
    dstream = (_load(shape, dnew) + dx).astype(jnp.bfloat16)
    dproduct = _drop(shape, seed, dstream.astype(jnp.float32)).astype(jnp.bfloat16)
    _store(shape, dstream_ref, dstream)
    _store(shape, dproduct_ref, dproduct)
    sums[2, :] = jnp.sum(dproduct.astype(jnp.float32), axis=0)


def _norm_forward_kernel(shape: Shape, gain: Any, offset: Any, x: Any, out_ref: Any) -> None:
    _store_norm(shape, _load(shape, x), gain, offset, out_ref)


def _norm_backward_kernel(shape: Shape, gain: Any, x: Any, dout: Any, dx_ref: Any, sums: Any) -> None:
    _store(shape, dx_ref, _norm_gradient(shape, x, gain, dout, sums).astype(dx_ref.dtype))


def _store_norm(shape: Shape, x: jax.Array, gain: Any, offset: Any, out_ref: Any) -> None:
    x, _ = _standardise(shape, x)
    _store(shape, out_ref, (x * gain[...][None, :] + offset[...][None, :]).astype(jnp.bfloat16))


def _norm_gradient(shape: Shape, ref: Any, gain: Any, dout: Any, sums: Any) -> jax.Array:
    """Return the gradient of the norm's input; store those of gain and offset, summed over rows, in `sums`."""
    x, scale = _standardise(shape, _load(shape, ref))
    dy = _load(shape, dout)
    # Rows beyond the array have cotangents of 0.
    sums[0, :] = jnp.sum(dy * x, axis=0)
    sums[1, :] = jnp.sum(dy, axis=0)
    dx = dy * gain[...][None, :]
    return scale * (dx - _mean(shape, dx) - x * _mean(shape, dx * x))


def _standardise(shape: Shape, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return x with mean 0 and variance 1 in each row, and the factor of each row."""
    x = x - _mean(shape, x)
    scale = lax.rsqrt(_mean(shape, x * x) + 1e-5)
    return x * scale, scale


def _mean(shape: Shape, x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=1, keepdims=True) * (1 / shape.width)


def _drop(shape: Shape, seed: Any, x: jax.Array) -> jax.Array:
    if not shape.dropout:
        return x
    row, column = (lax.broadcasted_iota(jnp.uint32, x.shape, axis) for axis in (0, 1))
    row = row + (pl.program_id(0) * shape.tune.rows).astype(jnp.uint32)
    return jnp.where(
        keep_mask(row * jnp.uint32(shape.width) + column, shape.dropout, seed[0]), x / (1 - shape.dropout), 0.0
    )


def _load(shape: Shape, ref: Any) -> jax.Array:
    mask = _inside(shape)
    return triton.load(ref, mask=mask, other=None if mask is None else 0.0).astype(jnp.float32)


def _store(shape: Shape, ref: Any, value: jax.Array) -> None:
    triton.store(ref, value, mask=_inside(shape))


def _inside(shape: Shape) -> jax.Array | None:
    """Return the mask of a tile's rows that are within the array; None if all rows of all tiles are."""
    if shape.rows % shape.tune.rows == 0:
        return None
    row = lax.broadcasted_iota(jnp.int32, (shape.tune.rows, shape.width), 0)
    return row < shape.rows - pl.program_id(0) * shape.tune.rows
