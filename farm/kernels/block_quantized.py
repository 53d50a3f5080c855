"""Emit products with weights of few bits, and rows of such weights, without making them floats.

A weight [N, K] has codes of 2, 4 or 8 bits. Each block of neighbouring codes of a row has a scale
and a zero point: a number is (code - zero point) * scale. This is the format of ONNX Runtime's
MatMulNBits and GatherBlockQuantized:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md

A build stores the codes as words of 32 bits [N / C, K * bits / 32, C], of which the first code is
in the lowest bits; scales and zero points are [N / C, blocks, C]. A column block has C columns, so
that a vector of words holds codes of neighbouring columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

Array = np.ndarray[Any, Any]
PRODUCT, ROWS = "block_quantized_product", "block_quantized_rows"
WORD_BITS = 32
_COLUMN_BLOCKS = (32, 16, 8)


@dataclass(frozen=True, slots=True)
class BlockQuantizedWeight:
    """A weight [N, K] of few bits, as a build stores it; without zero points the middle is zero."""

    codes: Array  # uint32 [N / C, K * bits / 32, C]
    scales: Array  # float16 or float32 [N / C, blocks, C]
    zeros: Array | None  # uint8 or a floating-point type [N / C, blocks, C]

    @classmethod
    def from_rows(
        cls, codes: Array, scales: Array, zeros: Array | None, bits: int, size: int, depth: int
    ) -> BlockQuantizedWeight | None:
        """Return the weight of rows of codes [N, bytes], with scales and zero points [N, blocks].

        A row begins in the lowest bits of its first byte, and a block has `size` codes. Returns
        None if the blocks do not fill the depth, or the columns do not fill column blocks.
        """
        columns, blocks = scales.shape
        column_block = next((count for count in _COLUMN_BLOCKS if columns % count == 0), 0)
        if not column_block or size * blocks != depth or size * bits % WORD_BITS:
            return None
        words = np.ascontiguousarray(codes).view("<u4").astype(np.uint32)

        def by_column_blocks(rows: Array) -> Array:
            split = rows.reshape(columns // column_block, column_block, -1)
            return np.ascontiguousarray(split.transpose(0, 2, 1))

        return cls(
            by_column_blocks(words),
            by_column_blocks(scales),
            None if zeros is None else by_column_blocks(zeros),
        )

    def operands(self, builder: relax.BlockBuilder) -> list[relax.Expr]:
        """Return the tensors as the kernels take them; no float is narrower than float32."""
        scales = relax.const(self.scales)
        if self.scales.dtype != np.float32:
            scales = builder.emit(relax.op.astype(scales, "float32"))
        return [relax.const(self.codes), scales, *self._zero_points(builder)]

    def _zero_points(self, builder: relax.BlockBuilder) -> list[relax.Expr]:
        if self.zeros is None:
            return []
        zeros = relax.const(self.zeros)
        if self.zeros.dtype not in (np.uint8, np.float32):
            zeros = builder.emit(relax.op.astype(zeros, "float32"))
        return [zeros]


@dataclass(frozen=True, slots=True)
class Layout:
    """The extents of a weight's tensors."""

    depth: int
    columns: int
    column_block: int  # columns
    block_size: int  # codes of a block
    bits: int

    @classmethod
    def of(cls, depth: int, codes: Sequence[int], scales: Sequence[int]) -> Layout:
        """Return the layout of tensors of these shapes."""
        groups, words, column_block = (int(extent) for extent in codes)
        bits = words * WORD_BITS // depth
        return cls(depth, groups * column_block, column_block, depth // int(scales[1]), bits)

    @property
    def codes_of_word(self) -> int:
        """Return how many codes a word holds."""
        return WORD_BITS // self.bits

    @property
    def default_zero_point(self) -> int:
        """Return the zero point of a weight without zero points."""
        return 1 << (self.bits - 1)


def emit_product(
    builder: relax.BlockBuilder, data: relax.Expr, weight: BlockQuantizedWeight
) -> relax.Expr:
    """Emit the product of data [..., K] of float32 with the transpose of a weight: [..., N]."""
    operands = [data, *weight.operands(builder)]
    return builder.emit(builder.call_te(_product, *operands, primfunc_name_hint=PRODUCT))


def emit_rows(
    builder: relax.BlockBuilder, index: relax.Expr, depth: int, weight: BlockQuantizedWeight
) -> relax.Expr:
    """Emit the rows of a weight [N, K] that an index [...] of int64 selects: [..., K] of float32.

    A negative index counts from the end. The row of an index out of range is zero.
    """
    operands = [index, *weight.operands(builder)]

    def rows(*tensors: te.Tensor) -> te.Tensor:
        return _rows(depth, *tensors)

    return builder.emit(builder.call_te(rows, *operands, primfunc_name_hint=ROWS))


def _product(data: te.Tensor, codes: te.Tensor, scales: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
    """Define the product as one with a matrix of floats; compilers have better ways."""
    *outer, depth = data.shape
    layout = Layout.of(int(depth), codes.shape, scales.shape)
    element_of_weight = dequantized_element(layout, codes, scales, *zeros)
    weight = te.compute(
        (layout.depth, layout.columns),
        lambda k, n: element_of_weight(n, k),
        name=f"{PRODUCT}_weight",
    )
    k = te.reduce_axis((0, layout.depth), name="k")
    return te.compute(
        (*outer, layout.columns),
        lambda *at: te.sum(data(*at[:-1], k) * weight[k, at[-1]], axis=k),
        name=PRODUCT,
    )


def _rows(
    depth: int, index: te.Tensor, codes: te.Tensor, scales: te.Tensor, *zeros: te.Tensor
) -> te.Tensor:
    layout = Layout.of(depth, codes.shape, scales.shape)
    element_of_weight = dequantized_element(layout, codes, scales, *zeros)
    end, zero = tirx.const(layout.columns, "int64"), tirx.const(0, "int64")

    def element(*at: tirx.Var) -> tirx.Expr:
        given = index(*at[:-1])
        counted = given + tirx.Select(given < zero, end, zero)
        row = tirx.min(tirx.max(counted, zero), end - 1)
        known = tirx.And(counted >= zero, counted < end)
        return tirx.Select(known, element_of_weight(row, at[-1]), tirx.const(0, "float32"))

    return te.compute((*index.shape, depth), element, name=ROWS)


def dequantized_element(
    layout: Layout, codes: te.Tensor, scales: te.Tensor, *zeros: te.Tensor
) -> Callable[[tirx.Expr, tirx.Expr], tirx.Expr]:
    """Return the function of a row and a place in it that is the dequantized element there."""
    column_block, mask = layout.column_block, tirx.const((1 << layout.bits) - 1, "uint32")

    def element_of_weight(row: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        group, column = tirx.floordiv(row, column_block), tirx.floormod(row, column_block)
        word = codes[group, tirx.floordiv(place, layout.codes_of_word), column]
        shift = tirx.Cast("uint32", tirx.floormod(place, layout.codes_of_word) * layout.bits)
        code = tirx.bitwise_and(tirx.shift_right(word, shift), mask)
        block = tirx.floordiv(place, layout.block_size)
        middle: tirx.Expr = tirx.const(float(layout.default_zero_point), "float32")
        if zeros:
            middle = tirx.Cast("float32", zeros[0][group, block, column])
        return (tirx.Cast("float32", code) - middle) * scales[group, block, column]

    return element_of_weight
