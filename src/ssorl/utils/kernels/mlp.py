"""A perceptron of two or three equal hidden layers as GPU kernels that keep its hidden activations on the chip.

The same function as `nn.mlp(layers, x, half=True)`, where every hidden activation is written to memory and read back.
Here a tile of rows goes through all layers at once:

- Forward, hidden layer 1 is made some columns at a time and each chunk is at once multiplied into the sums of layer 2;
  layer 3, if there is one, is made from layer 2 in chunks that are multiplied into the result.
- For a gradient, layer 2 is kept. Layers 1 and 3 are made again in chunks: 1 from the narrow input, 3 on its way back.
- Only what the gradients of hidden-by-hidden weights need is written, and those are left to ordinary matrix products;
  all other gradients leave the kernel as one sum a tile.
- Or, where there are rows and runs enough, a block sweeps over many tiles and sums up these gradients too.

Chunks are there because whole weights of 256 by 256 would leave no room to fetch one while another is worked on.
No two blocks of threads add to the same number, so the order of sums does not depend on which comes first.
The kernels are in `ssorl.utils.kernels.mlp_tiles`; when they are used: `ssorl.utils.kernels`.
From JAX 0.11 on, Pallas warns that it will give up its Triton backend.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ssorl.utils import networks as nn
from ssorl.utils.kernels.mlp_tiles import MOST_OUTPUTS, Cut, Shape, Tune, backward_kernel, forward_kernel, sweep_kernel

Layers = list[dict[str, jax.Array]]

WIDTHS = (128, 256)  # of hidden layers; the sums of 512 columns would not fit in the registers
MOST_INPUTS = 63
MOST_BLOCKS = 24  # of rows, in a sweep, about: each writes a whole sum of weights


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
    weights, inputs = (a is not None for a in asked)
    return _counted(lambda n: partial(_backward, tune, n, weights, inputs))(layers, x, h2, dy)


_network.defvjp(_ahead, _back, symbolic_zeros=True)


def _counted(f: Callable[[int], Callable[..., Any]], n: int = 1) -> Callable[..., Any]:
    """f(n), which is told how many of it all `vmap`s around it make: at each of them it is replaced."""

    def under_vmap(size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        axes = tuple(jax.tree.map(lambda yes: 0 if yes else None, batched))
        out = _counted(lambda n: jax.vmap(f(n), axes), n * size)(*args)
        return out, jax.tree.map(lambda _: True, out)

    function = custom_vmap(f(n))
    function.def_vmap(under_vmap)
    return function


# What goes into the kernels and what comes out -------------------------------------------------------------


def _forward(tune: Tune, layers: Layers, x: jax.Array, keep: bool = False) -> dict[str, jax.Array]:
    """The result y and, if asked for, the second hidden layer h2."""
    shape = _shape(tune.forward, layers, x)
    last = [jnp.pad(w, ((0, 0), (0, MOST_OUTPUTS - shape.n_out))) for w in _split(layers[-1]["w"])]
    outputs = {"y": _by_row(shape, shape.n_out, MOST_OUTPUTS)}
    if keep:
        outputs["h2"] = _by_row(shape, shape.hidden, kind=jnp.bfloat16)
    arrays = [x, *_hidden(shape, layers), *last]
    out = _call(forward_kernel, shape, arrays, [shape.wide_in], outputs, tune.interpret)
    return out | {"y": out["y"] + layers[-1]["b"]}


def _backward(
    tune: Tune, n: int, weights: bool, inputs: bool, layers: Layers, x: jax.Array, h2: jax.Array, dy: jax.Array
) -> tuple[Any, Any]:
    """Gradients in the layers and in x, each None where not wanted; of one of n such networks."""
    shape = _roomy(_shape(tune.weights if weights else tune.inputs, layers, x))
    high, low = _split(dy)
    w_high, w_low = (w.T for w in _split(layers[-1]["w"]))
    # The product of two sums less the smallest of its four terms, as one product.
    more = shape.wide_dy - 3 * shape.n_out
    cotangent = jnp.pad(jnp.concatenate([high, low, high], axis=1), ((0, 0), (0, more)))
    last = jnp.pad(jnp.concatenate([w_high, w_high, w_low]), ((0, more), (0, 0)))

    sweep = _swept(shape, tune.three if shape.three else tune.two, n, tune.units)
    sweep = sweep if weights and not inputs and shape.narrow else None
    out = {"h2": h2}
    if sweep is None or shape.three:
        outputs: dict[str, Any] = {}
        if inputs:
            outputs["dx"] = _by_row(shape, shape.n_in, shape.wide_in)
        if weights:
            names = ("dz2", "dz3") if shape.three else ("dz2",)
            for name in names if sweep else ("h1", *names):
                outputs[name] = _by_row(shape, shape.hidden, kind=jnp.bfloat16)
            outputs |= {name.replace("dz", "b"): _by_block(shape) for name in names}
            outputs |= {"last": _by_block(shape, shape.wide_dy)}
            outputs |= {} if sweep else {"first": _by_block(shape, shape.wide_in)}
        arrays = [x, cotangent, h2, *_hidden(shape, layers), last]
        tall = [shape.wide_in, shape.wide_dy, shape.hidden]
        out |= _call(backward_kernel, shape, arrays, tall, outputs, tune.interpret)
    if sweep is not None:
        tall = [out["dz2"]] if shape.three else [cotangent, h2]
        out |= _sweep(sweep, layers, x, tall, last, tune.interpret)
    return _gradients(shape, out, dy) if weights else None, out.get("dx")


def _sweep(
    shape: Shape, layers: Layers, x: jax.Array, upper: list[jax.Array], last: jax.Array, interpret: bool
) -> dict[str, jax.Array]:
    """What the kernel of this name sums up."""
    w1, w2, *_ = _hidden(shape, layers)
    outputs = {"w2": _by_block(shape, shape.hidden), "first": _by_block(shape, shape.wide_in)}
    if not shape.three:
        outputs |= {"last": _by_block(shape, shape.wide_dy), "b2": _by_block(shape)}
    arrays = [x, *upper, *([] if shape.three else [last]), w1, w2]
    tall = [shape.wide_in, *(a.shape[1] for a in upper)]
    return _call(sweep_kernel, shape, arrays, tall, outputs, interpret, shape.hidden // shape.cut.chunk)


def _swept(shape: Shape, cut: Cut, n: int, units: int) -> Shape | None:
    """Cut for a sweep where n such networks are swept at once; None where that would leave the GPU idle.

    Blocks run in waves, one on each unit. Here a network has as many as make whole waves, about MOST_BLOCKS, but none
    of less than the cut's steps. By what 30 networks of two hidden layers and 5,120 rows took, a wave of them is worth
    as much as 12 networks the other way, and 12 have 96 blocks: waves shall be two thirds full. So TD3+BC's networks
    are swept from 11 runs on, and CQL's critics, with 158,720 rows, always.
    """
    tiles, each = pl.cdiv(shape.rows, cut.tile), n * (shape.hidden // cut.chunk)
    waves = max(1, round(MOST_BLOCKS * each / units))
    blocks = min(max(1, waves * units // each), pl.cdiv(tiles, cut.steps))
    steps = pl.cdiv(tiles, blocks)
    blocks = each * pl.cdiv(tiles, steps)
    busy = blocks / (units * pl.cdiv(blocks, units))
    return replace(shape, cut=replace(cut, steps=steps)) if busy >= 2 / 3 else None


def _gradients(shape: Shape, out: dict[str, jax.Array], dy: jax.Array) -> Layers:
    """In the layers, from what the kernels wrote."""
    product = partial(jnp.einsum, "ri,ro->io", preferred_element_type=jnp.float32)
    first, last, n = out["first"].sum(0), out["last"].sum(0), shape.n_out
    grad = [
        {"w": first[:, : shape.n_in].T, "b": first[:, shape.n_in]},
        {"w": out["w2"].sum(0) if "w2" in out else product(out["h1"], out["dz2"]), "b": out["b2"].sum(0)},
    ]
    if shape.three:
        grad.append({"w": product(out["h2"], out["dz3"]), "b": out["b3"].sum(0)})
    return [*grad, {"w": last[:, :n] + last[:, n : 2 * n], "b": dy.sum(0)}]


def _shape(cut: Cut, layers: Layers, x: jax.Array) -> Shape:
    return Shape(*x.shape, *layers[-1]["w"].shape[::-1], three=len(layers) == 4, cut=cut)


def _roomy(shape: Shape) -> Shape:
    """With a buffer less where a third would need more shared memory than Hopper's 227 KB, as in a CQL actor."""
    # Three layers of 256, tile 128, chunk 64: Triton takes 194 KB + 512 bytes a column of inputs + 640 of dy beyond 16.
    much = shape.three and not shape.narrow
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
    spec = pl.BlockSpec((shape.block, wide or columns), lambda t: (t, 0))
    return jax.ShapeDtypeStruct((shape.rows, columns), kind), spec


