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
        steps, factors = _unpacked(codes.value.numpy(), bits), scales.value.numpy()
        axis = int(attributes.get("quantize_axis", 1)) % steps.ndim
        middle = np.array(1 << (bits - 1), np.float32)
        if zeros is not None:
            given = _unpacked(zeros.value.numpy(), bits)[..., : factors.shape[-1]]
            middle = _of_blocks(given.astype(np.float32), size, axis, steps.shape[axis])
        factor = _of_blocks(factors.astype(np.float32), size, axis, steps.shape[axis])
        weight = ((steps.astype(np.float32) - middle) * factor).astype(factors.dtype)
        extent = steps.shape[int(attributes.get("gather_axis", 0))]
        index = builder.emit(relax.op.astype(index, "int64"))
        ends = relax.const(0, "int64"), relax.const(extent, "int64")
        behind = builder.emit(relax.op.add(index, ends[1]))
        index = builder.emit(
            relax.op.where(builder.emit(relax.op.less(index, ends[0])), behind, index)
        )
        return relax.op.take(
            relax.const(weight), index, int(attributes.get("gather_axis", 0)), mode="clip"
        )


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


def _of_blocks(given: Array, size: int, axis: int, extent: int) -> Array:
    """Return the numbers of blocks as those of their elements along an axis."""
    spread: Array = np.take(np.repeat(given, size, axis), np.arange(extent), axis)
    return spread


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
