"""The kernels of `ssorl.utils.kernels.mlp`: the computations of one block of threads on its rows."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

MAX_OUTPUTS = 16


@dataclass(frozen=True)
class Cut:
    """How a kernel divides its work; it affects results only by rounding."""

    tile: int = 128  # rows that a block of threads processes at a time
    chunk: int = 64  # columns of hidden layers 1 and 3 at a time
    warps: int = 8  # warps of 32 threads in a block; each takes 16 rows, so more than tile / 16 would duplicate work
    stages: int = 2  # buffers for chunks of weights, which are fetched while others are used
    steps: int = 1  # tiles of a block, in sequence; only `sweep_kernel` supports more than one


@dataclass(frozen=True)
class Tune:
    """The cut of each kernel; the defaults were fastest for both networks of benchmarks/fused.py on an H200."""

    forward: Cut = Cut(tile=64, warps=4, stages=3)
    weights: Cut = Cut(stages=3)  # gradients of weights and inputs, or of weights without a sweep
    inputs: Cut = Cut(tile=64, warps=4)  # gradients of inputs only
    # Sweeps for gradients of weights only, with two and with three hidden layers. Each block writes sums of 256 by 256
    # weights: with few steps there are many sums to add, with many steps few blocks. `steps` is the minimum, see
    # `mlp._sweep_shape`.
    two: Cut = Cut(tile=32, chunk=128, stages=3, steps=40)
    three: Cut = Cut(tile=64, chunk=128, stages=3, steps=20)
    units: int = 132  # multiprocessors of the GPU; each has registers for one block of a sweep
    interpret: bool = False  # run the kernels as plain JAX, for tests without a GPU


@dataclass(frozen=True)
class Shape:
    """The static sizes of one kernel call."""

    rows: int
    n_in: int
    n_out: int
    hidden: int
    three: bool  # three hidden layers instead of two
    cut: Cut

    @property
    def block(self) -> int:
        """Rows of a block of threads."""
        return self.cut.tile * self.cut.steps

    @property
    def wide_in(self) -> int:
        """Columns of the input in the kernel: at least 16 for the tensor cores, with a column of ones for the bias."""
        return max(16, pl.next_power_of_2(self.n_in + 1))

    @property
    def wide_dy(self) -> int:
        """Columns of the cotangent in the kernel, which has three terms, see `mlp._backward`."""
        return max(16, pl.next_power_of_2(3 * self.n_out))

    @property
    def narrow(self) -> bool:
        """Whether inputs and cotangents are narrow enough for kernels that need much shared memory."""
        return self.wide_in + self.wide_dy <= 64


# Kernels ---------------------------------------------------------------------------------------------------


def forward_kernel(shape: Shape, x_ref: Any, w1: Any, w2: Any, b2: Any, *refs: Any) -> None:
    """Apply all layers to a tile of rows; also write layer 2 if it is an output, for a gradient.

    Args:
        shape: static sizes.
        x_ref: inputs.
        w1: weights and bias of hidden layer 1.
        w2: weights of hidden layer 2.
        b2: bias of hidden layer 2.
        *refs: weights and bias of a hidden layer 3, the split weights of the last layer, and the outputs.
    """
    *third, high, low, out = refs
    # The remaining rows, computed outside of loops because the interpreter does not support program_id within them.
    left = shape.rows - pl.program_id(0) * shape.cut.tile
    x = _load_input(shape, left, x_ref)
    h2 = _chunks(shape, lambda at, total: total + _dot(_relu(_dot(x, w1[:, at])), w2[at, :]), shape.hidden)
    h2 = _relu(h2 + b2[...])
    if "h2" in out:
        _store(shape, left, out["h2"], h2)

    def top(at: Any, total: jax.Array) -> jax.Array:
        w3, b3 = third
        h3 = _relu(_dot(h2, w3[:, at]) + b3[:, at])
        return total + _dot(h3, high[at, :]) + _dot(h3, low[at, :])

    y = _chunks(shape, top, MAX_OUTPUTS) if shape.three else _dot(h2, high[...]) + _dot(h2, low[...])
    triton.store(out["y"], y, mask=_inside(left, y.shape, shape.n_out))


def backward_kernel(shape: Shape, x_ref: Any, dy_ref: Any, h2: Any, w1: Any, w2: Any, b2: Any, *refs: Any) -> None:
    """Back-propagate a tile of rows, as far as the outputs need it.

    Args:
        shape: static sizes.
        x_ref: inputs.
        dy_ref: cotangents.
        h2: hidden layer 2 of the forward pass.
        w1: weights and bias of hidden layer 1.
        w2: weights of hidden layer 2.
        b2: bias of hidden layer 2, which is not used.
        *refs: weights and bias of a hidden layer 3, the weights of the last layer, and the outputs.
    """
    *third, last, out = refs
    weights, inputs = "last" in out, "dx" in out
    left = shape.rows - pl.program_id(0) * shape.cut.tile
    x = _load_input(shape, left, x_ref)
    dy = _load_cotangent(shape, left, dy_ref)

    def back(name: str, at: Any, h: jax.Array, dh: jax.Array) -> jax.Array:
        """Return the cotangent before the ReLU for columns of layer 2 or 3; write it and the sum of the bias."""
        dz = _relu_gradient(h, dh)
        if weights:
            _store(shape, left, out["dz" + name].at[:, at], dz)
            out["b" + name][at] = _ones_column(shape, _dot(dz, x, (0, 0)))
        return dz

    def last_hidden(name: str, at: Any, h: jax.Array) -> jax.Array:
        if weights:
            out["last"][at, :] = _dot(h, dy, (0, 0))
        return back(name, at, h, _dot(dy, last[:, at]))

    def top(at: Any, total: jax.Array) -> jax.Array:
        w3, b3 = third
        w = w3[:, at]
        return total + _dot(last_hidden("3", at, _relu(_dot(h, w) + b3[:, at])), w, (1, 1))

    h, everything = _load(shape, left, h2), pl.ds(0, shape.hidden)
    if shape.three:  # h2 is loaded again, because the registers have no room to hold it during the loop
        dh2 = _chunks(shape, top, shape.hidden)
        dz2 = back("2", everything, _load(shape, left, h2), dh2)
    else:
        dz2 = last_hidden("2", everything, h)

    def bottom(at: Any, total: jax.Array) -> jax.Array:
        w = w1[:, at]
        h1 = _relu(_dot(x, w))
        dz = _relu_gradient(h1, _dot(dz2, w2[at, :], (1, 1)))
        if weights:
            _store(shape, left, out["h1"].at[:, at], h1)
            out["first"][at, :] = _dot(dz, x, (0, 0))
        return total + _dot(dz, w, (1, 1)) if inputs else total

    if not inputs and "first" not in out:  # a sweep computes the rest
        return
    dx = _chunks(shape, bottom, shape.wide_in)
    if inputs:
        triton.store(out["dx"], dx, mask=_inside(left, dx.shape, shape.n_in))


def sweep_kernel(shape: Shape, *refs: Any) -> None:
    """Sum gradients of weights over the tiles of a block; each block handles some columns of hidden layer 1.

    With two hidden layers this is the whole backward pass, and no array with all rows is written: layer 1 and the
    cotangent of layer 2 are recomputed, at a sixteenth of the cost of a product of 256 by 256. With three hidden layers
    it is the lower half of the backward pass, and the cotangent of layer 2 is read. Layer 1 and its cotangent are
    computed as [columns, rows], because as left factors they can stay in the registers.

    Args:
        shape: static sizes.
        *refs: inputs, then (with two hidden layers) cotangents, hidden layer 2 and the last layer's weights, or (with
            three) the cotangent of layer 2; the weights of hidden layers 1 and 2; the outputs.
    """
    x_ref, *upper, w1, w2, out = refs
    total_left = shape.rows - pl.program_id(0) * shape.block
    part = pl.ds(pl.program_id(1) * shape.cut.chunk, shape.cut.chunk)
    w1, w2 = w1[:, part], w2[part, :]
    last = [] if shape.three else [upper[2][...], upper[2][:, part]]

    def step(i: jax.Array, sums: dict[str, jax.Array]) -> dict[str, jax.Array]:
        left, rows = total_left - i * shape.cut.tile, pl.ds(i * shape.cut.tile, shape.cut.tile)
        x, new = _load_input(shape, left, x_ref.at[rows, :]), {}
        if shape.three:
            dz2 = _load(shape, left, upper[0].at[rows, :])
        else:
            dy = _load_cotangent(shape, left, upper[0].at[rows, :])
            h2, h2_part = (_load(shape, left, upper[1].at[rows, columns]) for columns in (slice(None), part))
            dz2 = _relu_gradient(h2, _dot(dy, last[0]))
            new["last"] = _dot(h2_part, dy, (0, 0))
            new["b2"] = _dot(_relu_gradient(h2_part, _dot(dy, last[1])), x, (0, 0))
        h1 = _relu(_dot(w1, x, (0, 1)))
        new["w2"] = _dot(h1, dz2)
        new["first"] = _dot(_relu_gradient(h1, _dot(w2, dz2, (1, 1))), x)
        return {name: sums[name] + new[name] for name in sums}

    wide = {"w2": shape.hidden, "first": shape.wide_in, "last": shape.wide_dy, "b2": shape.wide_in}
    zeros = {name: jnp.zeros((shape.cut.chunk, wide[name]), jnp.float32) for name in out}
    sums = lax.fori_loop(0, shape.cut.steps, step, zeros)
    for name, total in sums.items():
        if name == "b2":
            out[name][part] = _ones_column(shape, total)
        else:
            out[name][part, :] = total


def _ones_column(shape: Shape, product: jax.Array) -> jax.Array:
    """Return sums over rows: the column of a product with the input that belongs to the input's column of ones."""
    ones = lax.broadcasted_iota(jnp.int32, product.shape, 1) == shape.n_in
    return jnp.sum(jnp.where(ones, product, 0.0), axis=1)


