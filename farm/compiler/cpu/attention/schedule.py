"""Schedule attention: all steps of a task while its scores are in the L2 cache."""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.cpu.attention.compute import (
    ATTENTION,
    FILLED,
    INVERSE,
    LARGEST,
    PACKED_KEYS,
    POWERS,
    RESULTS,
    SCORES,
    TOTAL,
    WEIGHTED,
)
from farm.compiler.cpu.conv_dense_schedule import annotated_tile
from farm.compiler.cpu.general_schedule import (
    PRODUCT_CYCLES,
    parallelize_if_long_enough,
    partition_last_vector,
)
from farm.compiler.cpu.register_tiles import Tile
from farm.compiler.ir.annotations import KEYS, TASK_ROWS
from farm.compiler.ir.blocks import loop_extent
from farm.compiler.target.cpu_model import CpuModel

_REGISTERS = "local"  # memory of its own, which LLVM promotes to registers, see winograd.compute


def schedule_attention(sch: Schedule, cpu: CpuModel) -> None:
    """Divide tasks among threads, and compute the steps of a task one after another.

    The scores of all rows of a task come first, by register tiles: a block of keys is read from
    memory once. Then the exponentials and their sums follow row by row, and the sums of values by
    register tiles.
    """
    attention, results, weighted, scores = (
        sch.get_sblock(name) for name in (ATTENTION, RESULTS, WEIGHTED, SCORES)
    )
    task_rows = int(sch.get(attention).annotations[TASK_ROWS])
    of_values, of_scores = annotated_tile(sch, weighted), annotated_tile(sch, scores)
    products = sch.cache_write(scores, 0, _REGISTERS)

    *outer, row, column = sch.get_loops(results)
    task, tile, row = sch.split(row, [None, task_rows // of_values.pixels, of_values.pixels])
    part, vector, lane = sch.split(column, [None, of_values.vectors, of_values.lanes])
    sch.reorder(*outer, task, tile, part, row, vector, lane)
    task = sch.fuse(*outer, task)
    parallelize_if_long_enough(sch, task, [weighted, scores], cpu, PRODUCT_CYCLES)
    _unrolled(sch, [row, vector], lane)
    sch.compute_at(weighted, part, preserve_unit_loops=True)
    *_, row, column, key = sch.get_loops(weighted)
    vector, lane = sch.split(column, [of_values.vectors, of_values.lanes])
    sch.reorder(key, row, vector, lane)
    _in_registers(sch, weighted, key, [row, vector], lane)
    _follow(sch, attention, part, of_values)
    for block in (weighted, results):
        sch.set_scope(block, 0, _REGISTERS)

    keys = int(sch.get(attention).annotations[KEYS])
    _softmax(sch, task)
    sch.compute_at(products, task, preserve_unit_loops=True)
    *_, row, column = sch.get_loops(products)
    tile, row = sch.split(row, [None, of_scores.pixels])
    part, vector, lane = sch.split(column, [None, of_scores.vectors, of_scores.lanes])
    sch.reorder(part, tile, row, vector, lane)
    _unrolled(sch, [row, vector], lane)
    sch.compute_at(scores, tile, preserve_unit_loops=True)
    *_, row, column, channel = sch.get_loops(scores)
    vector, lane = sch.split(column, [of_scores.vectors, of_scores.lanes])
    sch.reorder(channel, row, vector, lane)
    _in_registers(sch, scores, channel, [row, vector], lane)
    _pack_keys(sch, cpu, keys)
    partition_last_vector(sch, sch.get_loops(sch.get_sblock(FILLED))[-2], keys, of_scores.lanes)


def _pack_keys(sch: Schedule, cpu: CpuModel, keys: int) -> None:
    """Pack the keys of each head by itself."""
    packed = sch.get_sblock(PACKED_KEYS)
    *outer, part, _channel, column = sch.get_loops(packed)
    block = loop_extent(sch, column)
    _vector, lane = sch.split(column, [None, cpu.lanes])
    sch.vectorize(lane)
    outer = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    parallelize_if_long_enough(sch, outer, [packed], cpu)
    partition_last_vector(sch, part, keys, block)


def _follow(sch: Schedule, attention: SBlockRV, place: LoopRV, tile: Tile) -> None:
    """Write the results of each tile, but for rows beyond the last query."""
    sch.reverse_compute_at(attention, place, preserve_unit_loops=True)
    *_, row, column = sch.get_loops(attention)
    vector, lane = sch.split(column, [None, tile.lanes])
    _unrolled(sch, [row, vector], lane)


def _softmax(sch: Schedule, task: LoopRV) -> None:
    """Compute the exponentials and their sums row by row."""
    sch.compute_at(sch.get_sblock(INVERSE), task, preserve_unit_loops=True)
    row = sch.get_loops(sch.get_sblock(INVERSE))[-1]
    _reduce_row(sch, TOTAL, row)
    powers = sch.get_sblock(POWERS)
    sch.compute_at(powers, task, preserve_unit_loops=True)
    *_, row, _, lane = sch.get_loops(powers)
    sch.vectorize(lane)
    _reduce_row(sch, LARGEST, row)
    filled = sch.get_sblock(FILLED)
    sch.compute_at(filled, row, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(filled)[-1])


def _reduce_row(sch: Schedule, name: str, row: LoopRV) -> None:
    """Reduce a row, first by vectors, then across their lanes."""
    whole, by_lane = sch.get_sblock(name), sch.get_sblock(f"{name}_by_lane")
    sch.compute_at(whole, row, preserve_unit_loops=True)
    sch.compute_at(by_lane, row, preserve_unit_loops=True)
    *_, lane, part = sch.get_loops(by_lane)
    sch.reorder(part, lane)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(by_lane, part))[-1])


def _in_registers(
    sch: Schedule, block: SBlockRV, reduced: LoopRV, loops: list[LoopRV], lane: LoopRV
) -> None:
    """Unroll the sums of a tile and their beginnings."""
    _unrolled(sch, loops, lane)
    *_, row, vector, lane = sch.get_loops(sch.decompose_reduction(block, reduced))
    _unrolled(sch, [row, vector], lane)


def _unrolled(sch: Schedule, loops: list[LoopRV], lane: LoopRV) -> None:
    sch.vectorize(lane)
    for loop in loops:
        sch.unroll(loop)
