"""GPU kernels for a perceptron with two or three hidden layers of one width; hidden activations stay on the chip.

The kernels compute the same function as `networks.mlp(layers, x, half=True)`, which writes every hidden activation to
memory and reads it back. Here a tile of rows passes through all layers at once:

- Forward, hidden layer 1 is computed in chunks of columns, and each chunk is immediately multiplied into the sums of
  layer 2. A layer 3 is computed from layer 2 in chunks that are multiplied into the result.
- For a gradient, layer 2 is stored. The backward kernel recomputes layers 1 and 3 in chunks.
- For the gradients of hidden-by-hidden weights, the kernel writes only their factors, which ordinary matrix products
  then multiply. All other gradients leave the kernel as one sum per tile.
- If there are enough rows and runs, a block sweeps over many tiles and sums all gradients of weights itself.

Chunks are needed because with whole weights of 256 by 256 there would be no room to fetch one chunk while another is
used. No two blocks of threads add to the same number, so results do not depend on the order in which blocks run.

The kernels are in `ssorl.utils.kernels.mlp_tiles`; `ssorl.utils.kernels` decides when they are used. From JAX 0.11 on,
Pallas warns that its Triton backend is deprecated.
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

from ssorl.utils import networks
from ssorl.utils.kernels.mlp_tiles import MAX_OUTPUTS, Cut, Shape, Tune, backward_kernel, forward_kernel, sweep_kernel

Layers = list[dict[str, jax.Array]]

WIDTHS = (128, 256)  # supported widths of hidden layers; the sums of 512 columns would not fit into the registers
MAX_INPUTS = 63
SWEEP_BLOCKS = 24  # approximate number of blocks of rows in a sweep; each writes a sum as large as the weights


def suits(layers: Layers, x: jax.Array) -> bool:
    """Return whether the kernels support a network: two or three equally wide hidden layers, few inputs and outputs.

    Args:
        layers: weights, as from `networks.init_mlp`.
        x: inputs [..., I].
    """
    widths = {layer["b"].shape[-1] for layer in layers[:-1]}
    few = 0 < x.shape[-1] <= MAX_INPUTS and layers[-1]["b"].shape[-1] <= MAX_OUTPUTS
    return len(layers) in (3, 4) and len(widths) == 1 and widths <= {*WIDTHS} and few and x.size > 0


def fused_mlp(layers: Layers, x: jax.Array, tune: Tune | None = None) -> jax.Array:
    """Return `networks.mlp(layers, x, half=True)`, computed by the kernels if they support the network.

    Args:
        layers: weights, as from `networks.init_mlp`.
        x: inputs [..., I].
        tune: how the kernels run.

    Returns:
        Outputs [..., n_out] in float32.
    """
    if not suits(layers, x):
        return networks.mlp(layers, x, half=True)
    y: jax.Array = _network(tune or Tune(), layers, x.reshape(-1, x.shape[-1]).astype(jnp.float32))
    return y.reshape(*x.shape[:-1], y.shape[-1])


# Derivatives -----------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _network(tune: Tune, layers: Layers, x: jax.Array) -> jax.Array:
    return _forward(tune, layers, x)["y"]


def _network_forward(tune: Tune, layers: Any, x: Any) -> tuple[jax.Array, Any]:
    """Do the forward pass; save the second hidden layer, and whether gradients of weights and inputs are wanted."""
    values = jax.tree.map(lambda p: p.value, (layers, x))
    # Static values must be part of the structure: an empty tuple means True, None means False.
    wanted = [() if any(p.perturbed for p in jax.tree.leaves(tree)) else None for tree in (layers, x)]
    out = _forward(tune, *values, save=True)
    return out["y"], (*values, out["h2"], wanted)


def _network_backward(tune: Tune, saved: Any, dy: Any) -> tuple[Any, Any]:
    if isinstance(dy, SymbolicZero):
        return None, None
    layers, x, h2, wanted = saved
    weights, inputs = (a is not None for a in wanted)
    return _with_count(lambda n: partial(_backward, tune, n, weights, inputs))(layers, x, h2, dy)


_network.defvjp(_network_forward, _network_backward, symbolic_zeros=True)


def _with_count(f: Callable[[int], Callable[..., Any]], n: int = 1) -> Callable[..., Any]:
    """Return f(n) for n the product of the sizes of all surrounding `vmap`s; each `vmap` replaces the function."""

    def under_vmap(size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        axes = tuple(jax.tree.map(lambda is_batched: 0 if is_batched else None, batched))
        out = _with_count(lambda n: jax.vmap(f(n), axes), n * size)(*args)
        return out, jax.tree.map(lambda _: True, out)

    function = custom_vmap(f(n))
    function.def_vmap(under_vmap)
    return function


# Inputs and outputs of the kernels -------------------------------------------------------------------------


def _forward(tune: Tune, layers: Layers, x: jax.Array, save: bool = False) -> dict[str, jax.Array]:
    """Return the result y and, if `save`, the second hidden layer h2."""
    shape = _shape(tune.forward, layers, x)
    last = [jnp.pad(w, ((0, 0), (0, MAX_OUTPUTS - shape.n_out))) for w in _split(layers[-1]["w"])]
    outputs = {"y": _by_row(shape, shape.n_out, MAX_OUTPUTS)}
    if save:
        outputs["h2"] = _by_row(shape, shape.hidden, kind=jnp.bfloat16)
    arrays = [x, *_hidden(shape, layers), *last]
    out = _call(forward_kernel, shape, arrays, [shape.wide_in], outputs, tune.interpret)
    return out | {"y": out["y"] + layers[-1]["b"]}


def _backward(
    tune: Tune, n: int, weights: bool, inputs: bool, layers: Layers, x: jax.Array, h2: jax.Array, dy: jax.Array
) -> tuple[Any, Any]:
    """Return the gradients of layers and x, each None if not wanted; n such networks are differentiated at once."""
    shape = _fit_memory(_shape(tune.weights if weights else tune.inputs, layers, x))
    high, low = _split(dy)
    w_high, w_low = (w.T for w in _split(layers[-1]["w"]))
    # The product (high + low) (w_high + w_low) without its smallest term, as one product.
    padding = shape.wide_dy - 3 * shape.n_out
    cotangent = jnp.pad(jnp.concatenate([high, low, high], axis=1), ((0, 0), (0, padding)))
    last = jnp.pad(jnp.concatenate([w_high, w_high, w_low]), ((0, padding), (0, 0)))

    sweep = _sweep_shape(shape, tune.three if shape.three else tune.two, n, tune.units)
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
    """Return the sums that `sweep_kernel` computes."""
    w1, w2, *_ = _hidden(shape, layers)
    outputs = {"w2": _by_block(shape, shape.hidden), "first": _by_block(shape, shape.wide_in)}
    if not shape.three:
        outputs |= {"last": _by_block(shape, shape.wide_dy), "b2": _by_block(shape)}
    arrays = [x, *upper, *([] if shape.three else [last]), w1, w2]
    tall = [shape.wide_in, *(a.shape[1] for a in upper)]
    return _call(sweep_kernel, shape, arrays, tall, outputs, interpret, shape.hidden // shape.cut.chunk)


def _sweep_shape(shape: Shape, cut: Cut, n: int, units: int) -> Shape | None:
    """Return the shape of a sweep over n networks at once; None if a sweep would leave too much of the GPU idle.

    Blocks run in waves, one block on each unit. A network gets about SWEEP_BLOCKS blocks, so many that waves are full,
    but each block has at least `cut.steps` tiles. In measurements with 30 networks of two hidden layers and 5,120 rows,
    one wave of a sweep took as long as 12 networks without a sweep, which have 96 blocks on 132 units. So a sweep is
    used if at least two thirds of its waves are filled: for TD3+BC's networks from 11 runs on, and for CQL's critics,
    which have 158,720 rows, always.
    """
    tiles, blocks_per_row = pl.cdiv(shape.rows, cut.tile), n * (shape.hidden // cut.chunk)
    waves = max(1, round(SWEEP_BLOCKS * blocks_per_row / units))
    blocks = min(max(1, waves * units // blocks_per_row), pl.cdiv(tiles, cut.steps))
    steps = pl.cdiv(tiles, blocks)
    blocks = blocks_per_row * pl.cdiv(tiles, steps)
    utilisation = blocks / (units * pl.cdiv(blocks, units))
    return replace(shape, cut=replace(cut, steps=steps)) if utilisation >= 2 / 3 else None


def _gradients(shape: Shape, out: dict[str, jax.Array], dy: jax.Array) -> Layers:
    """Return the gradients of the layers, from the kernels' outputs."""
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


