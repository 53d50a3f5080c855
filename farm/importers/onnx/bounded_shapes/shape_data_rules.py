"""Compute with extents: the operators of the arithmetic that exporters write around shapes.

A rule takes the elements of its inputs and returns those of its output; None if they are unknown.
Then the node computes them when the model runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from farm.importers.onnx.bounded_shapes.extent import Extent, Product
from farm.importers.onnx.bounded_shapes.graph_writer import Array, BoundedGraph, UnboundedShape
from farm.importers.onnx.node_reading import node_attribute, optional_input, stated_axes


def minimum(graph: BoundedGraph, one: Extent, other: Extent) -> Extent:
    """Return the lesser of two extents."""
    if (one - other).upper_bound <= 0:
        return one
    if (other - one).upper_bound <= 0:
        return other
    return graph.new_count("Min", (one, other), min(one.upper_bound, other.upper_bound))


def maximum(graph: BoundedGraph, one: Extent, other: Extent) -> Extent:
    """Return the greater of two extents."""
    if (one - other).lower_bound >= 0:
        return one
    if (other - one).lower_bound >= 0:
        return other
    return graph.new_count("Max", (one, other), max(one.upper_bound, other.upper_bound))


def quotient(graph: BoundedGraph, one: Extent, divisor: int) -> Extent | None:
    """Return the whole part of an extent that is not negative by a positive number."""
    if divisor < 1 or one.lower_bound < 0:
        return None
    exact = one.divided(divisor)
    if exact is not None:
        return exact
    return graph.new_count("Div", (one, Extent(divisor)), one.upper_bound // divisor)


def compute_shape_data(graph: BoundedGraph, node: onnx.NodeProto) -> bool:
    """Compute the elements of a node's output, if they are known; return whether they are."""
    if node.op_type in ("Shape", "Size"):
        return _shape(graph, node)
    rule = _RULES.get(node.op_type)
    if rule is None or not any(name in graph.shape_data for name in node.input):
        return False
    given = [graph.known_shape_data(name) if name else None for name in node.input]
    if any(one is None and name for one, name in zip(given, node.input, strict=True)):
        return False
    found = rule(graph, node, given)
    if found is None:
        return False
    graph.set_shape_data(node.output[0], np.asarray(found, object), _dtype(graph, node))
    return True


def _shape(graph: BoundedGraph, node: onnx.NodeProto) -> bool:
    try:
        shape = graph.shape(node.input[0])
    except UnboundedShape:
        return False
    if node.op_type == "Size":
        size = Product.of(shape).extent
        if size is None:
            return False
        graph.set_shape_data(node.output[0], _array([size], ()), TensorProto.INT64)
        return True
    found = shape[node_attribute(node, "start", 0) : node_attribute(node, "end", len(shape))]
    graph.set_shape_data(node.output[0], _array(found, (len(found),)), TensorProto.INT64)
    return True


def _dtype(graph: BoundedGraph, node: onnx.NodeProto) -> int:
    if node.op_type == "Cast":
        return int(node_attribute(node, "to"))
    if node.op_type in _COMPARISONS or node.op_type in _LOGIC:
        return int(TensorProto.BOOL)
    return graph.dtype(node.input[1 if node.op_type == "Where" else 0])


def _array(values: Sequence[Any], shape: tuple[int, ...]) -> Array:
    made = np.empty(len(values), object)
    made[:] = values
    return made.reshape(shape)


def _elementwise(
    rule: Callable[[BoundedGraph, Any, Any], Any], given: Sequence[Array], graph: BoundedGraph
) -> Array | None:
    """Return a rule's results for the elements of two tensors; None if it knows not all of them."""
    one, other = np.broadcast_arrays(*given)
    found = [rule(graph, *pair) for pair in zip(one.flat, other.flat, strict=True)]
    return None if any(value is None for value in found) else _array(found, one.shape)


def _of_pairs(rule: Callable[[BoundedGraph, Any, Any], Any]) -> Any:
    def compute(graph: BoundedGraph, _: onnx.NodeProto, given: Sequence[Array]) -> Array | None:
        result = given[0]
        for other in given[1:]:
            made = _elementwise(rule, (result, other), graph)
            if made is None:
                return None
            result = made
        return result

    return compute


def _product(_: BoundedGraph, one: Extent, other: Extent) -> Extent | None:
    if other.is_constant:
        return one * other.constant
    return other * one.constant if one.is_constant else Product.of((one, other)).extent


def _quotient(graph: BoundedGraph, one: Extent, other: Extent) -> Extent | None:
    if other.is_constant:
        return quotient(graph, one, other.constant)
    exact = Product.of((one,)).divided(Product.of((other,)))
    return None if exact is None else exact.extent


def _equal(_: BoundedGraph, one: Any, other: Any) -> bool | None:
    if isinstance(one, bool):
        return bool(one == other)
    difference = one - other
    if difference.is_constant:
        return bool(difference.constant == 0)
    return False if difference.lower_bound > 0 or difference.upper_bound < 0 else None


def _less(_: BoundedGraph, one: Extent, other: Extent) -> bool | None:
    difference = one - other
    if difference.upper_bound < 0:
        return True
    return False if difference.lower_bound >= 0 else None


_COMPARISONS = {
    "Equal": _equal,
    "Less": _less,
    "Greater": lambda graph, one, other: _less(graph, other, one),
    "LessOrEqual": lambda graph, one, other: _negated(_less(graph, other, one)),
    "GreaterOrEqual": lambda graph, one, other: _negated(_less(graph, one, other)),
}
_LOGIC = {
    "And": lambda _, one, other: one and other,
    "Or": lambda _, one, other: one or other,
    "Xor": lambda _, one, other: one != other,
}


