"""Schedule a convolution and the windows over its result as one kernel.

Alwani et al., 2016, "Fused-Layer CNN Accelerators", call this layer fusion; the order of
computation is also called depth first.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.cpu.conv_dense_compute import CONVOLUTION, DEPTHWISE, POOL
from farm.compiler.cpu.conv_dense_schedule import (
    annotated_tile,
    find_grouped_inputs_block,
    find_main_block,
    fuse_short_reduction,
    producer_blocks,
    schedule_grouped_loads,
    split_reduction_into_groups,
)
from farm.compiler.cpu.depth_first.plan import DepthFirstPlan
from farm.compiler.cpu.general_schedule import (
    PRODUCT_CYCLES,
    parallelize_and_vectorize_block,
    parallelize_if_long_enough,
)
from farm.compiler.cpu.register_tiles import Tile
from farm.compiler.cpu.windows.depthwise_pool import AVERAGE, UNROLLED_TILES, tile_row_of_windows
from farm.compiler.cpu.windows.depthwise_row_tiles import tile_rows_of_windows
from farm.compiler.ir.annotations import BANDS, TILE, TILE_ROWS
from farm.compiler.ir.blocks import blocks_in_loops
from farm.compiler.target.cpu_model import CpuModel

# The name of the rule, for kernels with a convolution and one of the blocks WINDOWS.
DEPTH_FIRST, WINDOWS = "depth_first", (DEPTHWISE, POOL, AVERAGE)
_REGISTERS = "local"  # memory of its own, which LLVM promotes to registers, see winograd.compute


def schedule_depth_first(sch: Schedule, cpu: CpuModel) -> None:
    """Compute the convolution for a band of rows and a block of channels, then the windows."""
    convolution = sch.get_sblock(CONVOLUTION)
    windows = find_main_block(sch, WINDOWS)
    (epilogue,), (last,) = sch.get_consumers(convolution), sch.get_consumers(windows)
    tile = annotated_tile(sch, convolution)
    before = producer_blocks(sch, convolution)

    n, y, x, c, *reduced = sch.get_loops(windows)
    annotations = sch.get(windows).annotations
    bands, y = sch.split(y, [int(annotations[BANDS]), None])
    blocks, c = sch.split(c, [None, tile.block])
    sch.reorder(n, bands, blocks, y, x, c, *reduced)
    task = sch.fuse(n, bands, blocks)
    parallelize_if_long_enough(sch, task, [convolution, windows], cpu, PRODUCT_CYCLES)
    if TILE_ROWS in annotations:
        sch.split(y, [None, int(annotations[TILE_ROWS])])
        tile_rows_of_windows(sch, windows, last, UNROLLED_TILES)
    else:
        tile_row_of_windows(sch, cpu, windows, annotated_tile(sch, windows), last)
    sch.compute_at(epilogue, task, preserve_unit_loops=True)
    _tile_convolution(sch, cpu, convolution, epilogue, tile)
    for block in before:
        parallelize_and_vectorize_block(sch, block, cpu)


def plan_of_kernel(kernel: tirx.PrimFunc) -> DepthFirstPlan:
    """Return the plan that a kernel is annotated with."""
    found: dict[str, Any] = {}
    for nested in blocks_in_loops(kernel):
        if nested.block.name_hint == CONVOLUTION:
            found[TILE] = nested.block.annotations[TILE]
        elif nested.block.name_hint in WINDOWS:
            found[BANDS] = nested.block.annotations[BANDS]
    return DepthFirstPlan(Tile(*map(int, found[TILE])), int(found[BANDS]))


def _tile_convolution(
    sch: Schedule, cpu: CpuModel, convolution: SBlockRV, epilogue: SBlockRV, tile: Tile
) -> None:
    """Compute the convolution and its epilogue by register tiles, which divide a row."""
    *_, x, c = sch.get_loops(epilogue)
    columns, pixels = sch.split(x, [None, tile.pixels])
    vectors, lanes = sch.split(c, [tile.vectors, tile.lanes])
    _unroll_and_vectorize(sch, [pixels, vectors], lanes)
    sch.compute_at(convolution, columns, preserve_unit_loops=True)
    *_, pixels, c, ry, rx, rc = sch.get_loops(convolution)
    reduced = fuse_short_reduction(sch, cpu, [ry, rx, rc])
    inputs = find_grouped_inputs_block(sch, convolution)
    if inputs is not None:
        reduced = [*reduced[:-1], *split_reduction_into_groups(sch, reduced)]
    vectors, lanes = sch.split(c, [tile.vectors, tile.lanes])
    sch.reorder(*reduced, pixels, vectors, lanes)
    _unroll_and_vectorize(sch, [pixels, vectors], lanes)
    if inputs is not None:
        schedule_grouped_loads(sch, convolution, inputs, reduced[-2:], tile)
    *_, pixels, vectors, lanes = sch.get_loops(sch.decompose_reduction(convolution, reduced[0]))
    _unroll_and_vectorize(sch, [pixels, vectors], lanes)
    sch.set_scope(convolution, 0, _REGISTERS)


def _unroll_and_vectorize(sch: Schedule, loops: list[LoopRV], lanes: LoopRV) -> None:
    sch.vectorize(lanes)
    for loop in loops:
        sch.unroll(loop)
