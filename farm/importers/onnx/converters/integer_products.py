"""Convert products of bytes and the quantization of their inputs: models quantized dynamically.

A product with a constant weight becomes one of bytes times signed bytes with sums of int32, for
which CPUs have kernels. Zero points are subtracted from the sums:

    sum (a - za) (b - zb) = sum a b - za sum b - zb (sum a - K za)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

_MOST_PRODUCTS = (1 << 31) // (255 * 128)  # of bytes, whose sum always fits into an int32


class MatMulInteger(OnnxOpConverter):  # type: ignore[misc]
    """MatMulInteger with a constant weight of [K, N]; TVM's converter widens both to int32."""

    @classmethod
    def _impl_v10(
        cls,
        builder: relax.BlockBuilder,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        params: Any,
    ) -> relax.Expr:
        data, weight, *zeros = inputs
        data_zero, weight_zero = [*zeros, None, None][:2]
        fits = (
            isinstance(weight, GenericConst)
            and weight.ty.ndim == 2
            and int(weight.ty.shape[0]) < _MOST_PRODUCTS
            and data.ty.ndim >= 2
            and (weight_zero is None or isinstance(weight_zero, GenericConst))
            and (data_zero is None or _is_one_number(data_zero))
        )
        if not fits:
            general = onnx_frontend.MatMulInteger._impl_v10
            return general(builder, inputs, attributes, params)
        values = weight.value.numpy()
        numbers = np.zeros(1, np.int64) if weight_zero is None else weight_zero.value.numpy()
        numbers = numbers.astype(np.int32).reshape(-1)
        if values.dtype == np.uint8:
            values, numbers = (values.astype(np.int16) - 128).astype(np.int8), numbers - 128
        return cls._product(builder, data, data_zero, values, numbers)

    @staticmethod
    def _product(
        builder: relax.BlockBuilder,
        data: relax.Expr,
        data_zero: relax.Expr | None,
        weight: np.ndarray[Any, Any],
        weight_zeros: np.ndarray[Any, Any],
    ) -> relax.Expr:
        """Return a product with int8 weights [K, N], of which all or each column has a zero."""

        def emit(value: relax.Expr) -> relax.Expr:
            return builder.emit(value)

        op, const = relax.op, relax.const
        sums = emit(op.matmul(data, const(weight, "int8"), out_dtype="int32"))
        zero = None
        if data_zero is not None:
            zero = emit(op.reshape(emit(op.astype(data_zero, "int32")), [1]))
            columns = weight.sum(0, dtype=np.int32)
            sums = emit(op.subtract(sums, emit(op.multiply(zero, const(columns, "int32")))))
        if weight_zeros.any():
            rows = emit(op.sum(emit(op.astype(data, "int32")), -1, keepdims=True))
            if zero is not None:
                depth = const(np.array([weight.shape[0]], np.int32), "int32")
                rows = emit(op.subtract(rows, emit(op.multiply(zero, depth))))
            part = emit(op.multiply(rows, const(weight_zeros, "int32")))
            sums = emit(op.subtract(sums, part))
        return sums


def _is_one_number(value: relax.Expr) -> bool:
    return all(int(extent) == 1 for extent in value.ty.shape)


CONVERTERS = {"MatMulInteger": MatMulInteger}