def _by_block(shape: Shape, *more: int) -> tuple[Any, Any]:
    """An output [blocks, hidden, ...] of sums over the rows of a block of threads."""
    like = jax.ShapeDtypeStruct((pl.cdiv(shape.rows, shape.block), shape.hidden, *more), jnp.float32)
    return like, pl.BlockSpec((None, *like.shape[1:]), lambda t, *_: (t, 0, *(0 for _ in more)))


def _call(
    kernel: Any, shape: Shape, arrays: list[jax.Array], tall: list[int], outputs: Any, interpret: bool, *parts: int
) -> Any:
    """Run a block of threads for some rows, or a row of blocks; the first arrays come in tiles of `tall` columns."""
    by_row = [pl.BlockSpec((shape.block, wide), lambda t, *_: (t, 0)) for wide in tall]
    whole = [pl.BlockSpec(a.shape, lambda *_: (0, 0)) for a in arrays[len(tall) :]]
    return pl.pallas_call(
        partial(kernel, shape),
        out_shape={name: like for name, (like, _) in outputs.items()},
        out_specs={name: spec for name, (_, spec) in outputs.items()},
        in_specs=[*by_row, *whole],
        grid=(pl.cdiv(shape.rows, shape.block), *parts),
        compiler_params=triton.CompilerParams(num_warps=shape.cut.warps, num_stages=shape.cut.stages),
        interpret=interpret,
        name="fused_" + kernel.__name__,
    )(*arrays)
