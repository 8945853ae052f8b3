"""A perceptron of two or three equal hidden layers as GPU kernels that keep its hidden activations on the chip.

The same function as `nn.mlp(layers, x, half=True)`, where every hidden activation is written to memory and read back.
Here a tile of rows goes through all layers at once:

- Forward, hidden layer 1 is made some columns at a time and each chunk is at once multiplied into the sums of layer 2;
  layer 3, if there is one, is made from layer 2 in chunks that are multiplied into the result.
- For a gradient, layer 2 is kept. Layers 1 and 3 are made again in chunks: 1 from the narrow input, 3 on its way back.
- Only what the gradients of hidden-by-hidden weights need is written, and those are left to ordinary matrix products;
  all other gradients leave the kernel as one sum a tile.

Chunks are there because whole weights of 256 by 256 would leave no room to fetch one while another is worked on.
No two blocks of threads add to the same number, so the order of sums does not depend on which comes first.
When they are used: `ssorl.kernels`. From JAX 0.11 on, Pallas warns that it will give up its Triton backend.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ssorl import nn

Layers = list[dict[str, jax.Array]]

WIDTHS = (128, 256)  # of hidden layers; the sums of 512 columns would not fit in the registers
MOST_INPUTS = 63
MOST_OUTPUTS = 16


@dataclass(frozen=True)
class Cut:
    """How a kernel is cut; none of it changes the result beyond rounding."""

    tile: int = 128  # rows a block of threads works on
    chunk: int = 64  # columns of hidden layers 1 and 3 at a time
    warps: int = 8  # of 32 threads, a block; each takes 16 rows, so more than tile / 16 repeat one another's work
    stages: int = 2  # buffers for chunks of weights, fetched while others are worked on


@dataclass(frozen=True)
class Tune:
    """The cut of each kernel; these were fastest in benchmarks/fused.py on an H200, for both its networks together."""

    forward: Cut = Cut(tile=64, warps=4, stages=3)
    weights: Cut = Cut(stages=3)  # gradients in weights, or in weights and inputs
    inputs: Cut = Cut(tile=64, warps=4)  # gradients in inputs alone
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
    def wide_in(self) -> int:
        """Columns of the input in the kernel: tensor cores want 16 or more, and one is always 1, for the bias."""
        return max(16, pl.next_power_of_2(self.n_in + 1))

    @property
    def wide_dy(self) -> int:
        """Columns of the cotangent in the kernel: it comes as three terms, see `_backward`."""
        return max(16, pl.next_power_of_2(3 * self.n_out))


def suits(layers: Layers, x: jax.Array) -> bool:
    """Whether the kernels can do this: two or three hidden layers of one width they know, few inputs and outputs."""
    widths = {layer["b"].shape[-1] for layer in layers[:-1]}
    few = 0 < x.shape[-1] <= MOST_INPUTS and layers[-1]["b"].shape[-1] <= MOST_OUTPUTS
    return len(layers) in (3, 4) and len(widths) == 1 and widths <= {*WIDTHS} and few and x.size > 0


def fused_mlp(layers: Layers, x: jax.Array, tune: Tune | None = None) -> jax.Array:
    """`nn.mlp(layers, x, half=True)` for x[..., I] by the kernels, or by `nn.mlp` where they do not suit."""
    if not suits(layers, x):
        return nn.mlp(layers, x, half=True)
    y: jax.Array = _network(tune or Tune(), layers, x.reshape(-1, x.shape[-1]).astype(jnp.float32))
    return y.reshape(*x.shape[:-1], y.shape[-1])


# Derivatives -----------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _network(tune: Tune, layers: Layers, x: jax.Array) -> jax.Array:
    return _forward(tune, layers, x)["y"]


def _ahead(tune: Tune, layers: Any, x: Any) -> tuple[jax.Array, Any]:
    """The forward pass; keeps the second hidden layer, and of what a gradient is wanted."""
    values = jax.tree.map(lambda p: p.value, (layers, x))
    # Static facts travel in the structure: an empty tuple is yes, None is no.
    asked = [() if any(p.perturbed for p in jax.tree.leaves(some)) else None for some in (layers, x)]
    out = _forward(tune, *values, keep=True)
    return out["y"], (*values, out["h2"], asked)


def _back(tune: Tune, kept: Any, dy: Any) -> tuple[Any, Any]:
    if isinstance(dy, SymbolicZero):
        return None, None
    layers, x, h2, asked = kept
    return _backward(tune, layers, x, h2, dy, *(a is not None for a in asked))


_network.defvjp(_ahead, _back, symbolic_zeros=True)


# What goes into the kernels and what comes out -------------------------------------------------------------


def _forward(tune: Tune, layers: Layers, x: jax.Array, keep: bool = False) -> dict[str, jax.Array]:
    """The result y and, if asked for, the second hidden layer h2."""
    shape = _shape(tune.forward, layers, x)
    last = [jnp.pad(w, ((0, 0), (0, MOST_OUTPUTS - shape.n_out))) for w in _split(layers[-1]["w"])]
    outputs = {"y": _by_row(shape, shape.n_out, MOST_OUTPUTS)}
    if keep:
        outputs["h2"] = _by_row(shape, shape.hidden, kind=jnp.bfloat16)
    arrays = [x, *_hidden(shape, layers), *last]
    out = _call(_forward_kernel, shape, arrays, [shape.wide_in], outputs, tune.interpret)
    return out | {"y": out["y"] + layers[-1]["b"]}


def _backward(
    tune: Tune, layers: Layers, x: jax.Array, h2: jax.Array, dy: jax.Array, weights: bool, inputs: bool
) -> tuple[Any, Any]:
    """Gradients in the layers and in x, each None where not wanted."""
    shape = _roomy(_shape(tune.weights if weights else tune.inputs, layers, x))
    high, low = _split(dy)
    w_high, w_low = (w.T for w in _split(layers[-1]["w"]))
    # The product of two sums less the smallest of its four terms, as one product.
    more = shape.wide_dy - 3 * shape.n_out
    cotangent = jnp.pad(jnp.concatenate([high, low, high], axis=1), ((0, 0), (0, more)))
    last = jnp.pad(jnp.concatenate([w_high, w_high, w_low]), ((0, more), (0, 0)))

    outputs: dict[str, Any] = {}
    if inputs:
        outputs["dx"] = _by_row(shape, shape.n_in, shape.wide_in)
    if weights:
        for name in ("h1", "dz2", "dz3") if shape.three else ("h1", "dz2"):
            outputs[name] = _by_row(shape, shape.hidden, kind=jnp.bfloat16)
        outputs |= {"first": _by_tile(shape, shape.wide_in), "last": _by_tile(shape, shape.wide_dy)}
        outputs |= {name: _by_tile(shape) for name in (("b2", "b3") if shape.three else ("b2",))}
    arrays = [x, cotangent, h2, *_hidden(shape, layers), last]
    tall = [shape.wide_in, shape.wide_dy, shape.hidden]
    out = _call(_backward_kernel, shape, arrays, tall, outputs, tune.interpret)
    return _gradients(shape, out | {"h2": h2}, dy) if weights else None, out.get("dx")


def _gradients(shape: Shape, out: dict[str, jax.Array], dy: jax.Array) -> Layers:
    """In the layers, from what the backward kernel wrote."""
    product = partial(jnp.einsum, "ri,ro->io", preferred_element_type=jnp.float32)
    first, last, n = out["first"].sum(0), out["last"].sum(0), shape.n_out
    grad = [
        {"w": first[:, : shape.n_in].T, "b": first[:, shape.n_in]},
        {"w": product(out["h1"], out["dz2"]), "b": out["b2"].sum(0)},
    ]
    if shape.three:
        grad.append({"w": product(out["h2"], out["dz3"]), "b": out["b3"].sum(0)})
    return [*grad, {"w": last[:, :n] + last[:, n : 2 * n], "b": dy.sum(0)}]


def _shape(cut: Cut, layers: Layers, x: jax.Array) -> Shape:
    return Shape(*x.shape, *layers[-1]["w"].shape[::-1], three=len(layers) == 4, cut=cut)


def _roomy(shape: Shape) -> Shape:
    """With a buffer less where a third would need more shared memory than Hopper's 227 KB, as in a CQL actor."""
    # Three layers of 256, tile 128, chunk 64: Triton takes 194 KB + 512 bytes a column of inputs + 640 of dy beyond 16.
    much = shape.three and shape.wide_in + shape.wide_dy > 64
    return replace(shape, cut=replace(shape.cut, stages=min(2, shape.cut.stages))) if much else shape


