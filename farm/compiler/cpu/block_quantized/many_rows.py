"""Compute the products of many rows with a weight of few bits, a few blocks at a time.

A thread dequantizes some columns of a few blocks, which stay in its L1 cache. It multiplies all
rows by them, adds the sums to the result, and goes on with the next blocks.
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
    parallelize_if_long_enough,
    schedule_blocks_after,
)
from farm.compiler.cpu.register_tiles import largest_divisor, round_up_to_multiple
from farm.compiler.ir.blocks import loop_extent
from farm.compiler.target.cpu_model import CpuModel
from farm.kernels.block_quantized import Layout, dequantized_element

MANY_ROWS = "block_quantized_many_rows"
_DEQUANTIZED, _OF_BLOCKS = "block_quantized_dequantized", "block_quantized_sums"
_DEPTH = 128  # of the floats that are made at a time
_UNROLLED = 8  # of them, in the loop of the products


def product_of_many_rows(
    data: te.Tensor, codes: te.Tensor, scales: te.Tensor, *zeros: te.Tensor
) -> te.Tensor:
    """Define the product of data [..., K] with a weight of codes: [..., N]."""
    layout = Layout.of(int(data.shape[-1]), codes.shape, scales.shape)
    rows, element = int(row_count(data)), flat_rows(data)
    column_block = layout.column_block
    depth = layout.block_size * largest_divisor(
        layout.depth // layout.block_size, max(1, _DEPTH // layout.block_size)
    )
    element_of_weight = dequantized_element(layout, codes, scales, *zeros)
    parts = (layout.depth // depth, layout.columns // column_block)
    floats = te.compute(
        (*parts, depth, column_block),
        lambda b, group, k, column: element_of_weight(group * column_block + column, b * depth + k),
        name=_DEQUANTIZED,
    )
    k = te.reduce_axis((0, depth), name="k")
    covered = round_up_to_multiple(rows, TILE_ROWS)

    def product(m: tirx.Expr, b: tirx.Expr, group: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        row = m if covered == rows else tirx.min(m, rows - 1)
        return te.sum(element(row, b * depth + k) * floats[b, group, k, column], axis=k)

    of_blocks = te.compute((covered, *parts, column_block), product, name=_OF_BLOCKS)
    b = te.reduce_axis((0, parts[0]), name="blocks")

    def total(m: tirx.Expr, n: tirx.Expr) -> tirx.Expr:
        part = of_blocks[m, b, tirx.floordiv(n, column_block), tirx.floormod(n, column_block)]
        return te.sum(part, axis=b)

    return with_outer_axes(te.compute((covered, layout.columns), total, name=MANY_ROWS), data)


def schedule_many_rows(sch: Schedule, cpu: CpuModel) -> None:
    """Divide the columns among threads; dequantize, and multiply tiles of rows."""
    blocks = schedule_blocks_after(sch, MANY_ROWS, cpu)
    whole, of_blocks, floats = blocks[MANY_ROWS], blocks[_OF_BLOCKS], blocks[_DEQUANTIZED]
    m, n, b = sch.get_loops(whole)
    column_block = loop_extent(sch, sch.get_loops(of_blocks)[3])
    tile = tile_row(loop_extent(sch, n), column_block, TILE_ROWS, cpu)
    m_outer, m_inner = sch.split(m, [None, TILE_ROWS])
    n_outer, n_vector, n_lane = sch.split(n, [None, tile.vectors, tile.lanes])
    sch.reorder(n_outer, b, m_outer, m_inner, n_vector, n_lane)
    parallelize_if_long_enough(sch, n_outer, [of_blocks], cpu, PRODUCT_CYCLES)
    sch.compute_at(of_blocks, m_outer, preserve_unit_loops=True)
    sch.set_scope(of_blocks, 0, "local")
    sch.compute_at(floats, b, preserve_unit_loops=True)
    *_, row, one, group, column, k = sch.get_loops(of_blocks)
    vector, lane = sch.split(column, [None, tile.lanes])
    k_outer, k_inner = sch.split(k, [None, _UNROLLED])
    sch.reorder(k_outer, k_inner, row, one, group, vector, lane)
    unroll_and_vectorize(sch, [k_inner, row, one, group, vector], lane)
    *_, row, one, group, vector, lane = sch.get_loops(sch.decompose_reduction(of_blocks, k_outer))
    unroll_and_vectorize(sch, [row, one, group, vector], lane)
    *_, k, column = sch.get_loops(floats)
    vector, lane = sch.split(column, [None, tile.lanes])
    unroll_and_vectorize(sch, [sch.split(k, [None, _UNROLLED])[1], vector], lane)
    unroll_and_vectorize(sch, [m_inner, n_vector], n_lane)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(whole, b))[-1])