def _negated(value: bool | None) -> bool | None:
    return None if value is None else not value


def _where(_: BoundedGraph, __: onnx.NodeProto, given: Sequence[Array]) -> Array:
    condition, one, other = np.broadcast_arrays(*given)
    chosen = [
        yes if holds else no
        for holds, yes, no in zip(condition.flat, one.flat, other.flat, strict=True)
    ]
    return _array(chosen, condition.shape)


def _cast(_: BoundedGraph, node: onnx.NodeProto, given: Sequence[Array]) -> Array | None:
    to, values = node_attribute(node, "to"), given[0]
    if to in (TensorProto.INT64, TensorProto.INT32):
        found = [Extent(int(one)) if isinstance(one, bool) else one for one in values.flat]
        return _array(found, values.shape)
    if to == TensorProto.BOOL:
        known = [
            one if isinstance(one, bool) else _negated(_equal(_, one, Extent(0)))
            for one in values.flat
        ]
        return None if None in known else _array(known, values.shape)
    return None


def _constants(values: Array | None) -> Array | None:
    """Return constant extents as integers; None if they are not constant."""
    if values is None or not all(
        isinstance(one, Extent) and one.is_constant for one in values.flat
    ):
        return None
    return np.array([one.constant for one in values.flat], np.int64).reshape(values.shape)


def _gather(_: BoundedGraph, node: onnx.NodeProto, given: Sequence[Array]) -> Array | None:
    constants = _constants(given[1])
    if constants is None:
        return None
    return np.asarray(np.take(given[0], constants, axis=node_attribute(node, "axis", 0)), object)


def _concat(_: BoundedGraph, node: onnx.NodeProto, given: Sequence[Array]) -> Array:
    return np.concatenate(given, axis=node_attribute(node, "axis", 0))


def _slice(_: BoundedGraph, __: onnx.NodeProto, given: Sequence[Array]) -> Array | None:
    bounds = [_constants(one) for one in given[1:]]
    if len(bounds) < 2 or any(one is None for one in bounds):
        return None
    starts, ends, axes, steps = (bounds[at] if at < len(bounds) else None for at in range(4))
    assert starts is not None and ends is not None
    result = given[0]
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = int(axes[at]) if axes is not None else at
        step = int(steps[at]) if steps is not None else 1
        # As ONNX: an end before the first place is none, where Python counts from the end
        stop = None if step < 0 and end < -result.shape[axis] else int(end)
        chosen: list[Any] = [slice(None)] * result.ndim
        chosen[axis] = slice(int(start), stop, step)
        result = result[tuple(chosen)]
    return result


def _reshape(_: BoundedGraph, __: onnx.NodeProto, given: Sequence[Array]) -> Array | None:
    constants = _constants(given[1])
    if constants is None:
        return None
    shape = [
        given[0].shape[at] if extent == 0 else int(extent) for at, extent in enumerate(constants)
    ]
    return given[0].reshape(shape)


def _transpose(_: BoundedGraph, node: onnx.NodeProto, given: Sequence[Array]) -> Array:
    return given[0].transpose(node_attribute(node, "perm"))


def _squeeze(graph: BoundedGraph, node: onnx.NodeProto, given: Sequence[Array]) -> Array:
    axes = stated_axes(node, graph.array(optional_input(node, 1)))
    return np.squeeze(given[0], None if axes is None else tuple(axes))


def _unsqueeze(graph: BoundedGraph, node: onnx.NodeProto, given: Sequence[Array]) -> Array | None:
    axes = stated_axes(node, graph.array(optional_input(node, 1)))
    return None if axes is None else np.expand_dims(given[0], tuple(axes))


def _expand(_: BoundedGraph, __: onnx.NodeProto, given: Sequence[Array]) -> Array | None:
    constants = _constants(given[1])
    if constants is None:
        return None
    return np.broadcast_to(given[0], np.broadcast_shapes(given[0].shape, tuple(constants)))


def _reduced(rule: Callable[[BoundedGraph, Any, Any], Any]) -> Any:
    """Return the rule of a reduction over all elements."""

    def compute(graph: BoundedGraph, node: onnx.NodeProto, given: Sequence[Array]) -> Array | None:
        axes = stated_axes(node, graph.array(optional_input(node, 1)))
        values = given[0]
        if values.size == 0 or (axes is not None and len(axes) != values.ndim):
            return None
        result = values.flat[0]
        for other in list(values.flat)[1:]:
            result = rule(graph, result, other)
            if result is None:
                return None
        return _array([result], (1,) * values.ndim if node_attribute(node, "keepdims", 1) else ())

    return compute


_RULES: Mapping[str, Callable[[BoundedGraph, onnx.NodeProto, Any], Any]] = {
    "Identity": lambda _, __, given: given[0],
    "Cast": _cast,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "Where": _where,
    "Add": _of_pairs(lambda _, one, other: operator.add(one, other)),
    "Sub": _of_pairs(lambda _, one, other: operator.sub(one, other)),
    "Mul": _of_pairs(_product),
    "Div": _of_pairs(_quotient),
    "Min": _of_pairs(minimum),
    "Max": _of_pairs(maximum),
    "ReduceSum": _reduced(lambda _, one, other: operator.add(one, other)),
    "ReduceProd": _reduced(_product),
    "ReduceMin": _reduced(minimum),
    "ReduceMax": _reduced(maximum),
    **{name: _of_pairs(rule) for name, rule in (_COMPARISONS | _LOGIC).items()},
    "Not": lambda _, __, given: _array([not one for one in given[0].flat], given[0].shape),
}
