"""Read the values of constants in Relax graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

Array = np.ndarray[Any, Any]


def constant_value(expression: relax.Expr) -> Array | None:
    """Return the value of a constant tensor or scalar, None for any other expression.

    The array shares the memory of the constant: weights of hundreds of MB are read often.
    """
    if isinstance(expression, GenericConst):
        return tensor_as_array(expression.value)
    if isinstance(expression, tvm.tirx.FloatImm | tvm.tirx.IntImm):
        return np.asarray(expression.value, dtype=str(expression.ty.dtype))
    return None


def constant_address(expression: GenericConst) -> int:
    """Return the address of a constant's numbers, which tells it from all that live."""
    return array_address(tensor_as_array(expression.value))


def array_address(value: Array) -> int:
    """Return the address of an array's numbers."""
    return int(value.__array_interface__["data"][0])


def tensor_as_array(tensor: tvm.runtime.Tensor) -> Array:
    """Return a tensor as a read-only array without a copy; a copy if numpy lacks the type."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return np.asarray(tensor.numpy())
