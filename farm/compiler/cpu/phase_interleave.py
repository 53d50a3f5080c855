"""Schedule the kernel that interleaves the phases of a transposed convolution."""

from __future__ import annotations

from tvm.s_tir import Schedule

from farm.compiler.cpu.general_schedule import (
    hint_loop_partition,
    parallelize_if_long_enough,
    schedule_general,
)
from farm.compiler.cpu.register_tiles import largest_divisor
from farm.compiler.graph.convolutions.transposed_conv import INTERLEAVED
from farm.compiler.ir.annotations import PHASES
from farm.compiler.ir.blocks import block_name, has_reduction, loop_extent
from farm.compiler.target.cpu_model import CpuModel


def schedule_phase_interleave(sch: Schedule, cpu: CpuModel) -> None:
    """Inline all blocks into the last one and unroll the loops over phases.

    A concatenation of channels is inlined too. In an unrolled loop each phase is copied without a
    test.
    """
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    main, last = (
        next(block for block in blocks if block_name(sch, block) == INTERLEAVED),
        blocks[-1],
    )
    rows, columns = image = [loop_extent(sch, loop) for loop in sch.get_loops(main)[1:3]]
    phases = [int(count) for count in sch.get(main).annotations[PHASES]]
    fits = [loop_extent(sch, loop) for loop in sch.get_loops(last)[1:3]] == image and len(
        sch.get_loops(last)
    ) == 4
    if (
        not fits
        or any(has_reduction(sch, block) for block in blocks)
        or rows % phases[0]
        or columns % phases[1]
    ):
        schedule_general(sch, cpu)
        return
    for block in blocks[:-1]:
        sch.compute_inline(block)
    count, row, column, channel = sch.get_loops(last)
    (row, phase_y), (column, phase_x) = (
        sch.split(loop, [None, count]) for loop, count in zip((row, column), phases, strict=True)
    )
    sch.reorder(count, row, phase_y, column, phase_x, channel)
    for phase in (phase_y, phase_x):
        sch.unroll(phase)
    vectors, lanes = sch.split(
        channel, [None, largest_divisor(loop_extent(sch, channel), cpu.lanes)]
    )
    hint_loop_partition(sch, vectors, last)
    sch.vectorize(lanes)
    parallelize_if_long_enough(sch, sch.fuse(count, row), [last], cpu)
