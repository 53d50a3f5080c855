"""Convert reductions of types, and over no axes, that TVM 0.27 converts incorrectly or not at all.

Means, roots and logarithms of integers are computed in float64 and cut off, as ONNX Runtime does.
Sums of float16 are computed in float32: one of float16 has few digits left after some hundred
elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx.converters.missing import Attributes, Inputs

_AXES_ARE_INPUT = 18  # from this opset on


class _Reduction(OnnxOpConverter):  # type: ignore[misc]
    """Base of reductions that TVM converts for some types."""

    theirs: type[OnnxOpConverter]
    of_function = True  # it is of functions of the elements, which no axes leave to be computed
    exact = False  # of integers it is an integer

    @classmethod
    def get_converter(cls, opset: int) -> Callable[..., relax.Expr]:
        """Return the converter for an opset."""
        theirs = cls.theirs.get_converter(opset)

        def convert(
            builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
        ) -> relax.Expr:
            dtype = str(inputs[0].ty.dtype)
            computed = cls._computed(dtype)
            given = list(inputs)
            if computed != dtype:
                given[0] = builder.emit(relax.op.astype(given[0], computed))
            if cls.of_function and opset >= _AXES_ARE_INPUT and _reduces_nothing(given, attributes):
                # Only the functions are computed: as of a last axis of one element.
                given = [builder.emit(relax.op.expand_dims(given[0], -1)), _LAST]
                attributes = {"keepdims": 0}
            given = onnx_frontend.onnx_input(given)
            made = theirs(builder, given, attributes, params)
            return made if computed == dtype else relax.op.astype(builder.emit(made), dtype)

        return convert

    @classmethod
    def _computed(cls, dtype: str) -> str:
        """Return the type to compute in."""
        if dtype == "float16":
            return "float32"
        return dtype if "float" in dtype or cls.exact else "float64"


_LAST = relax.const(np.array([-1]), "int64")


def _reduces_nothing(inputs: Inputs, attributes: Attributes) -> bool:
    """Return whether no axes are given, and that means none and not all."""
    if not attributes.get("noop_with_empty_axes", 0):
        return False
    axes = inputs[1] if len(inputs) > 1 else None
    return axes is None or (isinstance(axes, GenericConst) and axes.value.numpy().size == 0)


class ReduceSum(_Reduction):
    """Sum."""

    theirs = onnx_frontend.ReduceSum
    of_function = False
    exact = True


class ReduceMean(_Reduction):
    """Mean."""

    theirs = onnx_frontend.ReduceMean
    of_function = False


class ReduceL1(_Reduction):
    """Sum of magnitudes."""

    theirs = onnx_frontend.ReduceL1
    exact = True


class ReduceSumSquare(_Reduction):
    """Sum of squares."""

    theirs = onnx_frontend.ReduceSumSquare
    exact = True


class ReduceL2(_Reduction):
    """Root of the sum of squares."""

    theirs = onnx_frontend.ReduceL2


class ReduceLogSum(_Reduction):
    """Logarithm of the sum."""

    theirs = onnx_frontend.ReduceLogSum


class ReduceLogSumExp(_Reduction):
    """Logarithm of the sum of exponentials; TVM refuses that of integers."""

    theirs = onnx_frontend.ReduceLogSumExp
    exact = True


CONVERTERS = {
    "ReduceSum": ReduceSum,
    "ReduceMean": ReduceMean,
    "ReduceL1": ReduceL1,
    "ReduceL2": ReduceL2,
    "ReduceSumSquare": ReduceSumSquare,
    "ReduceLogSum": ReduceLogSum,
    "ReduceLogSumExp": ReduceLogSumExp,
}
