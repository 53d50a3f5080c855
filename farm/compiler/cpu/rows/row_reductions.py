"""Define and schedule reductions of rows, the last axes of a tensor, such as sums and maxima.

Each lane of several vectors reduces its own part of a row; then the vectors are reduced, and then
the lanes of the one that is left. Loops over a row alone would wait for each step before the next.
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
)
from farm.compiler.ir.blocks import block_name
from farm.compiler.ir.dynamic_extents import product_at_batch_one
from farm.compiler.target.cpu_model import CpuModel
from farm.kernels.reduce_max_min import reduce_max, reduce_min

ROW_REDUCTION = "row_reduction"
_BY_VECTOR, _BY_LANE, _TOTAL, _REST = "by_vector", "by_lane", "total", "rest"
_STEPS = (_BY_VECTOR, _BY_LANE, _TOTAL, _REST)
_VECTORS = (4, 2, 1)  # that are reduced side by side: each waits for itself only
_FEWEST = 2  # steps of each


@dataclass(frozen=True, slots=True)
class Reduction:
    """How numbers become one: over an axis, and two of them; a mean divides by their number."""

    reducer: Callable[..., Any]
    of_two: Callable[[Any, Any], Any]
    is_mean: bool = False


_product = te.comm_reducer(
    lambda one, other: one * other, lambda dtype: tirx.const(1, dtype), "product"
)
REDUCTIONS = {
    "relax.max": Reduction(reduce_max, tirx.max),
    "relax.min": Reduction(reduce_min, tirx.min),
    "relax.sum": Reduction(te.sum, lambda one, other: one + other),
    "relax.prod": Reduction(_product, lambda one, other: one * other),
    "relax.mean": Reduction(te.sum, lambda one, other: one + other, is_mean=True),
}


def vectors_side_by_side(width: int, lanes: int) -> int | None:
    """Return how many vectors reduce a row of `width` numbers; None for a row too short for one."""
    fitting = (count for count in _VECTORS if width // (count * lanes) >= _FEWEST)
    return next(fitting, None)


def row_reduction_compute(
    reduction: Reduction, lanes: int, vectors: int, ones: int, data: te.Tensor
) -> te.Tensor:
    """Define the reduction of [..., width] to [..., 1, ..., 1], with `ones` axes of 1."""
    *outer, width = data.shape
    count = int(width) // (vectors * lanes)
    rest = int(width) - count * vectors * lanes
    step = te.reduce_axis((0, count), name="step")
    vector = te.reduce_axis((0, vectors), name="vector")
    lane = te.reduce_axis((0, lanes), name="lane")
    by_vector = te.compute(
        (*outer, vectors, lanes),
        lambda *at: reduction.reducer(
            data(*at[:-2], (step * vectors + at[-2]) * lanes + at[-1]), axis=step
        ),
        name=_BY_VECTOR,
    )
    by_lane = te.compute(
        (*outer, lanes),
        lambda *at: reduction.reducer(by_vector(*at[:-1], vector, at[-1]), axis=vector),
        name=_BY_LANE,
    )
    total = te.compute(
        tuple(outer),
        lambda *at: reduction.reducer(by_lane(*at, lane), axis=lane),
        name=_TOTAL,
    )
    parts = [total]
    if rest:
        last = te.reduce_axis((0, rest), name="last")
        first = count * vectors * lanes
        parts.append(
            te.compute(
                tuple(outer),
                lambda *at: reduction.reducer(data(*at, first + last), axis=last),
                name=_REST,
            )
        )

    def value(*at: te.Var) -> tirx.Expr:
        found = [part(*at[: len(outer)]) for part in parts]
        made = reduction.of_two(*found) if rest else found[0]
        return made / tirx.const(float(int(width)), data.dtype) if reduction.is_mean else made

    return te.compute((*outer, *[1] * ones), value, name=ROW_REDUCTION)


def schedule_row_reduction(sch: Schedule, cpu: CpuModel) -> None:
    """Compute all steps of a row at once, and parallelize the rows.

    What follows and has as many elements is computed with the row; what has more, such as the
    product of a row with its factor, is scheduled by itself.
    """
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    names = [block_name(sch, block) for block in blocks]
    at = last = names.index(ROW_REDUCTION)
    while last + 1 < len(blocks) and _size(sch, blocks[last + 1]) == _size(sch, blocks[at]):
        last += 1
    for block in inline_elementwise(sch, blocks[last + 1 :]):
        parallelize_and_vectorize_block(sch, block, cpu)
    steps = {name: block for name, block in zip(names, blocks, strict=True) if name in _STEPS}
    for name, block in zip(names[:last], blocks[:last], strict=True):
        if name not in _STEPS:
            sch.compute_inline(block)
    loops = sch.get_loops(blocks[last])
    row = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    for name in reversed(_STEPS):
        if name in steps:
            sch.compute_at(steps[name], row, preserve_unit_loops=True)
    parallelize_if_long_enough(sch, row, [steps[_BY_VECTOR]], cpu)
    *_, vector, lane, step = sch.get_loops(steps[_BY_VECTOR])
    sch.reorder(step, vector, lane)
    sch.vectorize(lane)
    sch.unroll(vector)
    *_, vector, lane = sch.get_loops(sch.decompose_reduction(steps[_BY_VECTOR], step))
    sch.vectorize(lane)
    sch.unroll(vector)
    *_, lane, vector = sch.get_loops(steps[_BY_LANE])
    sch.reorder(vector, lane)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(steps[_BY_LANE], vector))[-1])


def _size(sch: Schedule, block: SBlockRV) -> int:
    """Return the number of elements of a block's result."""
    return product_at_batch_one(sch.get(block).writes[0].source.shape)