def _split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A float32 array as the sum of two in bfloat16: 16 of its 24 bits, where tensor cores' own float32 keeps 11."""
    # Not astype: XLA may take a cast there and back for the identity, and nothing would be left for the second.
    high = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return high.astype(jnp.bfloat16), (x - high).astype(jnp.bfloat16)


def _hidden(shape: Shape, layers: Layers) -> list[jax.Array]:
    """Hidden layers: the first with its bias as the row that meets the input's 1, the others as weight and bias."""
    first, *others = layers[:-1]
    packed = jnp.concatenate([first["w"], first["b"][None]])
    packed = jnp.pad(packed, ((0, shape.wide_in - len(packed)), (0, 0))).astype(jnp.bfloat16)
    return [packed, *(a for layer in others for a in (layer["w"].astype(jnp.bfloat16), layer["b"][None]))]


def _by_row(shape: Shape, columns: int, wide: int | None = None, kind: Any = jnp.float32) -> tuple[Any, Any]:
    """An output [rows, columns], written in tiles of rows with `wide` columns."""
    spec = pl.BlockSpec((shape.cut.tile, wide or columns), lambda t: (t, 0))
    return jax.ShapeDtypeStruct((shape.rows, columns), kind), spec


def _by_tile(shape: Shape, *more: int) -> tuple[Any, Any]:
    """An output [tiles, hidden, ...] of sums over the rows of a tile."""
    like = jax.ShapeDtypeStruct((pl.cdiv(shape.rows, shape.cut.tile), shape.hidden, *more), jnp.float32)
    return like, pl.BlockSpec((None, *like.shape[1:]), lambda t: (t, 0, *(0 for _ in more)))


