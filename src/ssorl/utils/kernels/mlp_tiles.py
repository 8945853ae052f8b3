"""The kernels of `ssorl.utils.kernels.mlp`: what one block of threads does with its rows."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

MOST_OUTPUTS = 16


@dataclass(frozen=True)
class Cut:
    """How a kernel is cut; none of it changes the result beyond rounding."""

    tile: int = 128  # rows a block of threads works on
    chunk: int = 64  # columns of hidden layers 1 and 3 at a time
    warps: int = 8  # of 32 threads, a block; each takes 16 rows, so more than tile / 16 repeat one another's work
    stages: int = 2  # buffers for chunks of weights, fetched while others are worked on
    steps: int = 1  # tiles of a block, one after the other; only `sweep_kernel` knows more than one


@dataclass(frozen=True)
class Tune:
    """The cut of each kernel; these were fastest in benchmarks/fused.py on an H200, for both its networks together."""

    forward: Cut = Cut(tile=64, warps=4, stages=3)
    weights: Cut = Cut(stages=3)  # gradients in weights and inputs, or in weights where a sweep would not pay
    inputs: Cut = Cut(tile=64, warps=4)  # gradients in inputs alone
    # A sweep for gradients in weights alone, of two and of three hidden layers. Each block writes sums of 256 by 256
    # weights, so that few steps cost much to add up, and many make few blocks. Steps are the least: `fused._swept`.
    two: Cut = Cut(tile=32, chunk=128, stages=3, steps=40)
    three: Cut = Cut(tile=64, chunk=128, stages=3, steps=20)
    units: int = 132  # multiprocessors of the GPU; each has registers for one block of a sweep
    interpret: bool = False  # run the kernels as plain JAX: for tests without a GPU


@dataclass(frozen=True)
class Shape:
    """The static sizes of one kernel call."""

    rows: int
    n_in: int
    n_out: int
    hidden: int
    three: bool  # hidden layers: three or two
    cut: Cut

    @property
    def block(self) -> int:
        """Rows of a block of threads."""
        return self.cut.tile * self.cut.steps

    @property
    def wide_in(self) -> int:
        """Columns of the input in the kernel: tensor cores want 16 or more, and one is always 1, for the bias."""
        return max(16, pl.next_power_of_2(self.n_in + 1))

    @property
    def wide_dy(self) -> int:
        """Columns of the cotangent in the kernel: it comes as three terms, see `fused._backward`."""
        return max(16, pl.next_power_of_2(3 * self.n_out))

    @property
    def narrow(self) -> bool:
        """Whether kernels that ask for much shared memory still get it."""
        return self.wide_in + self.wide_dy <= 64


# Kernels ---------------------------------------------------------------------------------------------------


def forward_kernel(shape: Shape, x_ref: Any, w1: Any, w2: Any, b2: Any, *refs: Any) -> None:
    """A tile of rows through all layers; layer 2 is written too if a gradient will want it."""
    *third, high, low, out = refs
    left = shape.rows - pl.program_id(0) * shape.cut.tile  # rows; not asked in a loop, where an interpreter cannot tell
    x = _load_input(shape, left, x_ref)
    h2 = _chunks(shape, lambda at, total: total + _dot(_relu(_dot(x, w1[:, at])), w2[at, :]), shape.hidden)
    h2 = _relu(h2 + b2[...])
    if "h2" in out:
        _store(shape, left, out["h2"], h2)

    def top(at: Any, total: jax.Array) -> jax.Array:
        w3, b3 = third
        h3 = _relu(_dot(h2, w3[:, at]) + b3[:, at])
        return total + _dot(h3, high[at, :]) + _dot(h3, low[at, :])

    y = _chunks(shape, top, MOST_OUTPUTS) if shape.three else _dot(h2, high[...]) + _dot(h2, low[...])
    triton.store(out["y"], y, mask=_inside(left, y.shape, shape.n_out))


def backward_kernel(shape: Shape, x_ref: Any, dy_ref: Any, h2: Any, w1: Any, w2: Any, b2: Any, *refs: Any) -> None:
    """A tile of rows back through all layers, as far as what is to be written asks for."""
    *third, last, out = refs
    weights, inputs = "last" in out, "dx" in out
    left = shape.rows - pl.program_id(0) * shape.cut.tile
    x = _load_input(shape, left, x_ref)
    dy = _load_cotangent(shape, left, dy_ref)

    def back(name: str, at: Any, h: jax.Array, dh: jax.Array) -> jax.Array:
        """Through the ReLU of some columns of layer 2 or 3; what its weights' gradients need is written."""
        dz = _through(h, dh)
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
    if shape.three:  # h is read again: in the loop it is in shared memory, in registers there would be no room
        dh2 = _chunks(shape, top, shape.hidden)
        dz2 = back("2", everything, _load(shape, left, h2), dh2)
    else:
        dz2 = last_hidden("2", everything, h)

    def bottom(at: Any, total: jax.Array) -> jax.Array:
        w = w1[:, at]
        h1 = _relu(_dot(x, w))
        dz = _through(h1, _dot(dz2, w2[at, :], (1, 1)))
        if weights:
            _store(shape, left, out["h1"].at[:, at], h1)
            out["first"][at, :] = _dot(dz, x, (0, 0))
        return total + _dot(dz, w, (1, 1)) if inputs else total

    if not inputs and "first" not in out:  # a sweep does the rest
        return
    dx = _chunks(shape, bottom, shape.wide_in)
    if inputs:
        triton.store(out["dx"], dx, mask=_inside(left, dx.shape, shape.n_in))


