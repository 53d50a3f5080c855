"""Define attention as one kernel: products, softmax and products of a few rows at a time.

The rows of queries are divided into tasks. A task computes the scores of its rows, their
exponentials and sums, and the sums of values; its scores stay in the L2 cache. Dao et al., 2022,
"FlashAttention", divide the keys, too; here all scores of a row are there, as those of thousands of
keys fit into the cache of a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

from tvm import relax, te, tirx

from farm.compiler.cpu.register_tiles import Tile, gemm_tiles_with_cycles, round_up_to_multiple
from farm.compiler.cpu.rows.softmax_layer_norm import reduce_row
from farm.compiler.graph.attention import Attention, ScoreStep, ZeroRows
from farm.compiler.ir.annotations import KEYS, TASK_ROWS, TILE
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import (
    Extent,
    is_dynamic,
    product_at_batch_one,
    shapes_are_equal,
)
from farm.compiler.ir.relax_rewriter import shape_of
from farm.compiler.target.cpu_model import CpuModel
from farm.kernels import vector_math

# Blocks, in their order. The last one drops rows beyond the last query.
PACKED_KEYS, SCORES, FILLED, LARGEST = "packed_keys", "scores", "filled", "largest"
POWERS, TOTAL, INVERSE = "powers", "total", "inverse"
WEIGHTED, RESULTS, ATTENTION = "weighted_values", "results", "attention"
# What is smaller, or has wider values, is as fast by kernels of its own: bytes of all scores,
# queries, keys, and channels of a value.
_LEAST_BYTES, _FEWEST_ROWS, _FEWEST_KEYS, _WIDEST = 64 * 1024, 8, 64, 128
_BUFFERS = 2  # the scores, and their exponentials
_TASK_CYCLES = 500  # to begin a task
_PANEL_BYTES_A_CYCLE = 8  # of keys and values, which each task reads from beyond the L1 cache
_ENOUGH_TASKS = 16  # fewer do not balance among threads


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How an attention is computed: the rows of a task, and the tiles of the two products.

    The rows of a task are whole tiles of both. Scores fill whole vectors of `scores.lanes`, and
    values whole tiles of `values.block`.
    """

    rows: int
    scores: Tile
    values: Tile


def attention_kernel(
    cpu: CpuModel, builder: relax.BlockBuilder, attention: Attention
) -> relax.Expr | None:
    """Return the kernel of an attention.

    Returns None where separate kernels are as fast, as measured: for few scores, and for values of
    more channels than those of a head.
    """
    queries, keys, values = (
        shape_of(one) for one in (attention.queries, attention.keys, attention.values)
    )
    assert queries is not None and keys is not None and values is not None, "see Attention"
    *outer, rows, depth = queries
    count, width = int(keys[-1]), int(values[-1])
    nbytes = 4 * product_at_batch_one([*outer, rows, count])
    if rows < _FEWEST_ROWS or count < _FEWEST_KEYS or width > _WIDEST or nbytes <= _LEAST_BYTES:
        return None
    if any(map(is_dynamic, (one for step in attention.steps for one in step.shape[1:]))):
        return None
    batches = product_at_batch_one(outer)
    plan = attention_plan(cpu, batches, int(rows), int(depth), count, width)
    if plan is None:
        return None
    steps, others = _with_constants(attention.steps, outer)
    result = builder.call_te(
        partial(attention_compute, plan, steps, attention.zeros),
        attention.queries,
        attention.keys,
        _reshaped(builder, attention.values, [*outer, count, width]),
        others,
        primfunc_name_hint=ATTENTION,
    )
    return _reshaped(builder, result, [*values[:-2], rows, width])


def _reshaped(
    builder: relax.BlockBuilder, value: relax.Expr, shape: Sequence[Extent]
) -> relax.Expr:
    """Return a value with these extents, of which only the leading ones may differ."""
    own = shape_of(value)
    if own is not None and shapes_are_equal(own, shape):
        return value
    return relax.op.reshape(builder.emit(value), list(shape))


