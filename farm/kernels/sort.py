"""Emit topk, sort and argsort as TIR kernels, because TVM's call functions that a board lacks.

The kernel is a stable merge sort of indices, row by row: among equal values the first one comes
first, as in ONNX Runtime. `farm.kernels.top_k` selects few of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

from farm.kernels.top_k import emit_top_k, is_selected_by_heap


def emit_sort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Emit the kernel of a relax.topk, relax.sort or relax.argsort; return its results."""
    name, data, attributes = call.op.name, call.args[0], call.attrs
    shape = [int(extent) for extent in data.ty.shape]
    axis = int(attributes.axis) % len(shape)
    last = [index for index in range(len(shape)) if index != axis] + [axis]
    count = int(attributes.k) if name == "relax.topk" else shape[axis]
    count = shape[axis] if count < 1 else count
    descending = bool(attributes.largest if name == "relax.topk" else attributes.descending)
    dtype = "int64" if name == "relax.sort" else str(attributes.dtype)
    rows = builder.emit(relax.op.permute_dims(data, last))
    if is_selected_by_heap(count, shape[axis]):
        made = builder.emit(emit_top_k(builder, rows, count, descending, dtype))
    else:
        made = builder.emit(
            builder.call_te(_sorted, rows, count, descending, dtype, primfunc_name_hint="sort")
        )
    back = [last.index(index) for index in range(len(shape))]
    values, indices = (
        builder.emit(relax.op.permute_dims(builder.emit(made[index]), back)) for index in range(2)
    )
    wanted = (
        str(attributes.ret_type)
        if name == "relax.topk"
        else {"relax.sort": "values", "relax.argsort": "indices"}[name]
    )
    return {"values": values, "indices": indices}.get(wanted, relax.Tuple([values, indices]))


EMIT = {"relax.topk": emit_sort, "relax.sort": emit_sort, "relax.argsort": emit_sort}


def emit_bounded_top_k(
    builder: relax.BlockBuilder, data: relax.Expr, valid: relax.Expr, count: int, descending: bool
) -> relax.Expr:
    """Emit the kernel that sorts the valid elements of each row, the first `valid` ones.

    `valid` is int64 [1]; rows are along the last axis. Returns the first `count` values and their
    indices, int64, padded with zeros.
    """
    if is_selected_by_heap(count, int(data.ty.shape[-1])):
        return emit_top_k(builder, data, count, descending, "int64", valid)
    return builder.call_te(
        _sorted, data, count, descending, "int64", valid, primfunc_name_hint="sort"
    )


def _sorted(
    data: te.Tensor, count: int, descending: bool, dtype: str, *valid: te.Tensor
) -> list[te.Tensor]:
    """Return the first `count` values along the last axis in sorted order, and their indices.

    With `valid`, only as many of the elements are sorted as it says.
    """
    shape = [int(extent) for extent in data.shape]
    shapes = [(*shape[:-1], count)] * 2

    def body(inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        return _merge_sort(shape, count, descending, dtype, inputs, outputs)

    tensors = [data, *valid]
    return list(te.extern(shapes, tensors, body, name="sort", dtype=[str(data.dtype), dtype]))


def _merge_sort(
    shape: list[int],
    count: int,
    descending: bool,
    dtype: str,
    inputs: Sequence[tirx.Buffer],
    outputs: Sequence[tirx.Buffer],
) -> tirx.Stmt:
    """Return the TIR statement that sorts each row; rows run in parallel.

    `inputs` are the keys, of the given shape, and perhaps the number of those to sort. `outputs`
    are the values and the indices, with `count` elements in the last axis.
    """
    length, rows = shape[-1], 1
    for extent in shape[:-1]:
        rows *= extent
    with IRBuilder() as program, T.parallel(0, rows) as row:
        where = _unravelled(row, shape[:-1])
        keys, *valid = (T.buffer_proxy(buffer) for buffer in inputs)
        values, indices = (T.buffer_proxy(buffer) for buffer in outputs)
        most = tirx.const(length, "int32")
        if valid:
            most = tirx.Cast("int32", tirx.min(valid[0][0], tirx.const(length, "int64")))
        orders = [T.buffer_proxy(T.alloc_buffer((length,), "int32")) for _ in range(2)]
        heads = T.buffer_proxy(T.alloc_buffer((2,), "int32", scope="local"))
        with T.serial(0, most) as at:
            orders[0][at] = tirx.Cast("int32", at)
        order = _sort_indices(keys, where, orders, heads, most, length, descending)
        found = tirx.min(most, tirx.const(count, "int32"))
        with T.serial(0, found if valid else count) as at:
            source, target = (*where, order[at]), (*where, at)
            values[target] = keys[source]
            indices[target] = tirx.Cast(dtype, order[at])
        if valid:
            with T.serial(0, count - found) as at:
                values[(*where, found + at)] = tirx.const(0, outputs[0].dtype)
                indices[(*where, found + at)] = tirx.const(0, dtype)
    return program.get()


def _sort_indices(
    keys: Any,
    where: tuple[Any, ...],
    orders: Sequence[Any],
    heads: Any,
    length: Any,
    most: int,
    descending: bool,
) -> Any:
    """Write the sort of the first `length` indices of `orders[0]` by the keys of the row `where`.

    `orders` are two int32 buffers, one of which is returned with the result; `heads` is one for two
    positions. `length` is an int32 expression of at most `most`.
    """
    source, target = orders
    width = 1
    while width < most:
        _merge(keys, where, (source, target), heads, length, width, descending)
        source, target = target, source
        width *= 2
    return source


def _merge(
    keys: Any,
    where: tuple[Any, ...],
    orders: Sequence[Any],
    heads: Any,
    length: Any,
    width: int,
    descending: bool,
) -> None:
    """Merge adjacent runs of `width` indices from `orders[0]` into `orders[1]`.

    `heads` is a buffer for the two read positions.
    """
    source, target = orders
    last = length - 1
    with T.serial(0, (length + (2 * width - 1)) // (2 * width)) as run:
        first = tirx.Cast("int32", run * (2 * width))
        middle, end = (
            tirx.min(first + tirx.const(steps * width, "int32"), last + 1) for steps in (1, 2)
        )
        heads[0], heads[1] = first, middle
        with T.serial(0, end - first) as step:
            left, right = (
                _at(keys, (*where, source[tirx.min(heads[side], last)])) for side in range(2)
            )
            before = right > left if descending else right < left
            takes_right = tirx.any(heads[0] >= middle, tirx.all(heads[1] < end, before))
            with T.If(takes_right):
                with T.Then():
                    target[first + step] = source[heads[1]]
                    heads[1] = heads[1] + 1
                with T.Else():
                    target[first + step] = source[heads[0]]
                    heads[0] = heads[0] + 1


def _at(buffer: Any, where: tuple[Any, ...]) -> Any:
    return buffer[where]


def _unravelled(row: Any, shape: list[int]) -> tuple[Any, ...]:
    """Return the indices in `shape` of the row with the flat index `row`."""
    where: list[Any] = []
    for extent in reversed(shape):
        where.insert(0, row % extent)
        row = row // extent
    return tuple(where)
