"""Define and schedule softmax, its logarithm, and layer norm over the last axis.

Each row is computed by itself: its sums and its maximum first by vectors, then across their lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from farm.compiler.cpu.general_schedule import (
    inline_elementwise,
    parallelize_and_vectorize_block,
    parallelize_if_long_enough,
    partition_last_vector,
    vectorize_with_tail,
)
from farm.compiler.ir.annotations import ROW_LANES
from farm.compiler.ir.blocks import block_name
from farm.compiler.ir.dynamic_extents import product_at_batch_one
from farm.compiler.target.cpu_model import CpuModel
from farm.kernels import vector_math

SOFTMAX, LOG_SOFTMAX, LAYER_NORM = "softmax", "log_softmax", "layer_norm"
# Steps that are cheaper to compute twice than to store
_INLINED = ("source", "from_first", "square")
_FILLED = "filled"
_BY_VECTORS = (_FILLED, "powers")  # steps over [blocks, lanes]


def softmax_compute(lanes: int, data: te.Tensor) -> te.Tensor:
    """Define softmax over the last axis."""
    *outer, _ = data.shape
    row = _exponentials(lanes, data)
    inverse = te.compute(
        tuple(outer), lambda *at: tirx.const(1, "float32") / row.total[at], name="inverse"
    )

    def value(*at: te.Var) -> tirx.Expr:
        return row.powers(*at[:-1], at[-1] // lanes, at[-1] % lanes) * inverse[at[:-1]]

    return te.compute(data.shape, value, name=SOFTMAX, attrs={ROW_LANES: lanes})


def log_softmax_compute(lanes: int, data: te.Tensor) -> te.Tensor:
    """Define the logarithm of softmax over the last axis."""
    *outer, _ = data.shape
    row = _exponentials(lanes, data)
    shift = te.compute(tuple(outer), lambda *at: vector_math.log(row.total[at]), name="shift")
    return te.compute(
        data.shape,
        lambda *at: data[at] - row.largest[at[:-1]] - shift[at[:-1]],
        name=LOG_SOFTMAX,
        attrs={ROW_LANES: lanes},
    )


@dataclass(frozen=True, slots=True)
class _Exponentials:
    """The largest number of each row, e to the power of its numbers less it, and their sum."""

    largest: te.Tensor
    powers: te.Tensor
    total: te.Tensor


def _exponentials(lanes: int, data: te.Tensor) -> _Exponentials:
    """Define the exponentials of the rows along the last axis.

    A row is padded to whole vectors with minus infinity, whose exponential is 0.
    """
    *outer, width = data.shape
    blocks = -(-int(width) // lanes)
    source = _filled(data, lanes, blocks)
    largest = reduce_row(source, "largest", te.max)
    powers = te.compute(
        (*outer, blocks, lanes),
        lambda *at: vector_math.exp_of_nonpositive(source[at] - largest[at[:-2]]),
        name="powers",
    )
    return _Exponentials(largest, powers, reduce_row(powers, "total", te.sum))


def layer_norm_compute(
    lanes: int, epsilon: float, data: te.Tensor, gain: te.Tensor, bias: te.Tensor
) -> te.Tensor:
    """Define layer norm over the last axis, whose extent `lanes` divides."""
    *outer, width = data.shape
    count = tirx.const(float(int(width)), "float32")
    source = te.compute(
        (*outer, int(width) // lanes, lanes),
        lambda *at: data(*at[:-2], at[-2] * lanes + at[-1]),
        name="source",
    )
    # The mean is a sum of differences from the first number, so that the mean of equal numbers is
    # exact. An error of the mean is multiplied by up to 1 / sqrt(epsilon).
    from_first = te.compute(
        source.shape, lambda *at: source[at] - data(*at[:-2], 0), name="from_first"
    )
    total = reduce_row(from_first, "total", te.sum)
    mean = te.compute(tuple(outer), lambda *at: data(*at, 0) + total[at] / count, name="mean")

    def square(*at: te.Var) -> tirx.Expr:
        return (source[at] - mean[at[:-2]]) * (source[at] - mean[at[:-2]])

    squares = reduce_row(te.compute(source.shape, square, name="square"), "squares", te.sum)
    scale = te.compute(
        tuple(outer),
        lambda *at: (
            tirx.const(1, "float32") / te.sqrt(squares[at] / count + tirx.const(epsilon, "float32"))
        ),
        name="scale",
    )

    def value(*at: te.Var) -> tirx.Expr:
        *row, column = at
        return (data[at] - mean[tuple(row)]) * scale[tuple(row)] * gain[column] + bias[column]

    return te.compute(data.shape, value, name=LAYER_NORM, attrs={ROW_LANES: lanes})


def _filled(data: te.Tensor, lanes: int, blocks: int) -> te.Tensor:
    width = int(data.shape[-1])

    def value(*at: te.Var) -> tirx.Expr:
        *row, block, lane = at
        column = block * lanes + lane
        here = data(*row, column)
        return (
            here
            if width % lanes == 0
            else tirx.if_then_else(column < width, here, tirx.const(float("-inf"), "float32"))
        )

    return te.compute((*data.shape[:-1], blocks, lanes), value, name=_FILLED)


def reduce_row(source: te.Tensor, name: str, reducer: Callable[..., Any]) -> te.Tensor:
    """Reduce [..., blocks, lanes] to [...], the blocks first."""
    *outer, blocks, lanes = source.shape
    block, lane = te.reduce_axis((0, blocks), name="block"), te.reduce_axis((0, lanes), name="lane")
    by_lane = te.compute(
        (*outer, lanes),
        lambda *at: reducer(source(*at[:-1], block, at[-1]), axis=block),
        name=f"{name}_by_lane",
    )
    return te.compute(tuple(outer), lambda *at: reducer(by_lane(*at, lane), axis=lane), name=name)


def schedule_softmax_layer_norm(sch: Schedule, cpu: CpuModel) -> None:
    """Compute all steps of a row while it is in the cache; parallelize the rows.

    What follows and has more or fewer elements, such as a padding, is scheduled by itself.
    """
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    at = next(
        index
        for index, block in enumerate(blocks)
        if block_name(sch, block) in (SOFTMAX, LOG_SOFTMAX, LAYER_NORM)
    )
    if _size(sch, blocks[-1]) != _size(sch, blocks[at]):
        result = sch.cache_write(blocks[at], 0, "global")
        for block in inline_elementwise(sch, blocks[at + 1 :]):
            parallelize_and_vectorize_block(sch, block, cpu)
        blocks = [*blocks[: at + 1], result]
    lanes = int(sch.get(blocks[at]).annotations[ROW_LANES])
    width = int(sch.get(blocks[at]).writes[0].source.shape[-1])
    last, steps = (
        blocks[-1],
        [block for block in blocks[:at] if block_name(sch, block) not in _INLINED],
    )
    for block in (*blocks[at:-1], *(block for block in blocks[:at] if block not in steps)):
        sch.compute_inline(block)
    *outer, column = sch.get_loops(last)
    row = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    for step in reversed(steps):
        sch.compute_at(step, row, preserve_unit_loops=True)
    parallelize_if_long_enough(sch, row, [*steps, last], cpu)
    vectorize_with_tail(sch, column, lanes)
    for step in steps:
        loops = sch.get_loops(step)
        if block_name(sch, step).endswith("_by_lane"):
            block, lane = loops[-1], loops[-2]
            sch.reorder(block, lane)
            sch.vectorize(lane)
            sch.vectorize(sch.get_loops(sch.decompose_reduction(step, block))[-1])
        elif block_name(sch, step) in _BY_VECTORS:
            sch.vectorize(loops[-1])
    for step in steps:
        if block_name(sch, step) == _FILLED:
            partition_last_vector(sch, sch.get_loops(step)[-2], width, lanes)


def _size(sch: Schedule, block: SBlockRV) -> int:
    """Return the number of elements of a block's result."""
    return product_at_batch_one(sch.get(block).writes[0].source.shape)