@lru_cache
def attention_plan(
    cpu: CpuModel, batches: int, rows: int, depth: int, count: int, width: int
) -> AttentionPlan | None:
    """Return the plan of the fewest predicted cycles.

    `batches` is the product of the leading extents, `count` the number of keys; `depth` and `width`
    are the channels of a key and of a value. Returns None if no vectors fill the width.
    """
    of_scores = _fastest_by_rows(
        rows,
        [
            pair
            for pair in gemm_tiles_with_cycles(
                cpu, rows, count, depth, pixel_stride_bytes=4 * depth
            )
            if pair[0].lanes == cpu.lanes
        ],
    )
    of_values = _fastest_by_rows(
        rows,
        [
            pair
            for pair in gemm_tiles_with_cycles(cpu, rows, width, count)
            if width % pair[0].block == 0
        ],
    )
    panels = 4 * (depth + width) * count  # bytes of keys and values
    row_bytes = 4 * _BUFFERS * (count + cpu.lanes)
    most = min(cpu.task_cache_bytes // row_bytes, rows * batches // _ENOUGH_TASKS)
    pairs = [
        (math.lcm(scores.tile.pixels, values.tile.pixels), scores, values)
        for scores, values in product(of_scores, of_values)
    ]
    most = max(most, min((unit for unit, _, _ in pairs), default=0))
    best: tuple[float, AttentionPlan] | None = None
    for unit, scores, values in pairs:
        for task in range(unit, min(most, rows + unit - 1) + 1, unit):
            covered = round_up_to_multiple(rows, task)
            cycles = covered * (scores.cycles_per_row + values.cycles_per_row)
            cycles += covered // task * (_TASK_CYCLES + panels / _PANEL_BYTES_A_CYCLE)
            if best is None or cycles < best[0]:
                best = cycles, AttentionPlan(task, scores.tile, values.tile)
    return None if best is None else best[1]


@dataclass(frozen=True, slots=True)
class _TileCost:
    tile: Tile
    cycles_per_row: float


def _fastest_by_rows(rows: int, pairs: Sequence[tuple[Tile, float]]) -> list[_TileCost]:
    """Return the tile of the fewest cycles for each number of rows.

    The cycles are those of all rows, in whole tiles.
    """
    found: dict[int, _TileCost] = {}
    for tile, cycles in pairs:
        cost = cycles / round_up_to_multiple(rows, tile.pixels)
        if tile.pixels not in found or cost < found[tile.pixels].cycles_per_row:
            found[tile.pixels] = _TileCost(tile, cost)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of which each operand is a number, None for the scores, or the place of a tensor.

    `inner` are the leading extents of the scores after the first; None if all are the queries'.
    """

    operator: str
    inner: tuple[int, ...] | None
    operands: tuple[float | int | None, ...]


def _with_constants(
    steps: Sequence[ScoreStep], outer: Sequence[Extent]
) -> tuple[list[_Step], list[relax.Expr]]:
    """Return the steps with their numbers in them, and the tensors that they read.

    `outer` are the leading extents of the queries.
    """
    found: list[_Step] = []
    tensors: list[relax.Expr] = []
    for step in steps:
        operands: list[float | int | None] = []
        for place, operand in enumerate(step.operands):
            value = constant_value(operand)
            if place == step.scores:
                operands.append(None)
            elif value is not None and value.size == 1:
                operands.append(float(value.reshape(())))
            else:
                operands.append(len(tensors))
                tensors.append(operand)
        own = shapes_are_equal(step.shape[:-2], outer)
        inner = None if own else tuple(int(extent) for extent in step.shape[1:-2])
        found.append(_Step(step.operator, inner, tuple(operands)))
    return found, tensors


def attention_compute(
    plan: AttentionPlan,
    steps: Sequence[_Step],
    zeros: ZeroRows,
    queries: te.Tensor,
    keys: te.Tensor,
    values: te.Tensor,
    others: Sequence[te.Tensor],
) -> te.Tensor:
    """Define [..., M, W] by queries [..., M, K], keys [..., K, N] and values [..., N, W].

    Rows beyond the last query are computed from that, and dropped. Scores beyond the last key are
    minus infinity, whose exponentials are 0. `zeros`: see `Attention`; if one of a row's weights is
    not a number, none is, as their sum is not.
    """
    *outer, rows, depth = queries.shape
    count, width = int(keys.shape[-1]), int(values.shape[-1])
    rows, lanes, block = int(rows), plan.scores.lanes, plan.scores.block
    covered = round_up_to_multiple(rows, plan.rows)
    filled_count = round_up_to_multiple(count, block)
    blocks = filled_count // lanes

    def packed(*at: te.Var) -> tirx.Expr:
        *batch, part, channel, lane = at
        column = part * block + lane
        key = keys(*batch, channel, column)
        zero = tirx.const(0, keys.dtype)
        return key if count % block == 0 else tirx.if_then_else(column < count, key, zero)

    packed_keys = te.compute(
        (*outer, filled_count // block, depth, block), packed, name=PACKED_KEYS
    )
    channel = te.reduce_axis((0, depth), name="channel")

    def score(*at: te.Var) -> tirx.Expr:
        *batch, row, column = at
        query = queries(*batch, _existing(row, rows, covered), channel)
        key = packed_keys(*batch, column // block, channel, column % block)
        return te.sum(query * key, axis=channel)

    scores = te.compute(
        (*outer, covered, filled_count), score, name=SCORES, attrs={TILE: _numbers(plan.scores)}
    )

    def filled(*at: te.Var) -> tirx.Expr:
        *batch, row, part, lane = at
        column = part * lanes + lane
        value = scores(*batch, row, column)
        for step in steps:
            leading = batch if step.inner is None else _leading(batch, outer, step.inner)
            place = (*leading, _existing(row, rows, covered), column)
            value = _apply(step, value, others, place)
        if filled_count == count:
            return value
        return tirx.if_then_else(column < count, value, tirx.const(float("-inf"), "float32"))

    source = te.compute((*outer, covered, blocks, lanes), filled, name=FILLED)
    largest = reduce_row(source, LARGEST, te.max)
    powers = te.compute(
        source.shape,
        lambda *at: vector_math.exp_of_nonpositive(source[at] - largest[at[:-2]]),
        name=POWERS,
    )
    total = reduce_row(powers, TOTAL, te.sum)
    inverse = te.compute(
        total.shape, lambda *at: tirx.const(1, "float32") / total[at], name=INVERSE
    )
    key = te.reduce_axis((0, count), name="key")

    def weighted(*at: te.Var) -> tirx.Expr:
        *batch, row, column = at
        power = powers(*batch, row, key // lanes, key % lanes)
        return te.sum(power * values(*batch, key, column), axis=key)

    sums = te.compute(
        (*outer, covered, width), weighted, name=WEIGHTED, attrs={TILE: _numbers(plan.values)}
    )

    def result(*at: te.Var) -> tirx.Expr:
        value = sums[at] * inverse[at[:-1]]
        # The sum is at least 1, the power of the largest score, or 0 in a row without keys, or NaN.
        zero, one = (tirx.const(number, "float32") for number in (0, 1))
        if zeros == ZeroRows.NAN:
            return tirx.Select(inverse[at[:-1]] <= one, value, zero)
        if zeros == ZeroRows.WITHOUT_KEYS:
            return tirx.Select(inverse[at[:-1]] > one, zero, value)
        return value

    results = te.compute(sums.shape, result, name=RESULTS)
    return te.compute(
        (*outer, rows, width),
        lambda *at: results[at],
        name=ATTENTION,
        attrs={TASK_ROWS: plan.rows, KEYS: count},
    )


def _numbers(tile: Tile) -> list[int]:
    return [tile.pixels, tile.vectors, tile.lanes]


def _existing(row: te.Var, rows: int, covered: int) -> tirx.Expr:
    """Return a row that exists."""
    return row if covered == rows else te.min(row, rows - 1)


def _leading(indices: Sequence[te.Var], outer: Sequence[Any], inner: Sequence[int]) -> list[Any]:
    """Return the indices of the same element where the leading axes after the first are `inner`."""
    place: Any = 0
    for index, extent in zip(indices, outer, strict=True):
        place = place * extent + index
    found = []
    for extent in reversed(inner):
        found.append(place % extent)
        place = place // extent
    return [place, *found[::-1]]


def _apply(
    step: _Step, scores: tirx.Expr, others: Sequence[te.Tensor], place: Sequence[Any]
) -> tirx.Expr:
    """Return the value of a step at a place of the scores."""

    def operand(one: float | int | None) -> tirx.Expr:
        if one is None:
            return scores
        if isinstance(one, float):
            return tirx.const(one, "float32")
        tensor = others[one]
        own = place[len(place) - len(tensor.shape) :]
        return tensor(
            *(
                0 if isinstance(extent, int | tirx.IntImm) and int(extent) == 1 else index
                for index, extent in zip(own, tensor.shape, strict=True)
            )
        )

    values = [operand(one) for one in step.operands]
    if step.operator == "relax.where":
        condition, one, other = values
        return tirx.Select(condition.astype("bool"), one, other)
    return _ARITHMETIC[step.operator](*values)


_ARITHMETIC = {
    "relax.add": lambda one, other: one + other,
    "relax.subtract": lambda one, other: one - other,
    "relax.multiply": lambda one, other: one * other,
    "relax.divide": lambda one, other: one / other,
}
