"""Convert operators with weights of few bits, whose blocks each have a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.kernels.block_quantized import BlockQuantizedWeight, emit_product, emit_rows

Array = np.ndarray[Any, Any]
_BITS = (2, 4, 8)
# Source: Dettmers et al., QLoRA, https://arxiv.org/abs/2305.14314
_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_FP4 = tuple(
    sign * one for sign in (1, -1) for one in (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
)


class MatMulNBits(OnnxOpConverter):  # type: ignore[misc]
    """ONNX Runtime's MatMulNBits.

    Codes of [N, blocks, bytes of a block] begin in the lowest bits of a byte. If the blocks do not
    fill the depth, or the columns no vectors, it is a product with the floats of the codes.
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
        rows, factors = codes.value.numpy().reshape(columns, -1), scales.value.numpy()
        factors = factors.reshape(columns, blocks)
        middle = None if zeros is None else _zero_points(zeros.value.numpy(), columns, blocks, bits)
        dtype = str(data.ty.dtype)
        weight = BlockQuantizedWeight.from_rows(rows, factors, middle, bits, size, depth)
        if weight is None:
            floats = _floats(rows, factors, middle, bits, size)[:, :depth]
            floats = np.ascontiguousarray(floats.T)
            made = relax.op.matmul(data, relax.const(floats.astype(dtype), dtype))
        elif dtype == "float32":
            made = emit_product(builder, data, weight)
        else:
            longer = builder.emit(relax.op.astype(data, "float32"))
            made = relax.op.astype(emit_product(builder, longer, weight), dtype)
        return made if bias is None else relax.op.add(builder.emit(made), bias)


class GatherBlockQuantized(OnnxOpConverter):  # type: ignore[misc]
    """ONNX Runtime's GatherBlockQuantized: rows of the weight that its codes stand for.

    Codes of fewer than 8 bits lie in the last axis, the first in the lowest bits of a byte.
    """

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any], _: Any
    ) -> relax.Expr:
        codes, index, scales, zeros = [*inputs, None][:4]
        constant = all(one is None or isinstance(one, GenericConst) for one in (codes, zeros))
        if not (constant and isinstance(scales, GenericConst)):
            raise ValueError("GatherBlockQuantized with a weight that is not constant")
        if str(codes.ty.dtype) != "uint8":
            raise ValueError(f"GatherBlockQuantized with codes of {codes.ty.dtype}")
        bits, size = int(attributes.get("bits", 4)), int(attributes.get("block_size", 128))
        rows, factors = codes.value.numpy(), scales.value.numpy()
        along = int(attributes.get("quantize_axis", 1)) % rows.ndim
        if rows.ndim != 2 or along != 1 or int(attributes.get("gather_axis", 0)):
            raise ValueError("GatherBlockQuantized of other axes than rows")
        columns, blocks = factors.shape
        depth = rows.shape[1] * 8 // bits
        middle = None if zeros is None else _zero_points(zeros.value.numpy(), columns, blocks, bits)
        dtype = str(factors.dtype)
        index = builder.emit(relax.op.astype(index, "int64"))
        weight = BlockQuantizedWeight.from_rows(rows, factors, middle, bits, size, depth)
        if weight is not None:
            made = emit_rows(builder, index, depth, weight)
            return made if dtype == "float32" else relax.op.astype(made, dtype)
        floats = _floats(rows, factors, middle, bits, size)
        # Behind the last row is one of zeros, for all that is out of range.
        table = np.concatenate([floats, np.zeros([1, depth], np.float32)]).astype(dtype)
        zero, end = relax.const(0, "int64"), relax.const(columns, "int64")
        emit, op = builder.emit, relax.op
        from_end = emit(op.add(index, end))
        counted = emit(op.where(emit(op.less(index, zero)), from_end, index))
        outside = emit(op.less(counted, zero))
        row = emit(op.where(outside, end, emit(op.minimum(counted, end))))
        return op.take(relax.const(table, dtype), row, 0, mode="clip")


class MatMulBnb4(OnnxOpConverter):  # type: ignore[misc]
    """ONNX Runtime's MatMulBnb4, whose codes of 4 bits are numbers of a table.

    The codes of the flat weight [N, K] begin in the highest bits of a byte.
    """

    @classmethod
    def _impl_v1(
        cls, _: Any, inputs: Sequence[Any], attributes: dict[str, Any], __: Any
    ) -> relax.Expr:
        data, codes, scales = [*inputs][:3]
        if not (isinstance(codes, GenericConst) and isinstance(scales, GenericConst)):
            raise ValueError("MatMulBnb4 with a weight that is not constant")
        columns, depth = int(attributes["N"]), int(attributes["K"])
        packed = codes.value.numpy().reshape(-1)
        steps = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[: columns * depth]
        factors = scales.value.numpy().astype(np.float32).reshape(-1)
        each = np.repeat(factors, int(attributes["block_size"]))[: steps.size]
        table = np.array(_NF4 if int(attributes["quant_type"]) == 1 else _FP4, np.float32)
        weight = (table[steps] * each).reshape(columns, depth)
        if attributes.get("transB", 1):
            weight = np.ascontiguousarray(weight.T)
        dtype = str(data.ty.dtype)
        return relax.op.matmul(data, relax.const(weight.astype(dtype), dtype))


def _zero_points(given: Array, columns: int, blocks: int, bits: int) -> Array:
    """Return the zero points [columns, blocks] of packed codes, or of numbers."""
    if given.dtype == np.uint8:
        return _unpacked(given.reshape(columns, -1), bits)[:, :blocks]
    return given.reshape(columns, blocks)


def _floats(rows: Array, scales: Array, zeros: Array | None, bits: int, size: int) -> Array:
    """Return the floats of rows of codes [columns, bytes]."""
    steps = _unpacked(rows, bits).astype(np.float32)

    def of_each(given: Array) -> Array:
        spread: Array = np.repeat(given.astype(np.float32), size, 1)[:, : steps.shape[1]]
        return spread

    middle = np.float32(1 << (bits - 1)) if zeros is None else of_each(zeros)
    floats: Array = (steps - middle) * of_each(scales)
    return floats


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the codes of the last axis, of which several are in a byte, as uint8."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], -1)


CONVERTERS = {
    "GatherBlockQuantized": GatherBlockQuantized,
    "MatMulBnb4": MatMulBnb4,
    "MatMulNBits": MatMulNBits,
}