def sweep_kernel(shape: Shape, *refs: Any) -> None:
    """Gradients in weights, summed over the tiles of a block; each block has some columns of hidden layer 1.

    Of two hidden layers this is the whole way back, and nothing as tall as the rows is written: layer 1 and the
    cotangent of layer 2 are made again, for a sixteenth of the cost of a product of 256 by 256. Of three it is the
    lower half, and the cotangent of layer 2 is read. Layer 1 and its cotangent are made as [columns, rows]: multiplied
    from the left they can stay in the registers.
    """
    x_ref, *upper, w1, w2, out = refs
    every = shape.rows - pl.program_id(0) * shape.block
    part = pl.ds(pl.program_id(1) * shape.cut.chunk, shape.cut.chunk)
    w1, w2 = w1[:, part], w2[part, :]
    last = [] if shape.three else [upper[2][...], upper[2][:, part]]

    def step(i: jax.Array, sums: dict[str, jax.Array]) -> dict[str, jax.Array]:
        left, rows = every - i * shape.cut.tile, pl.ds(i * shape.cut.tile, shape.cut.tile)
        x, new = _load_input(shape, left, x_ref.at[rows, :]), {}
        if shape.three:
            dz2 = _load(shape, left, upper[0].at[rows, :])
        else:
            dy = _load_cotangent(shape, left, upper[0].at[rows, :])
            h2, h2_part = (_load(shape, left, upper[1].at[rows, columns]) for columns in (slice(None), part))
            dz2 = _through(h2, _dot(dy, last[0]))
            new["last"] = _dot(h2_part, dy, (0, 0))
            new["b2"] = _dot(_through(h2_part, _dot(dy, last[1])), x, (0, 0))
        h1 = _relu(_dot(w1, x, (0, 1)))
        new["w2"] = _dot(h1, dz2)
        new["first"] = _dot(_through(h1, _dot(w2, dz2, (1, 1))), x)
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
    """Sums over rows, made on the tensor cores: the column of a product with the input that belongs to its ones."""
    ones = lax.broadcasted_iota(jnp.int32, product.shape, 1) == shape.n_in
    return jnp.sum(jnp.where(ones, product, 0.0), axis=1)


def _dot(a: jax.Array, b: jax.Array, over: tuple[int, int] = (1, 0)) -> jax.Array:
    """The product of two matrices over these axes, with float32 sums."""
    return lax.dot_general(a, b, (((over[0],), (over[1],)), ((), ())), preferred_element_type=jnp.float32)


def _relu(x: jax.Array) -> jax.Array:
    """In bfloat16. Not a maximum: the GPU's would make 0 of NaN, and training gone wrong would look well."""
    return jnp.where(x < 0, 0.0, x).astype(jnp.bfloat16)


def _through(h: jax.Array, dh: jax.Array) -> jax.Array:
    """The cotangent before the ReLU from the one after it."""
    # A product, not a choice: with that ptxas takes the sums of the two products before it apart and serialises them.
    return dh.astype(jnp.bfloat16) * jnp.where(h > 0, jnp.bfloat16(1), jnp.bfloat16(0))


def _chunks(shape: Shape, body: Any, columns: int) -> jax.Array:
    """The sum [tile, columns] that body(chunk, sum) adds to, over the chunks of a hidden layer."""
    n, zero = shape.cut.chunk, jnp.zeros((shape.cut.tile, columns), jnp.float32)
    return lax.fori_loop(0, shape.hidden // n, lambda c, total: body(pl.ds(c * n, n), total), zero)


def _inside(left: jax.Array, size: tuple[int, ...], columns: int) -> jax.Array:
    """Which of a block's rows and columns exist."""
    row, column = (lax.broadcasted_iota(jnp.int32, size, axis) for axis in (0, 1))
    return (row < left) & (column < columns)


def _load_input(shape: Shape, left: jax.Array, x_ref: Any) -> jax.Array:
    """The input in bfloat16, a column of ones after its last, then zeros."""
    x = triton.load(x_ref, mask=_inside(left, x_ref.shape, shape.n_in), other=0.0)
    column = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return jnp.where(column == shape.n_in, 1.0, x).astype(jnp.bfloat16)


def _load_cotangent(shape: Shape, left: jax.Array, ref: Any) -> jax.Array:
    return triton.load(ref, mask=_inside(left, ref.shape, shape.wide_dy), other=0.0)


def _mask(shape: Shape, left: jax.Array, size: tuple[int, ...]) -> jax.Array | None:
    """Of whole rows; none where all exist, which is faster."""
    return _inside(left, size, size[1]) if shape.rows % shape.block else None


def _load(shape: Shape, left: jax.Array, ref: Any) -> jax.Array:
    mask = _mask(shape, left, ref.shape)
    return triton.load(ref, mask=mask, other=None if mask is None else 0.0)


def _store(shape: Shape, left: jax.Array, ref: Any, value: jax.Array) -> None:
    triton.store(ref, value, mask=_mask(shape, left, value.shape))
