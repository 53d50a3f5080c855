"""Compute products of few rows with the rows of a tensor, where they lie.

An attention of one new token multiplies a row of queries by each key of a cache. As a product of
matrices it would need the keys transposed, which takes longer than the product. Here both rows are
read by vectors, and the sums of a vector's lanes are added in halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import tvm
from tvm import relax, te, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import mutator
from tvm.s_tir import Schedule

from farm.compiler.cpu.general_schedule import (
    PRODUCT_CYCLES,
    parallelize_if_long_enough,
    schedule_blocks_after,
)
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import is_dynamic, shapes_are_equal
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, permute_dims_axes, shape_of
from farm.compiler.target.cpu_model import CpuModel

DOT_PRODUCTS = "dot_products"
_BY_LANE, _HALVES = "products_by_lane", "halves_of_"
_MOST_ROWS, _FEWEST_KEYS, _FEWEST_LANES = 7, 16, 4
_KEYS_OF_TASK = 16


@mutator
class DotProductRewriter(Rewriter):
    """Replaces products of few rows with a transposed tensor, unless that is a weight."""

    def __init__(self, module: tvm.IRModule, cpu: CpuModel) -> None:
        super().__init__(module)
        self._cpu = cpu

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.matmul": self._product}

    def _product(self, call: Call) -> relax.Expr | None:
        first, second = call.args
        turned = self.called(second, "relax.permute_dims")
        rows, columns = shape_of(first), shape_of(second)
        if turned is None or rows is None or columns is None or len(columns) < 3:
            return None
        axes = permute_dims_axes(turned) or [*reversed(range(len(columns)))]
        if (
            {str(first.ty.dtype), str(second.ty.dtype)} != {"float32"}
            or constant_value(turned.args[0]) is not None
            or axes[-2] != len(axes) - 1  # a row of keys is contiguous
            or not shapes_are_equal(rows[:-2], columns[:-2])
            or any(map(is_dynamic, (*rows[-2:], columns[-1])))
        ):
            return None
        depth, lanes = int(rows[-1]), self._cpu.lanes
        while depth % lanes:
            lanes //= 2
        if int(rows[-2]) > _MOST_ROWS or int(columns[-1]) < _FEWEST_KEYS or lanes < _FEWEST_LANES:
            return None
        body = partial(_dot_products, axes, lanes)
        return self.builder_.call_te(body, first, turned.args[0], primfunc_name_hint=DOT_PRODUCTS)


def _dot_products(axes: list[int], lanes: int, rows: te.Tensor, keys: te.Tensor) -> te.Tensor:
    """Define [..., M, T] of rows [..., M, D] and of keys whose axes become [..., D, T]."""
    *outer, count, depth = rows.shape
    steps = te.reduce_axis((0, int(depth) // lanes), name="step")
    extent = keys.shape[axes[-1]]

    def key(batch: list[tirx.Expr], place: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
        index = dict(zip(axes, [*batch, place, at], strict=True))
        return keys(*(index[axis] for axis in range(len(axes))))

    def product(*at: tirx.Expr) -> tirx.Expr:
        *batch, m, t, lane = at
        place = steps * lanes + lane
        return te.sum(rows(*batch, m, place) * key(batch, place, t), axis=steps)

    sums = te.compute((*outer, count, extent, lanes), product, name=_BY_LANE)
    while lanes > 1:
        lanes //= 2
        sums = te.compute(
            (*outer, count, extent, lanes), _halved(sums, lanes), name=f"{_HALVES}{2 * lanes}"
        )
    return te.compute(
        (*outer, count, extent), lambda *at: sums(*at, tirx.const(0, "int32")), name=DOT_PRODUCTS
    )


def _halved(sums: te.Tensor, half: int) -> Callable[..., tirx.Expr]:
    return lambda *at: sums(*at) + sums(*at[:-1], at[-1] + half)


def schedule_dot_products(sch: Schedule, cpu: CpuModel) -> None:
    """Divide the keys among threads; add up all lanes of a key before the next one."""
    blocks = schedule_blocks_after(sch, DOT_PRODUCTS, cpu)
    total, by_lane = blocks[DOT_PRODUCTS], blocks[_BY_LANE]
    halves = [block for name, block in blocks.items() if name.startswith(_HALVES)]
    *outer, row, key = sch.get_loops(total)
    key_outer, key_inner = sch.split(key, [None, _KEYS_OF_TASK])
    sch.reorder(*outer, key_outer, key_inner, row)
    task = sch.fuse(*outer, key_outer)
    parallelize_if_long_enough(sch, task, [by_lane], cpu, PRODUCT_CYCLES)
    for block in (*reversed(halves), by_lane):
        sch.compute_at(block, row, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
    for block in halves:
        sch.vectorize(sch.get_loops(block)[-1])
    *_, lane, step = sch.get_loops(by_lane)
    sch.reorder(step, lane)
    sch.vectorize(lane)
    sch.unroll(step)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(by_lane, step))[-1])
    sch.unroll(row)