def _call(kernel: Any, shape: Shape, arrays: list[jax.Array], tall: list[int], outputs: Any, interpret: bool) -> Any:
    """Run one block a tile of rows; the first arrays come in tiles of `tall` columns, the others whole."""
    by_row = [pl.BlockSpec((shape.cut.tile, wide), lambda t: (t, 0)) for wide in tall]
    whole = [pl.BlockSpec(a.shape, lambda t: (0, 0)) for a in arrays[len(tall) :]]
    return pl.pallas_call(
        partial(kernel, shape),
        out_shape={name: like for name, (like, _) in outputs.items()},
        out_specs={name: spec for name, (_, spec) in outputs.items()},
        in_specs=[*by_row, *whole],
        grid=(pl.cdiv(shape.rows, shape.cut.tile),),
        compiler_params=triton.CompilerParams(num_warps=shape.cut.warps, num_stages=shape.cut.stages),
        interpret=interpret,
        name="fused" + kernel.__name__,
    )(*arrays)


# Kernels ---------------------------------------------------------------------------------------------------


def _forward_kernel(shape: Shape, x_ref: Any, w1: Any, w2: Any, b2: Any, *refs: Any) -> None:
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


def _backward_kernel(shape: Shape, x_ref: Any, dy_ref: Any, h2: Any, w1: Any, w2: Any, b2: Any, *refs: Any) -> None:
    *third, last, out = refs
    weights, inputs = "first" in out, "dx" in out
    left = shape.rows - pl.program_id(0) * shape.cut.tile
    x = _load_input(shape, left, x_ref)
    dy = triton.load(dy_ref, mask=_inside(left, dy_ref.shape, shape.wide_dy), other=0.0)

    def back(name: str, at: Any, h: jax.Array, dh: jax.Array) -> jax.Array:
        """Through the ReLU of some columns of layer 2 or 3; what its weights' gradients need is written."""
        dz = _through(h, dh)
        if weights:
            _store(shape, left, out["dz" + name].at[:, at], dz)
            # The sums over rows, on the tensor cores: the column of the product that belongs to the input's ones.
            product = _dot(dz, x, (0, 0))
            ones = lax.broadcasted_iota(jnp.int32, product.shape, 1) == shape.n_in
            out["b" + name][at] = jnp.sum(jnp.where(ones, product, 0.0), axis=1)
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

    dx = _chunks(shape, bottom, shape.wide_in)
    if inputs:
        triton.store(out["dx"], dx, mask=_inside(left, dx.shape, shape.n_in))


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


def _mask(shape: Shape, left: jax.Array, size: tuple[int, ...]) -> jax.Array | None:
    """Of whole rows; none where all exist, which is faster."""
    return _inside(left, size, size[1]) if shape.rows % shape.cut.tile else None


def _load(shape: Shape, left: jax.Array, ref: Any) -> jax.Array:
    mask = _mask(shape, left, ref.shape)
    return triton.load(ref, mask=mask, other=None if mask is None else 0.0)


def _store(shape: Shape, left: jax.Array, ref: Any, value: jax.Array) -> None:
    triton.store(ref, value, mask=_mask(shape, left, value.shape))
