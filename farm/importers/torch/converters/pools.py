"""Convert pools that also return where their maxima are, as SegNet's decoder reads them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

Array = np.ndarray[Any, Any]
Converter = Callable[[torch.fx.Node, Any], relax.Expr]


def converters() -> dict[str, Converter]:
    """Return the converters for `custom_convert_map` of `from_exported_program`."""
    names = (f"max_pool{rank}d_with_indices.default" for rank in (1, 2, 3))
    return dict.fromkeys(names, _max_pool_with_indices)


def _max_pool_with_indices(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert max_pool; its indices are computed if they are used, which TVM takes for zeros.

    An index counts the elements of an image without padding. Of equal maxima it is the first, of
    NaN the last, as in torch.
    """
    pooled = importer.create_convert_map()[node.target.__name__](node)
    if not any(user.args[1] == 1 for user in node.users):
        return pooled
    windows = _Windows(node)
    value, emit = importer.env[node.args[0]], importer.block_builder.emit
    dtype = str(value.ty.dtype)
    if "float" not in dtype:
        raise NotImplementedError("where the maxima of integers in a pool are")
    rank = len(windows.extents)
    first = int(value.ty.ndim) - rank
    around = [0] * (2 * first) + [each for pair in windows.padding() for each in pair]
    padded = emit(relax.op.nn.pad(value, around, pad_value=-np.inf))
    axes = list(range(first, first + rank))
    best = offset = None
    for tap in itertools.product(*map(range, windows.kernel)):
        begins = [place * gap for place, gap in zip(tap, windows.dilation, strict=True)]
        ends = [
            begin + (length - 1) * step + 1
            for begin, length, step in zip(begins, windows.lengths, windows.stride, strict=True)
        ]
        taken = emit(relax.op.strided_slice(padded, axes, begins, ends, windows.stride))
        if best is None or offset is None:
            best = emit(relax.op.full_like(taken, relax.const(-np.inf, dtype)))
            none = emit(relax.op.zeros_like(taken, "int64"))
            offset = emit(relax.op.add(none, relax.const(windows.first_valid(), "int64")))
        is_larger = emit(
            relax.op.logical_or(emit(relax.op.greater(taken, best)), emit(relax.op.isnan(taken)))
        )
        best = emit(relax.op.where(is_larger, taken, best))
        here = relax.const(windows.offset(tap), "int64")
        offset = emit(relax.op.where(is_larger, here, offset))
    return relax.Tuple([best, emit(relax.op.add(offset, relax.const(windows.corners(), "int64")))])


class _Windows:
    """The windows of a pool over the last axes of a tensor."""

    def __init__(self, node: torch.fx.Node) -> None:
        self.kernel = list(node.args[1])
        rank = len(self.kernel)
        data, *_ = node.args
        self.extents = [int(extent) for extent in data.meta["val"].shape[-rank:]]
        self.lengths = [int(extent) for extent in node.meta["val"][0].shape[-rank:]]
        self.stride, self._before, self.dilation = (
            list(node.args[place]) if len(node.args) > place and node.args[place] else default
            for place, default in ((2, self.kernel), (3, [0] * rank), (4, [1] * rank))
        )

    def padding(self) -> list[tuple[int, int]]:
        """Return the padding before and after each axis that all windows need."""
        return [
            (
                before,
                max(0, (length - 1) * step + (taps - 1) * gap + 1 - extent - before),
            )
            for before, length, step, taps, gap, extent in zip(
                *(self._before, self.lengths, self.stride, self.kernel, self.dilation),
                self.extents,
                strict=True,
            )
        ]

    def corners(self) -> Array:
        """Return the index of the first tap of each window, which may be padding."""
        return self._of_places(self._begins())

    def first_valid(self) -> Array:
        """Return how far behind the first tap the first one that is no padding is."""
        begins = self._begins()
        valid = [
            begin - (np.minimum(begin, 0) // gap) * gap
            for begin, gap in zip(begins, self.dilation, strict=True)
        ]
        return self._of_places(valid) - self._of_places(begins)

    def offset(self, tap: Sequence[int]) -> int:
        """Return how far behind the first tap another one is."""
        moved = 0
        for place, gap, extent in zip(tap, self.dilation, self.extents, strict=True):
            moved = moved * extent + place * gap
        return moved

    def _begins(self) -> list[Array]:
        return [
            np.arange(length) * step - before
            for length, step, before in zip(self.lengths, self.stride, self._before, strict=True)
        ]

    def _of_places(self, places: Sequence[Array]) -> Array:
        made = np.zeros([1] * len(places), np.int64)
        for axis, (place, extent) in enumerate(zip(places, self.extents, strict=True)):
            shape = [-1 if other == axis else 1 for other in range(len(places))]
            made = made * extent + place.reshape(shape)
        return made
