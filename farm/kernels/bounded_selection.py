"""Emit kernels of operators with data-dependent shapes: a padded result, and a count.

TVM's kernels for these call functions that a board lacks. The padding is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

from farm.kernels.heap import Element, Heap

SLICE_TO_DYNAMIC = (
    "slice_to_dynamic"  # what `emit_slice_to_dynamic` calls its kernel, and the block in it
)


def emit_slice_to_dynamic(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    counts: Sequence[relax.Expr],
    axes: Sequence[int],
) -> relax.Expr:
    """Emit the kernel that copies the first elements along axes, as many as the counts say.

    Each count is int64 [1]. The result has the counts as its extents.
    """
    joined = builder.emit(relax.op.concat(list(counts), axis=0)) if len(counts) > 1 else counts[0]
    extents = [tirx.Var(f"count{axis}", "int64") for axis in axes]
    builder.match_cast(builder.emit(relax.op.tensor_to_shape(joined)), relax.ShapeType(extents))
    shape = list(data.ty.shape)
    for axis, extent in zip(axes, extents, strict=True):
        shape[axis] = extent
    return builder.emit(
        builder.call_te(_first_elements, data, shape, primfunc_name_hint=SLICE_TO_DYNAMIC)
    )


def _first_elements(data: te.Tensor, shape: list[Any]) -> te.Tensor:
    return te.compute(shape, lambda *at: data[at], name=SLICE_TO_DYNAMIC)


def emit_non_zero(builder: relax.BlockBuilder, data: relax.Expr) -> relax.Expr:
    """Emit the kernel that lists the indices of elements that are not zero, in row-major order.

    Returns int64 [rank, elements] and their number, int64 [1]. A scalar counts as [1].
    """
    return builder.call_te(_non_zero, data, primfunc_name_hint="non_zero")


def _non_zero(data: te.Tensor) -> list[te.Tensor]:
    shape = [int(extent) for extent in data.shape]
    most = math.prod(shape)

    def body(inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        with IRBuilder() as program, T.serial(0, 1):
            values, found, count = (T.buffer_proxy(one) for one in (*inputs, *outputs))
            count[0] = tirx.const(0, "int64")
            with ExitStack() as loops:
                at = [loops.enter_context(T.serial(0, extent)) for extent in shape]
                # Written whether it is not zero or is, as a branch takes longer
                for axis, index in enumerate(at or [tirx.const(0, "int64")]):
                    found[axis, count[0]] = tirx.Cast("int64", index)
                holds = values[tuple(at)]
                if str(data.dtype) != "bool":
                    holds = holds != tirx.const(0, str(data.dtype))
                count[0] = count[0] + tirx.Cast("int64", holds)
            rest = most - count[0]
            with T.serial(0, max(1, len(shape))) as axis, T.serial(0, rest) as at:
                found[axis, count[0] + at] = tirx.const(0, "int64")
        return program.get()

    shapes = [(max(1, len(shape)), most), (1,)]
    return list(te.extern(shapes, [data], body, name="non_zero", dtype=["int64"] * 2))


def emit_concat_indices(
    builder: relax.BlockBuilder, counts: relax.Expr, lengths: Sequence[int], most: int
) -> relax.Expr:
    """Emit the kernel that lists the indices of the valid elements of concatenated tensors.

    `counts`, int64 [tensors], has the number of valid elements of each, `lengths` the number with
    padding. The result is int64 [most].
    """
    taken = relax.const(np.array(lengths, np.int64))
    body = partial(_concat_indices, total=most)
    return builder.call_te(body, counts, taken, primfunc_name_hint="concat_indices")


def _concat_indices(counts: te.Tensor, lengths: te.Tensor, *, total: int) -> te.Tensor:
    def body(inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        with IRBuilder() as program, T.serial(0, 1):
            known, taken, indices = (T.buffer_proxy(one) for one in (*inputs, *outputs))
            end, begin = (
                T.buffer_proxy(T.alloc_buffer((1,), "int64", scope="local")) for _ in range(2)
            )
            for position in (end, begin):
                position[0] = tirx.const(0, "int64")
            with T.serial(0, int(lengths.shape[0])) as part:
                count = tirx.min(tirx.min(known[part], taken[part]), total - end[0])
                count = tirx.max(count, tirx.const(0, "int64"))
                with T.serial(0, count) as at:
                    indices[end[0] + at] = begin[0] + at
                end[0] = end[0] + count
                begin[0] = begin[0] + taken[part]
            with T.serial(0, total - end[0]) as at:
                indices[end[0] + at] = tirx.const(0, "int64")
        return program.get()

    return te.extern([(total,)], [counts, lengths], body, name="concat_indices", dtype=["int64"])


def emit_non_max_suppression(
    builder: relax.BlockBuilder, inputs: Sequence[relax.Expr], per_class: int, centers: bool
) -> relax.Expr:
    """Emit the kernel that selects boxes as ONNX's NonMaxSuppression does.

    `inputs` are boxes [batch, boxes, 4], scores [batch, classes, boxes], the number of boxes, the
    most to select of a class, and the thresholds of overlap and score, each of the shape [1].
    `per_class` is an upper bound of the most. With `centers` a box is its center and its extents.
    Returns int64 [room, 3] and the number of rows, int64 [1].
    """
    return builder.call_te(
        _non_max_suppression, *inputs, per_class, centers, primfunc_name_hint="non_max_suppression"
    )


def _non_max_suppression(
    boxes: te.Tensor,
    scores: te.Tensor,
    valid: te.Tensor,
    limit: te.Tensor,
    overlap: te.Tensor,
    threshold: te.Tensor,
    per_class: int,
    centers: bool,
) -> list[te.Tensor]:
    batch, classes, count = (int(extent) for extent in scores.shape)
    rows = batch * classes

    def body(inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        with IRBuilder() as program, T.serial(0, 1):
            given = [T.buffer_proxy(one) for one in inputs]
            found, number = (T.buffer_proxy(one) for one in outputs)
            chosen = T.buffer_proxy(T.alloc_buffer((rows, per_class), "int32"))
            chosen_count = T.buffer_proxy(T.alloc_buffer((rows,), "int32"))
            with T.parallel(0, rows) as row:
                _choose_of_class(
                    given,
                    (row // classes, row % classes),
                    row,
                    count,
                    centers,
                    (chosen, chosen_count),
                    per_class,
                )
            number[0] = tirx.const(0, "int64")
            with T.serial(0, rows) as row, T.serial(0, chosen_count[row]) as at:
                for place, value in enumerate((row // classes, row % classes, chosen[row, at])):
                    found[number[0], place] = tirx.Cast("int64", value)
                number[0] = number[0] + 1
            rest = tirx.const(rows * per_class, "int64") - number[0]
            with T.serial(0, rest) as at, T.serial(0, 3) as place:
                found[number[0] + at, place] = tirx.const(0, "int64")
        return program.get()

    shapes = [(rows * per_class, 3), (1,)]
    tensors = [boxes, scores, valid, limit, overlap, threshold]
    return list(te.extern(shapes, tensors, body, name="non_max_suppression", dtype=["int64"] * 2))


def _choose_of_class(
    given: Sequence[Any],
    where: tuple[Any, Any],
    row: Any,
    count: int,
    centers: bool,
    results: tuple[Any, Any],
    per_class: int,
) -> None:
    """Write the choice among the boxes of one class of one image."""
    boxes, scores, valid, limit, overlap, threshold = given
    chosen, chosen_count = results
    heap = Heap(count, "float32", _is_before)
    candidates, selected, box, is_overlapping = (
        T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local")) for _ in range(4)
    )
    bounds = [T.buffer_proxy(T.alloc_buffer((1,), "float32", scope="local")) for _ in range(5)]
    selected_bounds = [T.buffer_proxy(T.alloc_buffer((per_class,), "float32")) for _ in range(5)]
    candidates[0] = tirx.const(0, "int32")
    boxes_here = tirx.Cast("int32", tirx.min(valid[0], tirx.const(count, "int64")))
    with T.serial(0, boxes_here) as at:
        score = scores[(*where, at)]
        heap.put(candidates[0], score, at)
        candidates[0] = candidates[0] + tirx.Cast("int32", score > threshold[0])
    heap.make(candidates[0])
    selected[0] = tirx.const(0, "int32")
    most = tirx.Cast(
        "int32",
        tirx.max(tirx.min(limit[0], tirx.const(per_class, "int64")), tirx.const(0, "int64")),
    )
    with T.While(tirx.all(candidates[0] > 0, selected[0] < most)):
        box[0] = heap.indices[0]
        candidates[0] = candidates[0] - 1
        heap.drop_root(candidates[0])
        corners = [boxes[where[0], box[0], place] for place in range(4)]
        edges = _bounds_of_centers(corners) if centers else _bounds_of_corners(corners)
        for target, value in zip(bounds[:4], edges, strict=True):
            target[0] = value
        low_y, low_x, high_y, high_x = (bound[0] for bound in bounds[:4])
        bounds[4][0] = (high_x - low_x) * (high_y - low_y)
        is_overlapping[0] = tirx.const(0, "int32")
        with T.serial(0, selected[0]) as other:
            here = [bound[0] for bound in bounds]
            there = [bound[other] for bound in selected_bounds]
            is_overlapping[0] = tirx.bitwise_or(
                is_overlapping[0], _overlaps(here, there, overlap[0])
            )
        with T.If(is_overlapping[0] == 0), T.Then():
            for target, bound in zip(selected_bounds, bounds, strict=True):
                target[selected[0]] = bound[0]
            chosen[row, selected[0]] = box[0]
            selected[0] = selected[0] + 1
    chosen_count[row] = selected[0]


def _is_before(one: Element, other: Element) -> Any:
    """Return whether a box is chosen before another: of equal scores the first one."""
    return tirx.any(one[0] > other[0], tirx.all(one[0] == other[0], one[1] < other[1]))


def _overlaps(one: Sequence[Any], other: Sequence[Any], threshold: Any) -> Any:
    """Return 1 if two boxes overlap by more than the threshold, else 0.

    A box is its low y and x, its high y and x, and its area. A box without an area overlaps none.
    """
    (low_y, low_x, high_y, high_x, area), (*bounds, other_area) = one, other
    width = tirx.min(high_x, bounds[3]) - tirx.max(low_x, bounds[1])
    height = tirx.min(high_y, bounds[2]) - tirx.max(low_y, bounds[0])
    common = width * height
    union = area + other_area - common
    zero = tirx.const(0, "float32")
    tests = (
        *(extent > zero for extent in (width, height, common, area, other_area, union)),
        common / union > threshold,
    )
    overlaps = tirx.Cast("int32", tests[0])
    for test in tests[1:]:
        overlaps = tirx.bitwise_and(overlaps, tirx.Cast("int32", test))
    return overlaps


def _bounds_of_corners(corners: Sequence[Any]) -> list[Any]:
    """Return the low and high coordinates of a box given by two opposite corners."""
    one_y, one_x, other_y, other_x = corners
    return [
        tirx.min(one_y, other_y),
        tirx.min(one_x, other_x),
        tirx.max(one_y, other_y),
        tirx.max(one_x, other_x),
    ]


def _bounds_of_centers(box: Sequence[Any]) -> list[Any]:
    """Return the low and high coordinates of a box given by its center, width and height."""
    x, y, width, height = box
    half = tirx.const(0.5, "float32")
    return [y - height * half, x - width * half, y + height * half, x + width * half]