def _dot(a: jax.Array, b: jax.Array, axes: tuple[int, int] = (1, 0)) -> jax.Array:
    """Return the product of two matrices, contracted over one axis of each, with float32 sums."""
    return lax.dot_general(a, b, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32)


def _relu(x: jax.Array) -> jax.Array:
    """Apply ReLU and cast to bfloat16. A maximum on a GPU would turn NaN into 0, which would hide a failed training."""
    return jnp.where(x < 0, 0.0, x).astype(jnp.bfloat16)


def _relu_gradient(h: jax.Array, dh: jax.Array) -> jax.Array:
    """Return the cotangent before a ReLU, given its output and the cotangent after it."""
    # A product instead of `where`: with `where` ptxas splits and serialises the sums of the two preceding products.
    return dh.astype(jnp.bfloat16) * jnp.where(h > 0, jnp.bfloat16(1), jnp.bfloat16(0))


def _chunks(shape: Shape, body: Any, columns: int) -> jax.Array:
    """Return the sum [tile, columns] that body(chunk, sum) accumulates over the chunks of a hidden layer."""
    n, zero = shape.cut.chunk, jnp.zeros((shape.cut.tile, columns), jnp.float32)
    return lax.fori_loop(0, shape.hidden // n, lambda c, total: body(pl.ds(c * n, n), total), zero)


def _inside(left: jax.Array, size: tuple[int, ...], columns: int) -> jax.Array:
    """Return the mask of a block's rows and columns that are within the array."""
    row, column = (lax.broadcasted_iota(jnp.int32, size, axis) for axis in (0, 1))
    return (row < left) & (column < columns)


def _load_input(shape: Shape, left: jax.Array, x_ref: Any) -> jax.Array:
    """Load the input in bfloat16, followed by a column of ones and columns of zeros."""
    x = triton.load(x_ref, mask=_inside(left, x_ref.shape, shape.n_in), other=0.0)
    column = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return jnp.where(column == shape.n_in, 1.0, x).astype(jnp.bfloat16)


def _load_cotangent(shape: Shape, left: jax.Array, ref: Any) -> jax.Array:
    return triton.load(ref, mask=_inside(left, ref.shape, shape.wide_dy), other=0.0)


def _mask(shape: Shape, left: jax.Array, size: tuple[int, ...]) -> jax.Array | None:
    """Return the mask of a block's rows that are within the array; None, which is faster, if all rows are."""
    return _inside(left, size, size[1]) if shape.rows % shape.block else None


def _load(shape: Shape, left: jax.Array, ref: Any) -> jax.Array:
    mask = _mask(shape, left, ref.shape)
    return triton.load(ref, mask=mask, other=None if mask is None else 0.0)


def _store(shape: Shape, left: jax.Array, ref: Any, value: jax.Array) -> None:
    triton.store(ref, value, mask=_mask(shape, left, value.shape))
