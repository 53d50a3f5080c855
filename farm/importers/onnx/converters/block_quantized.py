"""Convert products with weights of few bits, whose blocks each have a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

Array = np.ndarray[Any, Any]
_BITS = (2, 4, 8)


class MatMulNBits(OnnxOpConverter):  # type: ignore[misc]
    """ONNX Runtime's MatMulNBits, as a product with the weight that its codes stand for.

    Codes of [N, blocks, bytes of a block] begin in the lowest bits of a byte.
    """

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any], _: Any
    ) -> relax.Expr:
        data, codes, scales, zeros, order, bias = [*inputs, None, None, None][:6]
        bits, size = int(attributes.get("bits", 4)), int(attributes["block_size"])
        depth, columns = int(attributes["K"]), int(attributes["N"])
        constant = all(one is None or isinstance(one, GenericConst) for one in (zeros, order))
        if not (isinstance(codes, GenericConst) and isinstance(scales, GenericConst) and constant):
            raise ValueError("MatMulNBits with a weight that is not constant")
        if bits not in _BITS:
            raise ValueError(f"MatMulNBits of {bits} bits")
        if order is not None:
            raise ValueError("MatMulNBits with an order of groups (g_idx)")
        blocks = -(-depth // size)
        steps = _unpacked(codes.value.numpy().reshape(columns, blocks, -1), bits)[..., :size]
        middle = np.full((columns, blocks), 1 << (bits - 1), np.float32)
        if zeros is not None:
            given = zeros.value.numpy()
            if given.dtype == np.uint8:
                given = _unpacked(given.reshape(columns, -1), bits)[:, :blocks]
            middle = given.reshape(columns, blocks).astype(np.float32)
        factors = scales.value.numpy().astype(np.float32).reshape(columns, blocks, 1)
        weight = (steps.astype(np.float32) - middle[..., None]) * factors
        weight = np.ascontiguousarray(weight.reshape(columns, -1)[:, :depth].T)
        dtype = str(data.ty.dtype)
        made = relax.op.matmul(data, relax.const(weight.astype(dtype), dtype))
        return made if bias is None else relax.op.add(builder.emit(made), bias)


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the codes of the last axis, of which several are in a byte, as uint8."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], -1)


CONVERTERS = {"MatMulNBits": MatMulNBits}
