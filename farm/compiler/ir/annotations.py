"""Annotations that pass between the files that define, schedule and transform a kernel.

Each group says who writes the annotation and who reads it; each key says what its value is. Keys of
blocks come from the `attrs` of `te.compute`. Keys of loops are written by schedule rules, and the
pass that reads one removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

# --- Blocks. Written for the main block of a kernel by cpu.conv_dense_compute.kernel_annotations
# and cpu.winograd.compute (TVM drops the key "workload"). Read by the schedule rules in cpu, by
# cpu.schedule (the report) and by graph.precision.fp16_weights.
TILE = "tile"  # [pixels, vectors, lanes]: the register tile
ORDER = "order"  # the order of the loops around the tile: kernel_config.PIXELS or CHANNELS
ROW_LENGTH = "row_length"  # of an image whose rows are computed as one, see conv_dense_compute
WORKLOAD = "workload_key"  # Workload.key of the workload that the configuration belongs to

# Written by cpu.winograd.compute for the main block, read by cpu.winograd.schedule.
OUTPUTS = "outputs"  # [down, across]: the outputs of a tile

# Written by cpu.winograd.compute for the padding of an input with strides, read by
# cpu.winograd.schedule.
PHASE_CHANNELS = "phase_channels"  # those of a group in a phase of the strides

# Written by cpu.int8.compute, read by cpu.conv_dense_schedule.
# The name of the tensor intrinsic that replaces the two innermost loops; empty for none.
INSTRUCTION = "instruction"

# Written by cpu.windows.depthwise_pool for the main block, read by the same file and
# cpu.windows.depthwise_row_tiles.
TILE_ROWS = "rows"  # the rows of output in a tile, two or more

# Written by cpu.depth_first.merge for the block of windows, read by cpu.depth_first.schedule.
BANDS = "bands"  # the parts of the rows, each a task for each block of channels

# Written by cpu.attention.compute for the last block, read by cpu.attention.schedule.
TASK_ROWS = "task_rows"  # the rows of queries of a task
KEYS = "keys"  # their number; scores fill whole tiles, and are more

# Written by cpu.rows.softmax_layer_norm, read by the same file.
ROW_LANES = "lanes"  # the lanes of the vectors by which a row is computed

# Written by graph.transposed_conv and cpu.winograd.compute for the block that interleaves phases,
# read by cpu.phase_interleave and cpu.winograd.schedule.
PHASES = "phases"  # (phases of rows, phases of columns)

# Written by cpu.conv_dense_compute for the main block, copied by cpu.conv_dense_schedule to the
# innermost loop of the reduction, read there by cpu.tir_passes.skip_padding_taps. [extent, padding
# before, stride, dilation] of the rows, then the same of the columns.
SKIP_PADDING_TAPS = "farm.seen"

# --- Loops. Written by cpu.conv_dense_schedule, cpu.windows.depthwise_pool and
# cpu.winograd.schedule with `annotate_fence`, read by cpu.tir_passes.load_fences with `fence_kind`.
FENCE = "farm.fence"  # a FenceKind, as an int


class FenceKind(IntEnum):
    """The change that cpu.tir_passes.load_fences makes to an annotated loop."""

    # All loads of a group of steps go before its multiply-adds. The weights are at least four
    # adjacent vectors.
    GROUPED_PACKED = 1
    # The same for the rows of a window. Rows beyond the image are skipped; neither operand need be
    # adjacent.
    GROUPED_ROWS = 2
    # Around a GROUPED_PACKED loop: hide the trip count, else LLVM keeps address counters for two
    # iterations.
    OPAQUE_TRIP_COUNT = 3
    # Keep no value that was loaded in one iteration in a register for the next.
    RELOAD_EACH_ITERATION = 4
    # Load each copy of a vector by a separate instruction.
    SEPARATE_LOADS = 5


# Written and read by cpu.tir_passes.load_fences and cpu.windows.depthwise_row_tiles; TVM links the
# text in.
IMPORT_LLVM = "pragma_import_llvm"  # TVM's: LLVM IR of the functions that the loop calls

# Written by cpu.conv_dense_schedule and cpu.winograd.schedule, read by cpu.tir_passes.prefetch.
# Innermost reduction loop: the rows of tiles in one image that use a block of the weight.
PREFETCH_NEXT_BLOCK = "farm.prefetch"
# Innermost reduction loop: 1. A panel is the part of the weight that one pass over the loop reads.
PREFETCH_NEXT_PANEL = "farm.prefetch_panel"
# Loop over tiles: 1. The epilogue of a tile reads tensors other than the sums.
PREFETCH_OPERANDS = "farm.prefetch_operands"

# Written by cpu.conv_dense_schedule, read by cpu.tir_passes.vector_tails.
# Loop over a tile's pixels, around those over vectors and lanes: the number of channels.
VECTOR_TAIL = "farm.tail"

# Written and read by cpu.windows.depthwise_row_tiles.
PEEL_FIRST_AND_LAST = "farm.cut"  # loop over columns, of three iterations or more: 1
ROLL_ROWS = "farm.rolled"  # loop over channels: 1
LOOP_NAME = (
    "farm.loop_name"  # a name by which `find_loop_by_name` finds the loop, one of the following
)
OUTPUT_ROWS = "output_rows"  # around sums and around results: the rows of output in a tile
INPUT_ROWS = "input_rows"  # around a copy of inputs: the rows of input

# Named by the parameter `x` of the `te.compute` of a depthwise convolution's inputs in
# cpu.windows.depthwise_pool, read by cpu.tir_passes.load_fences. It is no annotation: TVM names the
# axis of a block after that parameter.
COLUMN_AXIS = "v_x"  # the axis over columns

# Written by cpu.general_schedule.hint_loop_partition, read by cpu.tir_passes.safe_loop_partition
# and after it by TVM's LoopPartition.
# TVM's: 1 for a loop to split at the iteration at which a condition in it changes.
LOOP_PARTITION = "pragma_loop_partition_hint"
# Written by cpu.tir_passes.safe_loop_partition: 1. Nobody reads it: TVM keeps a loop of one
# iteration a loop if it has any annotation.
STAYS_LOOP = "farm.stays_loop"


def annotate_fence(sch: Schedule, loop: LoopRV, kind: FenceKind) -> None:
    """Request a change by cpu.tir_passes.load_fences for a loop."""
    sch.annotate(loop, FENCE, int(kind))


def fence_kind(loop: tirx.For) -> FenceKind:
    """Return the change that is requested for a loop with a FENCE annotation."""
    return FenceKind(int(loop.annotations[FENCE]))


def name_loop(sch: Schedule, loop: LoopRV, name: str) -> None:
    """Name a loop, so that `find_loop_by_name` finds it after other primitives changed the nest."""
    sch.annotate(loop, LOOP_NAME, name)


def find_loop_by_name(loops: Sequence[tirx.For], name: str) -> tirx.For:
    """Return the loop with a name.

    Raises ValueError if no loop has it.
    """
    for loop in loops:
        if loop.annotations.get(LOOP_NAME) == name:
            return loop
    raise ValueError(f"no loop is named {name}")
