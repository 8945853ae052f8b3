"""The rules of `evaluation/onnx.py`: how each JAX primitive is written with ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.lax import GatherScatterMode
from onnx import TensorProto, helper

from ssorl.utils.errors import SsorlError

if TYPE_CHECKING:
    from ssorl.evaluation.onnx import Graph

Value = Any  # the name of a value in the graph, or an array if it is known during the translation


def unsupported(eqn: Any, form: str = "") -> SsorlError:
    """Return the error for an equation without a rule.

    Args:
        eqn: the equation.
        form: the form of the primitive that has no rule, if other forms have one.
    """
    return SsorlError(
        f"the policy computes with JAX's {eqn.primitive.name!r}{form}, which has no translation to ONNX here; "
        "export it with --format jax"
    )


def is_open(dim: Any) -> bool:
    """Return whether a dimension is symbolic."""
    return not isinstance(dim, (int, np.integer))


def dimension(dim: Any) -> Any:
    """Return a dimension as ONNX declares it: a number, or the name of the open dimension."""
    return str(dim) if is_open(dim) else int(dim)


def onnx_type(dtype: Any) -> int:
    """Return ONNX's number for a dtype."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


INLINE = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint"}

PLAIN = {  # primitives for which ONNX has an operator of the same meaning, which also broadcasts scalars
    **{"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min", "pow": "Pow"},
    **{"neg": "Neg", "exp": "Exp", "log": "Log", "tanh": "Tanh", "logistic": "Sigmoid", "sqrt": "Sqrt", "abs": "Abs"},
    **{"sign": "Sign", "floor": "Floor", "ceil": "Ceil", "erf": "Erf", "sin": "Sin", "cos": "Cos"},
    **{"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"},
    **{"stop_gradient": "Identity", "copy": "Identity", "copy_p": "Identity", "optimization_barrier": "Identity"},
}


def _logical(op: str) -> Callable:
    def rule(g: Graph, eqn: Any, *x: Value) -> str:
        if eqn.invars[0].aval.dtype != bool:
            raise unsupported(eqn, " on whole numbers")
        return g.node(op, *x)

    return rule


def _dot(g: Graph, eqn: Any, x: Value, y: Value) -> str:
    (of_x, of_y), (batch_x, batch_y) = eqn.params["dimension_numbers"]
    n_x, n_y = (v.aval.ndim for v in eqn.invars)
    if not batch_x and tuple(of_x) == (n_x - 1,) and tuple(of_y) == (0,) and n_y <= 2:
        return g.node("MatMul", x, y)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left = [next(letters) for _ in range(n_x)]
    same = {**dict(zip(of_y, of_x, strict=True)), **dict(zip(batch_y, batch_x, strict=True))}
    right = [left[same[i]] if i in same else next(letters) for i in range(n_y)]
    out = [left[i] for i in batch_x]
    out += [c for i, c in enumerate(left) if i not in (*of_x, *batch_x)]
    out += [c for i, c in enumerate(right) if i not in same]
    return g.node("Einsum", x, y, equation=f"{''.join(left)},{''.join(right)}->{''.join(out)}")


def _broadcast(g: Graph, eqn: Any, x: Value) -> Value:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    new_axes = np.array([i for i in range(len(shape)) if i not in axes], np.int64)
    if len(new_axes):
        x = g.node("Unsqueeze", x, new_axes)
    before = [1] * len(shape)
    for axis, dim in zip(axes, eqn.invars[0].aval.shape, strict=True):
        before[axis] = dim
    return x if tuple(before) == tuple(shape) else g.node("Expand", x, g.shape(shape))


def _reduce(op: str) -> Callable:
    return lambda g, eqn, x: g.node(op, x, np.array(eqn.params["axes"], np.int64), keepdims=0)


def _slice(g: Graph, eqn: Any, x: Value) -> Value:
    first, last, shape = eqn.params["start_indices"], eqn.params["limit_indices"], eqn.invars[0].aval.shape
    step = eqn.params["strides"] or (1,) * len(shape)
    cut = [i for i in range(len(shape)) if (first[i], last[i], step[i]) != (0, shape[i], 1)]
    if any(map(is_open, [*(first[i] for i in cut), *(last[i] for i in cut)])):
        raise unsupported(eqn, " of the batch")
    return g.node("Slice", x, *(np.array([v[i] for i in cut], np.int64) for v in (first, last)), *_axes(cut, step))


