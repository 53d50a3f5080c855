"""Arithmetic on shapes, as exporters write it (Shape, Gather, Add, Div, Slice), computed where all of it is known.

Left to run, it would leave every tensor behind it without a shape, and so without code. All of it is small tensors of integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

Array = np.ndarray[Any, Any]
_LARGEST = 64  # elements: a shape is no longer
_BEYOND = 1 << 31  # no extent: with such numbers, which stand for "to the end", nothing is computed here


def _take(_: Call, data: Array, index: Array) -> Array:
    if data.ndim != 1 or (data.size <= index).any() or (index < -data.size).any():
        raise ValueError("not an element of a shape")
    return np.asarray(data[index])


def _scattered(call: Call, data: Array, index: Array, updates: Array) -> Array:
    if data.ndim != 1 or str(call.attrs.reduction) != "update":
        raise ValueError("not one element of a shape")
    result = np.array(data)
    result[index] = updates
    return result


def _divided(_: Call, left: Array, right: Array) -> Array:
    """TVM's division truncates."""
    if (right == 0).any():
        raise ValueError("division by zero")
    return np.asarray(np.sign(left) * np.sign(right) * (np.abs(left) // np.abs(right)))


_ARITHMETIC: dict[str, Callable[..., Array]] = {
    "relax.add": lambda _, left, right: left + right,
    "relax.subtract": lambda _, left, right: left - right,
    "relax.multiply": lambda _, left, right: left * right,
    "relax.divide": _divided,
    "relax.less": lambda _, left, right: left < right,
    "relax.equal": lambda _, left, right: left == right,
    "relax.where": lambda _, condition, left, right: np.asarray(np.where(condition, left, right)),
    "relax.take": _take,
    "relax.scatter_elements": _scattered,
}
_WITH_LIMITS = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")
OPERATORS = {*_ARITHMETIC, "relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape", "relax.dynamic_strided_slice"}


def folded(call: Call, value: Callable[[relax.Expr], Array | None]) -> relax.Expr | None:
    """What a call of one of the operators comes to; None where not all of it is known. `value` tells the value of a constant."""
    name = call.op.name
    if name == "relax.shape_of":
        shape = getattr(call.args[0].ty, "shape", None)
        return shape if isinstance(shape, relax.ShapeExpr) and _known(shape.values) else None
    if name == "relax.shape_to_tensor":
        values = getattr(call.args[0].ty, "values", None)
        return (
            relax.const(np.array([int(extent) for extent in values], "int64"), "int64") if values is not None and _known(values) else None
        )
    operands = [value(argument) for argument in call.args[name == "relax.dynamic_strided_slice" :]]
    known = [operand for operand in operands if operand is not None and _is_of_shapes(operand)]
    if len(known) < len(operands):
        return None
    if name == "relax.tensor_to_shape":
        return relax.ShapeExpr([int(extent) for extent in known[0]])
    if name == "relax.dynamic_strided_slice":
        begin, end, strides = ([int(number) for number in operand] for operand in known)
        return relax.op.strided_slice(call.args[0], list(range(len(begin))), begin, end, strides)
    if name in _WITH_LIMITS and any((abs(operand) >= _BEYOND).any() for operand in known):
        return None
    result = np.asarray(_ARITHMETIC[name](call, *known), order="C")
    return relax.const(result, result.dtype.name)


def _is_of_shapes(value: Array) -> bool:
    """Extents, axes and answers about them; other integers are left to TVM."""
    return value.size <= _LARGEST and value.dtype in (np.int64, np.bool_)


def _known(extents: Any) -> bool:
    return all(isinstance(extent, tvm.tirx.IntImm) for extent in extents)
