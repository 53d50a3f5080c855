"""Remove the kernel taps of a convolution that only touch padding.

With 16 x 16 pixels and a 3 x 3 kernel of dilation 24, only the middle tap ever meets a pixel: the
convolution is one of 1 x 1. DeepLab's pyramids contain such convolutions (Chen et al., "Rethinking
Atrous Convolution for Semantic Image Segmentation", section 3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import is_dynamic
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, shape_of


class _Axis(NamedTuple):
    """The used taps `first` to `last` (exclusive) of one axis, and its padding."""

    first: int
    last: int
    before: int
    after: int


@mutator
class PaddingTapTrimmer(Rewriter):
    """Trims two-dimensional convolutions in the layouts of the import: NCHW and OIHW."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.nn.conv2d": self._cropped}

    def _cropped(self, call: Call) -> relax.Expr | None:
        data, given, weight, shape = (
            call.args[0],
            call.attrs,
            constant_value(call.args[1]),
            shape_of(call.args[0]),
        )
        if (
            weight is None
            or shape is None
            or (given.data_layout, given.kernel_layout) != ("NCHW", "OIHW")
            or any(map(is_dynamic, shape[2:]))
        ):
            return None
        padding, (high, wide) = list(map(int, given.padding)), weight.shape[2:]
        strides, dilation = list(map(int, given.strides)), list(map(int, given.dilation))
        rows = _used(high, dilation[0], strides[0], int(shape[2]), padding[0], padding[2])
        columns = _used(wide, dilation[1], strides[1], int(shape[3]), padding[1], padding[3])
        kernel = np.ascontiguousarray(
            weight[:, :, rows.first : rows.last, columns.first : columns.last]
        )
        if kernel.shape == weight.shape:
            return None
        around = (rows.before, columns.before, rows.after, columns.after)
        steps = [
            step if taps > 1 else 1 for step, taps in zip(dilation, kernel.shape[2:], strict=True)
        ]
        constants = relax.const(kernel, kernel.dtype.name)
        return relax.op.nn.conv2d(
            data, constants, strides, around, steps, int(given.groups), out_dtype=given.out_dtype
        )


def _used(taps: int, dilation: int, stride: int, extent: int, before: int, after: int) -> _Axis:
    """Return the used taps of an axis; all taps if the used ones would need negative padding."""
    outputs = (extent + before + after - dilation * (taps - 1) - 1) // stride + 1
    places = [place * stride - before for place in range(outputs)]
    seen = [
        tap for tap in range(taps) if any(0 <= place + tap * dilation < extent for place in places)
    ] or list(range(taps))
    first, last = seen[0], seen[-1] + 1
    used = _Axis(first, last, before - first * dilation, after - (taps - last) * dilation)
    return used if min(used.before, used.after) >= 0 else _Axis(0, taps, before, after)
