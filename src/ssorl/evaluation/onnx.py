"""Translate a JAX function to an ONNX graph: each equation of its jaxpr by the rule for its primitive.

Values that depend only on constants (weights, masks, positions) are computed during the translation and stored. One
dimension of the inputs, the batch, may be open: it is symbolic in the jaxpr, and the graph reads it from the input's
shape when it runs.

Why this is not jax2onnx: version 0.17.1 with JAX 0.10.2 translates all bundled agents correctly, but it does not clamp
indices as JAX does. `lax.dynamic_slice` past the end returned an array of the wrong shape without an error, and `x[i]`
past the end failed in onnxruntime, when the policy ran. For `lax.fori_loop` and random keys it fails without a message
that helps the user. It leaves `jax.numpy.cumsum` replaced after its import, and installs 27 more packages, flax and
orbax among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import onnx
from jax.extend.core import ClosedJaxpr, Literal
from onnx import helper, numpy_helper

from ssorl.evaluation.onnx_rules import INLINE, PLAIN, RULES, Value, dimension, is_open, onnx_type, unsupported

OPSET = 18


def translate(f: Callable, inputs: dict[str, jax.ShapeDtypeStruct], outputs: Sequence[str], note: dict[str, str]):
    """Return the ONNX model of a function, checked by onnx.

    Args:
        f: maps the inputs, in order, to a flat list of arrays.
        inputs: name -> shape and dtype; one dimension may be symbolic.
        outputs: a name for each array that `f` returns.
        note: metadata to store in the model.

    Returns:
        The onnx.ModelProto.

    Raises:
        SsorlError: the function uses a primitive without a rule.
    """
    closed = jax.make_jaxpr(f)(*inputs.values())
    graph = Graph(inputs)
    results = graph.run(closed, list(inputs))
    infos = []
    for name, value, aval in zip(outputs, results, closed.out_avals, strict=True):
        graph.node("Identity", value, out=name)
        infos.append(helper.make_tensor_value_info(name, onnx_type(aval.dtype), [dimension(d) for d in aval.shape]))
    made = helper.make_graph(graph.nodes, "policy", graph.infos, infos, graph.stored)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9, producer_name="ssorl")
    helper.set_model_props(model, note)
    onnx.checker.check_model(model, full_check=True)
    return model


class Graph:
    """A graph under construction: its nodes in order, its constants, and a new name for each value."""

    def __init__(self, inputs: dict[str, jax.ShapeDtypeStruct]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.infos = [
            helper.make_tensor_value_info(n, onnx_type(x.dtype), [dimension(d) for d in x.shape])
            for n, x in inputs.items()
        ]
        self.open: str | None = None  # the name of the open dimension's size, [1] int64, once it is needed
        self.batched = next(((n, x.shape.index(d)) for n, x in inputs.items() for d in x.shape if is_open(d)), None)

    def store(self, array: Any) -> str:
        """Store an array as a constant and return its name."""
        name = f"c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op: str, *inputs: Value, out: str | None = None, **attributes: Any) -> str:
        """Add an operation and return the name of its result.

        Args:
            op: the ONNX operator.
            *inputs: names, or arrays, which are stored as constants.
            out: the name of the result; by default a new one.
            **attributes: the operator's attributes.
        """
        out = out or f"v{len(self.nodes)}"
        names = [x if isinstance(x, str) else self.store(x) for x in inputs]
        self.nodes.append(helper.make_node(op, names, [out], **attributes))
        return out

    def shape(self, dims: Sequence[Any]) -> Value:
        """Return a shape as an int64 tensor; the open dimension is read from the input's shape."""
        if not any(map(is_open, dims)):
            return np.array(dims, np.int64)
        if self.open is None:
            assert self.batched is not None
            name, axis = self.batched
            self.open = self.node("Shape", name, start=axis, end=axis + 1)
        parts = [self.open if is_open(d) else np.array([d], np.int64) for d in dims]
        return self.node("Concat", *parts, axis=0) if len(parts) > 1 else self.open

    def run(self, closed: ClosedJaxpr, inputs: Sequence[Value]) -> list[Value]:
        """Add the operations of a jaxpr.

        Args:
            closed: the jaxpr.
            inputs: a value for each of its inputs: a name in the graph, or an array.

        Returns:
            A value for each of its outputs.
        """
        jaxpr = closed.jaxpr
        known: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= {var: _host(value) for var, value in zip(jaxpr.constvars, closed.consts, strict=True)}

        def read(var: Any) -> Value:
            return np.asarray(var.val, getattr(var.aval, "dtype", None)) if isinstance(var, Literal) else known[var]

        needed, steps = {v for v in jaxpr.outvars if not isinstance(v, Literal)}, []
        for eqn in reversed(jaxpr.eqns):  # equations that no output needs are left out, such as unused random draws
            if needed.intersection(eqn.outvars):
                needed |= {v for v in eqn.invars if not isinstance(v, Literal)}
                steps.append(eqn)
        for eqn in reversed(steps):
            values = [read(v) for v in eqn.invars]
            known.update(zip(eqn.outvars, self.apply(eqn, values), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def apply(self, eqn: Any, values: list[Value]) -> list[Value]:
        """Translate one equation: inline its jaxpr, compute it now if its inputs are known, or apply its rule.

        Args:
            eqn: the equation.
            values: a value for each of its inputs.

        Returns:
            A value for each of its outputs.
        """
        name, sizes = eqn.primitive.name, [d for v in eqn.outvars for d in v.aval.shape]
        inner = next((eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params), None)
        if inner is not None and name in INLINE:
            return self.run(inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ()), values)
        if not any(isinstance(x, str) for x in values) and not any(map(is_open, sizes)):
            done = eqn.primitive.bind(*values, **eqn.params)
            return list(map(_host, done if eqn.primitive.multiple_results else [done]))
        if name in PLAIN:
            return [self.node(PLAIN[name], *values)]
        if name not in RULES:
            raise unsupported(eqn)
        result = RULES[name](self, eqn, *values)
        return result if isinstance(result, list) else [result]


def _host(value: Any) -> Any:
    """Return a NumPy array; random keys stay JAX arrays and are never stored."""
    return value if jax.numpy.issubdtype(value.dtype, jax.dtypes.extended) else np.asarray(value)
