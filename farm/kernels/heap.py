"""Write a binary heap of values and their indices in TIR.

The root is the value that precedes all others. (J. W. J. Williams, "Algorithm 232: Heapsort",
1964.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

Element = tuple[Any, Any]  # a value, and its index
Precedes = Callable[[Element, Element], Any]


class Heap:
    """The buffers of a heap of at most `capacity` values of the type `dtype`.

    `precedes(one, other)` is the condition that an element is nearer to the root than another.
    Sizes and indices are int32.
    """

    def __init__(self, capacity: int, dtype: str, precedes: Precedes) -> None:
        self.values = T.buffer_proxy(T.alloc_buffer((capacity,), dtype))
        self.indices = T.buffer_proxy(T.alloc_buffer((capacity,), "int32"))
        self._precedes = precedes
        self._place, self._child, self._index = (
            T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local")) for _ in range(3)
        )
        self._value = T.buffer_proxy(T.alloc_buffer((1,), dtype, scope="local"))

    def put(self, place: Any, value: Any, index: Any) -> None:
        """Write an element to a place of the buffers, which are no heap yet."""
        self.values[place] = value
        self.indices[place] = tirx.Cast("int32", index)

    def make(self, size: Any) -> None:
        """Write the loop that makes a heap of the first `size` elements."""
        with T.serial(0, size // 2) as step:
            place = size // 2 - 1 - step
            self.sink(place, self.values[place], self.indices[place], size)

    def drop_root(self, size: Any) -> None:
        """Remove the root of a heap of `size` + 1 elements."""
        self.sink(0, self.values[size], self.indices[size], size)

    def sink(self, place: Any, value: Any, index: Any, size: Any) -> None:
        """Write an element to a place of the heap, or below it, where no child precedes it."""
        at, child = self._place, self._child
        at[0] = tirx.Cast("int32", place)
        self._value[0], self._index[0] = value, index
        child[0] = at[0] * 2 + 1
        with T.While(child[0] < size):
            right = tirx.min(child[0] + 1, size - 1)
            child[0] = child[0] + tirx.Cast(
                "int32", self._precedes(self._element(right), self._element(child[0]))
            )
            sinks = self._precedes(self._element(child[0]), (self._value[0], self._index[0]))
            with T.If(sinks):
                with T.Then():
                    self.values[at[0]] = self.values[child[0]]
                    self.indices[at[0]] = self.indices[child[0]]
                    at[0] = child[0]
                    child[0] = at[0] * 2 + 1
                with T.Else():
                    child[0] = size
        self.values[at[0]] = self._value[0]
        self.indices[at[0]] = self._index[0]

    def _element(self, place: Any) -> Element:
        return self.values[place], self.indices[place]
