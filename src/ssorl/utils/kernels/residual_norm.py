"""What stands between two products of a transformer, as one GPU kernel forward and one backward.

    stream' = stream + dropout(product + bias)        out = layer norm(stream')

XLA takes two kernels for this, and five or six with float32 copies of the stream for its gradients, because it cannot
sum over rows and over columns at once. Here each block of threads has whole rows on the chip; of the gradients of gain
and biases it writes the sum of its rows, and the sums are summed in a fixed order. Nothing is kept for the backward
pass but the stream itself. The norm alone, for what enters the first block, likewise.

When it is used: `ssorl.utils.kernels`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ssorl.utils.networks import coins

WIDTHS = (32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Tune:
    """How the kernels are run; none of it changes the result beyond rounding."""

    rows: int = 16  # a block of threads works on
    warps: int = 4  # of 32 threads, a block
    interpret: bool = False  # as plain JAX: for tests without a GPU


@dataclass(frozen=True)
class Shape:
    """The static sizes of one call."""

    rows: int
    width: int
    dropout: float  # 0: none
    tune: Tune


def suits(x: jax.Array, kind: Any) -> bool:
    """Whether the kernels know streams such as x[..., width], and norms of this precision."""
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
    """The new stream [..., width] and its norm, both in bfloat16; with a seed by the coins of `gpt._drop`."""
    width = stream.shape[-1]
    shape = Shape(stream.size // width, width, 0.0 if seed is None else dropout, tune or Tune())
    seeds = jnp.zeros(1, jnp.uint32) if seed is None else seed.reshape(1)
    flat = (x.reshape(-1, width) for x in (stream, product))
    found: Any = _add_and_norm(shape, *flat, bias, norm["gain"], norm["bias"], seeds)
    new, out = (x.reshape(stream.shape) for x in found)
    return new, out


def norm(x: jax.Array, p: dict[str, jax.Array], tune: Tune | None = None) -> jax.Array:
    """The norm of x[..., width] in bfloat16; x may be float32."""
    shape = Shape(x.size // x.shape[-1], x.shape[-1], 0.0, tune or Tune())
    out: Any = _norm(shape, x.reshape(-1, shape.width), p["gain"], p["bias"])
    return out.reshape(x.shape)


# Derivatives -----------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_and_norm(shape: Shape, stream: Any, product: Any, bias: Any, gain: Any, offset: Any, seed: Any) -> Any:
    like = _like(shape, jnp.bfloat16)
    return _call(_forward_kernel, shape, [seed, bias, gain, offset], [stream, product], [like, like])


def _ahead(shape: Shape, *args: Any) -> tuple[Any, Any]:
    found: Any = _add_and_norm(shape, *args)
    return found, (found[0], args[3], args[5])


def _back(shape: Shape, kept: Any, given: Any) -> tuple[Any, ...]:
    (new, gain, seed), (dnew, dout) = kept, given
    likes = [*[_like(shape, jnp.bfloat16)] * 2, _sums(shape, 3)]
    dstream, dproduct, sums = _call(_backward_kernel, shape, [seed, gain], [new, dnew, dout], likes)
    dgain, doffset, dbias = sums.sum(0)
    return dstream, dproduct, dbias, dgain, doffset, None


_add_and_norm.defvjp(_ahead, _back)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm(shape: Shape, x: Any, gain: Any, offset: Any) -> Any:
    return _call(_norm_forward_kernel, shape, [gain, offset], [x], [_like(shape, jnp.bfloat16)])[0]


def _norm_ahead(shape: Shape, x: Any, gain: Any, offset: Any) -> tuple[Any, Any]:
    return _norm(shape, x, gain, offset), (x, gain)


def _norm_back(shape: Shape, kept: Any, dout: Any) -> tuple[Any, ...]:
    x, gain = kept
    dx, sums = _call(_norm_backward_kernel, shape, [gain], [x, dout], [_like(shape, x.dtype), _sums(shape, 2)])
    return dx, *sums.sum(0)


_norm.defvjp(_norm_ahead, _norm_back)


def _like(shape: Shape, kind: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((shape.rows, shape.width), kind)


def _sums(shape: Shape, n: int) -> jax.ShapeDtypeStruct:
    """Of each tile, n of them."""
    return jax.ShapeDtypeStruct((pl.cdiv(shape.rows, shape.tune.rows), n, shape.width), jnp.float32)


def _call(kernel: Any, shape: Shape, vectors: Any, arrays: Any, likes: Any) -> Any:
    """Run one block of threads a tile of rows; the likes are [rows, width] or a tile each."""
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
    more = (_load(shape, product) + bias[...][None, :]).astype(jnp.bfloat16)
    more = _dropped(shape, seed, more.astype(jnp.float32)).astype(jnp.bfloat16)
    new = (_load(shape, stream) + more.astype(jnp.float32)).astype(jnp.bfloat16)
    _store(shape, new_ref, new)
    _give_norm(shape, new.astype(jnp.float32), gain, offset, out_ref)


def _backward_kernel(shape: Shape, seed: Any, gain: Any, *refs: Any) -> None:
    new, dnew, dout, dstream_ref, dproduct_ref, sums = refs
    dx = _back_through_norm(shape, new, gain, dout, sums)
    dstream = (_load(shape, dnew) + dx).astype(jnp.bfloat16)
    dproduct = _dropped(shape, seed, dstream.astype(jnp.float32)).astype(jnp.bfloat16)
    _store(shape, dstream_ref, dstream)
    _store(shape, dproduct_ref, dproduct)
    sums[2, :] = jnp.sum(dproduct.astype(jnp.float32), axis=0)


def _norm_forward_kernel(shape: Shape, gain: Any, offset: Any, x: Any, out_ref: Any) -> None:
    _give_norm(shape, _load(shape, x), gain, offset, out_ref)


def _norm_backward_kernel(shape: Shape, gain: Any, x: Any, dout: Any, dx_ref: Any, sums: Any) -> None:
    _store(shape, dx_ref, _back_through_norm(shape, x, gain, dout, sums).astype(dx_ref.dtype))


def _give_norm(shape: Shape, x: jax.Array, gain: Any, offset: Any, out_ref: Any) -> None:
    x, _ = _standardised(shape, x)
    _store(shape, out_ref, (x * gain[...][None, :] + offset[...][None, :]).astype(jnp.bfloat16))


def _back_through_norm(shape: Shape, ref: Any, gain: Any, dout: Any, sums: Any) -> jax.Array:
    """The cotangent of what the norm was given; the first two sums are those of gain and offset."""
    x, scale = _standardised(shape, _load(shape, ref))
    dy = _load(shape, dout)
    # Rows that do not exist have cotangents of 0.
    sums[0, :] = jnp.sum(dy * x, axis=0)
    sums[1, :] = jnp.sum(dy, axis=0)
    dx = dy * gain[...][None, :]
    return scale * (dx - _mean(shape, dx) - x * _mean(shape, dx * x))


def _standardised(shape: Shape, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean 0 and variance 1 in each row, and by what it was multiplied for that."""
    x = x - _mean(shape, x)
    scale = lax.rsqrt(_mean(shape, x * x) + 1e-5)
    return x * scale, scale


def _mean(shape: Shape, x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=1, keepdims=True) * (1 / shape.width)


def _dropped(shape: Shape, seed: Any, x: jax.Array) -> jax.Array:
    if not shape.dropout:
        return x
    row, column = (lax.broadcasted_iota(jnp.uint32, x.shape, axis) for axis in (0, 1))
    row = row + (pl.program_id(0) * shape.tune.rows).astype(jnp.uint32)
    return jnp.where(
        coins(row * jnp.uint32(shape.width) + column, shape.dropout, seed[0]), x / (1 - shape.dropout), 0.0
    )


def _load(shape: Shape, ref: Any) -> jax.Array:
    mask = _inside(shape)
    return triton.load(ref, mask=mask, other=None if mask is None else 0.0).astype(jnp.float32)


def _store(shape: Shape, ref: Any, value: jax.Array) -> None:
    triton.store(ref, value, mask=_inside(shape))


def _inside(shape: Shape) -> jax.Array | None:
    """Which rows of a tile exist; None where all do in every tile."""
    if shape.rows % shape.tune.rows == 0:
        return None
    row = lax.broadcasted_iota(jnp.int32, (shape.tune.rows, shape.width), 0)
    return row < shape.rows - pl.program_id(0) * shape.tune.rows