def _axes(cut: list[int], step: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(cut, np.int64), np.array([step[i] for i in cut], np.int64)


def _reverse(g: Graph, eqn: Any, x: Value) -> str:
    axes = np.array(eqn.params["dimensions"], np.int64)
    back = -np.ones_like(axes)
    return g.node("Slice", x, back, np.full_like(axes, np.iinfo(np.int64).min), axes, back)


def _split(g: Graph, eqn: Any, x: Value) -> list[Value]:
    edges = np.concatenate([[0], np.cumsum(np.array(eqn.params["sizes"], np.int64))])
    axis = np.array([eqn.params["axis"]], np.int64)
    return [g.node("Slice", x, edges[i : i + 1], edges[i + 1 : i + 2], axis) for i in range(len(edges) - 1)]


def _stack(g: Graph, eqn: Any, *parts: Value) -> str:
    axis = eqn.params["axis"]
    return g.node("Concat", *(g.node("Unsqueeze", x, np.array([axis], np.int64)) for x in parts), axis=axis)


def _select(g: Graph, eqn: Any, which: Value, *cases: Value) -> str:
    if eqn.invars[0].aval.dtype != bool:
        raise unsupported(eqn, " among more than two")
    return g.node("Where", which, cases[1], cases[0])


def _gather(g: Graph, eqn: Any, x: Value, index: Value) -> Value:
    """Translate indexing with an array of row numbers along one axis."""
    how, sizes, shape = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], eqn.invars[0].aval.shape
    axis = how.start_index_map[0] if len(how.start_index_map) == 1 else -1
    whole = all(size == (1 if i == axis else n) for i, (size, n) in enumerate(zip(sizes, shape, strict=True)))
    n_index = eqn.invars[1].aval.ndim - 1
    out = eqn.outvars[0].aval.ndim
    usual = (*range(axis), *range(axis + n_index, out))
    if axis < 0 or not whole or how.collapsed_slice_dims != (axis,) or tuple(how.offset_dims) != usual:
        raise unsupported(eqn, " of this form")
    index = g.node("Squeeze", g.node("Cast", index, to=TensorProto.INT64), np.array([-1], np.int64))
    # JAX's modes differ only for indices out of range; this one takes the nearest row.
    return g.node("Gather", x, _within(g, index, np.array(shape[axis] - 1, np.int64)), axis=axis)


def _scatter(g: Graph, eqn: Any, x: Value, index: Value, update: Value) -> str:
    """Translate `x.at[i].set(update)` for rows or single elements."""
    how = eqn.params["dimension_numbers"]
    into, depth = tuple(how.scatter_dims_to_operand_dims), eqn.invars[1].aval.shape[-1]
    plain = how.inserted_window_dims == into == tuple(range(depth)) and not how.operand_batching_dims
    n_update, n_index = eqn.invars[2].aval.ndim, eqn.invars[1].aval.ndim
    trailing = tuple(how.update_window_dims) == tuple(range(n_index - 1, n_update))
    if not plain or not trailing:
        raise unsupported(eqn, " of this form")
    shape = np.array(eqn.invars[0].aval.shape[:depth], np.int64)
    index = g.node("Cast", index, to=TensorProto.INT64)
    nearest = _within(g, index, shape - 1)
    if eqn.params["mode"] != GatherScatterMode.FILL_OR_DROP:
        return g.node("ScatterND", x, nearest, update)
    # Updates out of range are written to an extra row at the end, which is then cut off.
    inside = g.node("Cast", g.node("Equal", index, nearest), to=TensorProto.INT64)
    inside = g.node("Cast", g.node("ReduceMin", inside, np.array([-1], np.int64), keepdims=1), to=TensorProto.BOOL)
    extra = np.where(np.arange(depth) == 0, shape, 0)
    first, zero = np.array([1], np.int64), np.array([0], np.int64)
    longer = g.node("Concat", x, g.node("Slice", x, zero, first, zero), axis=0)
    longer = g.node("ScatterND", longer, g.node("Where", inside, index, extra), update)
    return g.node("Slice", longer, zero, shape[:1], zero)


