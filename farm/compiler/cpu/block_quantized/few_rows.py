"""Compute the products of a few rows with a weight of few bits from its codes, in registers.

A code becomes a float without a conversion: as the highest bits of the mantissa of a number from 1
to 2, that number is 1 + code / 2 ** bits. The sums of a block are of these numbers, and its scale
and zero point are applied to the sums:

    sum(x * (code - zero)) * scale
        = (sum(x * (1 + code / 2 ** bits)) - sum(x) * (1 + zero / 2 ** bits)) * 2 ** bits * scale

All sums of a block and of a tile of rows and columns are in registers.
"""

from __future__ import annotations

from tvm import te, tirx
from tvm.s_tir import Schedule

from farm.compiler.cpu.block_quantized.tiles import (
    TILE_ROWS,
    flat_rows,
    row_count,
    tile_row,
    unroll_and_vectorize,
    with_outer_axes,
)
from farm.compiler.cpu.general_schedule import (
    PRODUCT_CYCLES,
    parallelize_and_vectorize_block,
    parallelize_if_long_enough,
    schedule_blocks_after,
)
from farm.compiler.cpu.register_tiles import largest_divisor
from farm.compiler.ir.blocks import is_dynamic_loop, loop_extent
from farm.compiler.target.cpu_model import CpuModel
from farm.kernels.block_quantized import WORD_BITS, Layout

FEW_ROWS = "block_quantized_few_rows"
_SUMS, _OF_BLOCK = "block_quantized_row_sums", "block_quantized_block_sums"
_MANTISSA = 23  # bits of a float32's mantissa
_ONE = 0x3F800000  # the bits of 1.0
_UNROLLED_WORDS = 8  # of a block; more would be much code


def product_of_few_rows(
    data: te.Tensor, codes: te.Tensor, scales: te.Tensor, *zeros: te.Tensor
) -> te.Tensor:
    """Define the product of data [..., K] with a weight of codes: [..., N]."""
    layout = Layout.of(int(data.shape[-1]), codes.shape, scales.shape)
    rows, element = row_count(data), flat_rows(data)
    blocks, column_block = layout.depth // layout.block_size, layout.column_block
    words = layout.block_size // layout.codes_of_word
    step = te.reduce_axis((0, layout.block_size), name="step")
    sums = te.compute(
        (rows, blocks),
        lambda m, b: te.sum(element(m, b * layout.block_size + step), axis=step),
        name=_SUMS,
    )
    word = te.reduce_axis((0, words), name="word")
    slot = te.reduce_axis((0, layout.codes_of_word), name="slot")

    def product(m: tirx.Expr, b: tirx.Expr, group: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        value = element(m, b * layout.block_size + word * layout.codes_of_word + slot)
        code = _as_float(codes[group, b * words + word, column], slot, layout.bits)
        return te.sum(value * code, axis=[word, slot])

    of_block = te.compute(
        (rows, blocks, layout.columns // column_block, column_block), product, name=_OF_BLOCK
    )
    b = te.reduce_axis((0, blocks), name="block")
    steps = tirx.const(float(1 << layout.bits), "float32")

    def scaled(m: tirx.Expr, n: tirx.Expr) -> tirx.Expr:
        group, column = tirx.floordiv(n, column_block), tirx.floormod(n, column_block)
        middle: tirx.Expr = tirx.const(
            1 + layout.default_zero_point / (1 << layout.bits), "float32"
        )
        if zeros:
            zero = tirx.Cast("float32", zeros[0][group, b, column])
            middle = tirx.const(1.0, "float32") + zero / steps
        total = of_block[m, b, group, column] - sums[m, b] * middle
        return te.sum(total * steps * scales[group, b, column], axis=b)

    return with_outer_axes(te.compute((rows, layout.columns), scaled, name=FEW_ROWS), data)


def _as_float(word: tirx.Expr, slot: tirx.Expr, bits: int) -> tirx.Expr:
    """Return 1 + code / 2 ** bits of the code in a slot of a word."""
    highest, unsigned = _MANTISSA - bits, "uint32"

    def of_slot(at: int) -> tirx.Expr:
        left = highest - at * bits
        moved = tirx.shift_left if left > 0 else tirx.shift_right
        return moved(word, tirx.const(abs(left), unsigned)) if left else word

    # Which slot it is, is known once the loops are unrolled.
    last, *others = reversed(range(WORD_BITS // bits))
    moved = of_slot(last)
    for at in others:
        moved = tirx.Select(slot == at, of_slot(at), moved)
    mask = tirx.const(((1 << bits) - 1) << highest, unsigned)
    whole = tirx.bitwise_or(tirx.bitwise_and(moved, mask), tirx.const(_ONE, unsigned))
    return tirx.reinterpret("float32", whole)


def schedule_few_rows(sch: Schedule, cpu: CpuModel) -> None:
    """Divide the columns among threads, and compute tiles of rows and columns block by block."""
    blocks = schedule_blocks_after(sch, FEW_ROWS, cpu)
    parallelize_and_vectorize_block(sch, blocks[_SUMS], cpu)
    whole, of_block = blocks[FEW_ROWS], blocks[_OF_BLOCK]
    written = sch.cache_write(whole, 0, "local")
    m, n, b = sch.get_loops(whole)
    column_block = loop_extent(sch, sch.get_loops(of_block)[3])
    rows = 1 if is_dynamic_loop(sch, m) else largest_divisor(loop_extent(sch, m), TILE_ROWS)
    tile = tile_row(loop_extent(sch, n), column_block, rows, cpu)
    m_outer, m_inner = sch.split(m, [None, rows])
    n_outer, n_vector, n_lane = sch.split(n, [None, tile.vectors, tile.lanes])
    sch.reorder(n_outer, m_outer, b, m_inner, n_vector, n_lane)
    parallelize_if_long_enough(sch, n_outer, [of_block], cpu, PRODUCT_CYCLES)
    sch.reverse_compute_at(written, m_outer, preserve_unit_loops=True)
    sch.vectorize(sch.split(sch.get_loops(written)[-1], [None, tile.lanes])[1])
    sch.compute_at(of_block, b, preserve_unit_loops=True)
    sch.set_scope(of_block, 0, "local")
    *_, row, one, group, column, word, slot = sch.get_loops(of_block)
    vector, lane = sch.split(column, [None, tile.lanes])
    sch.reorder(word, slot, row, one, group, vector, lane)
    short = loop_extent(sch, word) <= _UNROLLED_WORDS
    unroll_and_vectorize(sch, [*([word] if short else []), slot, row, one, group, vector], lane)
    *_, row, one, group, vector, lane = sch.get_loops(sch.decompose_reduction(of_block, word))
    unroll_and_vectorize(sch, [row, one, group, vector], lane)
    unroll_and_vectorize(sch, [m_inner, n_vector], n_lane)
    *_, row, vector, lane = sch.get_loops(sch.decompose_reduction(whole, b))
    unroll_and_vectorize(sch, [row, vector], lane)
