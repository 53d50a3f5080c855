"""Emit topk as a TIR kernel that keeps the first elements of a row in a heap.

The row is read once. First means first in the result: the root of the heap is the last of the
elements kept so far, and a block in which no element comes before the root is passed over by
comparisons of vectors. Among equal values the first one in the row comes first, as in ONNX Runtime;
NaN is as large as infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

from farm.kernels.heap import Element, Heap

_LANES = 16
_BLOCK = 8 * _LANES  # elements
_COMPARED_AS_VECTORS = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True, slots=True)
class TopK:
    """Describe a top-k, which selects the `count` largest (or smallest) elements of each row.

    Rows are along the last axis. `dtype` is the type of the values, `index_dtype` of their indices.
    """

    shape: tuple[int, ...]
    count: int
    largest: bool
    dtype: str
    index_dtype: str

    @property
    def length(self) -> int:
        """Return the number of elements of a row."""
        return self.shape[-1]

    def is_before(self, one: Any, other: Any) -> Any:
        """Return whether a value comes before another in the result, equal ones aside."""
        return one > other if self.largest else one < other

    def is_after(self, one: Element, other: Element) -> Any:
        """Return whether an element comes after another in the result."""
        return tirx.any(
            self.is_before(other[0], one[0]), tirx.all(one[0] == other[0], one[1] > other[1])
        )

    def first_of(self, one: Any, other: Any) -> Any:
        """Return the one of two values that comes first in the result."""
        return tirx.max(one, other) if self.largest else tirx.min(one, other)


def is_selected_by_heap(count: int, length: int) -> bool:
    """Return whether a heap takes less time than sorting the row."""
    return 0 < 2 * count <= length


def emit_top_k(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    count: int,
    largest: bool,
    index_dtype: str,
    *valid: relax.Expr,
) -> relax.Expr:
    """Emit the kernel that selects the first `count` values of each row in sorted order.

    Rows are along the last axis. Returns the values and their indices, of the type `index_dtype`.
    With `valid`, int64 [1], only so many elements of a row are read, and the rest of the results is
    zeros.
    """
    shape = tuple(int(extent) for extent in data.ty.shape)
    top_k = TopK(shape, count, largest, str(data.ty.dtype), index_dtype)
    return builder.call_te(
        partial(_selected, top_k=top_k), data, *valid, primfunc_name_hint="top_k"
    )


def _selected(data: te.Tensor, *valid: te.Tensor, top_k: TopK) -> list[te.Tensor]:
    shapes = [(*top_k.shape[:-1], top_k.count)] * 2

    def body(inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        rows = math.prod(top_k.shape[:-1])
        with IRBuilder() as program, ExitStack() as loops:
            row = loops.enter_context(T.parallel(0, rows) if rows > 1 else T.serial(0, 1))
            _Row(top_k, row, inputs, outputs).write()
        return program.get()

    types = [top_k.dtype, top_k.index_dtype]
    return list(te.extern(shapes, [data, *valid], body, name="top_k", dtype=types))


class _Row:
    """The statements that select the first elements of a row."""

    def __init__(
        self,
        top_k: TopK,
        row: Any,
        inputs: Sequence[tirx.Buffer],
        outputs: Sequence[tirx.Buffer],
    ) -> None:
        self._top_k = top_k
        keys, *valid = (T.buffer_proxy(buffer) for buffer in inputs)
        self._values, self._indices = (T.buffer_proxy(buffer) for buffer in outputs)
        self._keys, self._row = keys, row
        self._most: Any = tirx.const(top_k.length, "int32")
        self._size: Any = tirx.const(top_k.count, "int32")
        self._has_padding = bool(valid)
        if valid:
            self._most = tirx.Cast("int32", tirx.min(valid[0][0], self._most.astype("int64")))
            self._size = tirx.min(self._most, self._size)
        self._heap = Heap(top_k.count, top_k.dtype, top_k.is_after)

    def write(self) -> None:
        """Write all statements: fill the heap, read the row, empty the heap from its root on."""
        size, count = self._size, self._top_k.count
        heap = self._heap
        with T.serial(0, size) as at:
            heap.put(at, self._key(at), at)
        heap.make(size)
        self._read_row()
        with T.serial(0, size) as step:
            last = size - 1 - step
            self._out(self._values, last, self._given(heap.indices[0]))
            self._out(self._indices, last, tirx.Cast(self._top_k.index_dtype, heap.indices[0]))
            heap.drop_root(last)
        if self._has_padding:
            with T.serial(0, count - size) as step:
                for buffer, dtype in (
                    (self._values, self._top_k.dtype),
                    (self._indices, self._top_k.index_dtype),
                ):
                    self._out(buffer, size + step, tirx.const(0, dtype))

    def _given(self, at: Any) -> Any:
        return self._keys[self._row * self._top_k.length + at]

    def _key(self, at: Any) -> Any:
        """Return what an element is compared by: NaN is the largest, as infinity is."""
        value = self._given(at)
        if "float" not in self._top_k.dtype:
            return value
        infinity = tirx.const(float("inf"), self._top_k.dtype)
        return tirx.Select(tirx.abs(value) <= infinity, value, infinity)

    def _out(self, buffer: Any, at: Any, value: Any) -> None:
        buffer[self._row * self._top_k.count + at] = value

    def _read_row(self) -> None:
        """Write the loop over the elements behind those that fill the heap."""
        rest = self._most - self._size
        begin = self._size
        is_long = self._top_k.length - self._top_k.count >= 2 * _BLOCK
        if is_long and self._top_k.dtype in _COMPARED_AS_VECTORS:
            lanes = T.buffer_proxy(T.alloc_buffer((_LANES,), self._top_k.dtype, scope="local"))
            with T.serial(0, rest // _BLOCK) as block:
                first = begin + block * _BLOCK
                self._write_first_of_block(lanes, first)
                with (
                    T.If(self._top_k.is_before(lanes[0], self._heap.values[0])),
                    T.Then(),
                    T.serial(0, _BLOCK) as step,
                ):
                    self._consider(first + step)
            begin += rest // _BLOCK * _BLOCK
        with T.serial(0, self._most - begin) as step:
            self._consider(begin + step)

    def _write_first_of_block(self, lanes: Any, first: Any) -> None:
        """Write the value of a block that comes first in the result to `lanes[0]`."""
        first_of = self._top_k.first_of
        with T.vectorized(0, _LANES) as lane:
            lanes[lane] = self._key(first + lane)
        for begin in range(_LANES, _BLOCK, _LANES):
            with T.vectorized(0, _LANES) as lane:
                lanes[lane] = first_of(lanes[lane], self._key(first + begin + lane))
        half = _LANES // 2
        while half > 1:
            with T.vectorized(0, half) as lane:
                lanes[lane] = first_of(lanes[lane], lanes[lane + half])
            half //= 2
        lanes[0] = first_of(lanes[0], lanes[1])

    def _consider(self, at: Any) -> None:
        """Replace the root of the heap by an element of the row if that comes before it."""
        value = self._key(at)
        with T.If(self._top_k.is_before(value, self._heap.values[0])), T.Then():
            self._heap.sink(0, value, tirx.Cast("int32", at), self._size)