def _within(g: Graph, index: Value, most: np.ndarray) -> str:
    """Clip int64 numbers to the range from 0 to `most`."""
    return g.node("Min", g.node("Max", index, np.zeros_like(most)), most)


def _starts(g: Graph, eqn: Any, index: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Return the start [D] int64 of a dynamic slice, clamped as in JAX so that the slice is within the array."""
    parts = [g.node("Unsqueeze", g.node("Cast", i, to=TensorProto.INT64), np.array([0], np.int64)) for i in index]
    most = np.array([n - size for n, size in zip(eqn.invars[0].aval.shape, sizes, strict=True)], np.int64)
    return _within(g, g.node("Concat", *parts, axis=0), most)


def _dynamic_slice(g: Graph, eqn: Any, x: Value, *index: Value) -> str:
    sizes = eqn.params["slice_sizes"]
    begin = _starts(g, eqn, index, sizes)
    return g.node("Slice", x, begin, g.node("Add", begin, np.array(sizes, np.int64)))


def _dynamic_update(g: Graph, eqn: Any, x: Value, update: Value, *index: Value) -> Value:
    shape, sizes = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    cut = [i for i in range(len(shape)) if shape[i] != sizes[i]]
    if not cut:
        return update
    if len(cut) > 1:
        raise unsupported(eqn, " along several axes")
    axis = np.array(cut, np.int64)
    begin = g.node("Gather", _starts(g, eqn, index, sizes), axis)
    before = g.node("Slice", x, np.zeros(1, np.int64), begin, axis)
    after = g.node(
        "Slice", x, g.node("Add", begin, np.array([sizes[cut[0]]], np.int64)), np.array([shape[cut[0]]]), axis
    )
    return g.node("Concat", before, update, after, axis=cut[0])


def _like(eqn: Any, value: float) -> np.ndarray:
    return np.array(value, eqn.invars[0].aval.dtype)


RULES: dict[str, Callable] = {
    "dot_general": _dot,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda g, eqn, x: g.node("Reshape", x, g.shape(eqn.params["new_sizes"])),
    "squeeze": lambda g, eqn, x: g.node("Squeeze", x, np.array(eqn.params["dimensions"], np.int64)),
    "expand_dims": lambda g, eqn, x: g.node("Unsqueeze", x, np.array(eqn.params["dimensions"], np.int64)),
    "transpose": lambda g, eqn, x: g.node("Transpose", x, perm=list(eqn.params["permutation"])),
    "concatenate": lambda g, eqn, *x: g.node("Concat", *x, axis=eqn.params["dimension"]),
    "stack": _stack,
    "tile": lambda g, eqn, x: g.node("Tile", x, np.array(eqn.params["reps"], np.int64)),
    "rev": _reverse,
    "slice": _slice,
    "split": _split,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "select_n": _select,
    "reduce_sum": _reduce("ReduceSum"),
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "rsqrt": lambda g, eqn, x: g.node("Reciprocal", g.node("Sqrt", x)),
    "square": lambda g, eqn, x: g.node("Mul", x, x),
    "integer_pow": lambda g, eqn, x: g.node("Pow", x, _like(eqn, eqn.params["y"])),
    "log1p": lambda g, eqn, x: g.node("Log", g.node("Add", x, _like(eqn, 1))),
    "clamp": lambda g, eqn, low, x, high: g.node("Min", g.node("Max", x, low), high),
    "rem": lambda g, eqn, x, y: g.node("Mod", x, y, fmod=1),
    "ne": lambda g, eqn, x, y: g.node("Not", g.node("Equal", x, y)),
    "and": _logical("And"),
    "or": _logical("Or"),
    "not": _logical("Not"),
    "convert_element_type": lambda g, eqn, x: g.node("Cast", x, to=onnx_type(eqn.params["new_dtype"])),
}