def _fit_memory(shape: Shape) -> Shape:
    """Return the shape with two buffers if three would exceed Hopper's 227 KB of shared memory, as in CQL's actor."""
    # Three layers of 256, tile 128, chunk 64: Triton needs 194 KB, and beyond 16 columns 512 bytes for each column of
    # inputs and 640 for each of dy.
    exceeds = shape.three and not shape.narrow
    return replace(shape, cut=replace(shape.cut, stages=min(2, shape.cut.stages))) if exceeds else shape


def _split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split a float32 array into a sum of two bfloat16 arrays: 16 of its 24 bits, where tensor cores' TF32 has 11."""
    # Not astype: XLA may replace a cast to bfloat16 and back by the identity, and the second array would be 0.
    high = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return high.astype(jnp.bfloat16), (x - high).astype(jnp.bfloat16)


def _hidden(shape: Shape, layers: Layers) -> list[jax.Array]:
    """Return the hidden layers: the first with its bias as a further row of weights, the others as weight and bias."""
    first, *others = layers[:-1]
    packed = jnp.concatenate([first["w"], first["b"][None]])
    packed = jnp.pad(packed, ((0, shape.wide_in - len(packed)), (0, 0))).astype(jnp.bfloat16)
    return [packed, *(a for layer in others for a in (layer["w"].astype(jnp.bfloat16), layer["b"][None]))]


def _by_row(shape: Shape, columns: int, wide: int | None = None, kind: Any = jnp.float32) -> tuple[Any, Any]:
    """Return shape and blocks of an output [rows, columns], written in tiles with `wide` columns."""
    spec = pl.BlockSpec((shape.block, wide or columns), lambda t: (t, 0))
    return jax.ShapeDtypeStruct((shape.rows, columns), kind), spec


def _by_block(shape: Shape, *more: int) -> tuple[Any, Any]:
    """Return shape and blocks of an output [blocks, hidden, ...] of sums over the rows of a block of threads."""
    like = jax.ShapeDtypeStruct((pl.cdiv(shape.rows, shape.block), shape.hidden, *more), jnp.float32)
    return like, pl.BlockSpec((None, *like.shape[1:]), lambda t, *_: (t, 0, *(0 for _ in more)))


def _call(
    kernel: Any, shape: Shape, arrays: list[jax.Array], tall: list[int], outputs: Any, interpret: bool, *parts: int
) -> Any:
    """Run a kernel on each block of rows; the first arrays, with `tall` columns, are cut into the blocks' rows."""
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
