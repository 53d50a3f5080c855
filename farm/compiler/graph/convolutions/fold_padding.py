"""Fold paddings of zeros into the convolutions that read them, and into max pools behind a relu.

Exporters write a padding by itself where its sides differ, as those of TensorFlow's "SAME" with a
stride of 2 and of causal convolutions do. It would be a copy of the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.relax_rewriter import Rewriter, Rule, op_name

_CONVOLUTIONS = {
    f"relax.nn.{name}": getattr(relax.op.nn, name) for name in ("conv1d", "conv2d", "conv3d")
}


@mutator
class PaddingFolder(Rewriter):
    """Adds the widths of paddings to those of their consumers."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {
            **dict.fromkeys(_CONVOLUTIONS, self._convolution),
            "relax.nn.max_pool2d": self._max_pool,
        }

    def _convolution(self, call: Call) -> relax.Expr | None:
        padding, given = self._zeros(call.args[0]), call.attrs
        more = None if padding is None else _spatial_widths(padding, str(given.data_layout))
        if padding is None or more is None:
            return None
        return _CONVOLUTIONS[op_name(call)](
            padding.args[0],
            call.args[1],
            given.strides,
            _sums(given.padding, more),
            given.dilation,
            given.groups,
            given.data_layout,
            given.kernel_layout,
            given.out_layout,
            given.out_dtype,
        )

    def _max_pool(self, call: Call) -> relax.Expr | None:
        """Fold zeros where no value is below zero, and each window has a value of the image.

        There, zeros are never larger than all other values of a window, and a pool's own padding,
        which is the lowest number, is not either.
        """
        padding, given = self._zeros(call.args[0]), call.attrs
        if padding is None or self.called(padding.args[0], "relax.nn.relu") is None:
            return None
        more = _spatial_widths(padding, str(given.layout))
        if more is None or given.ceil_mode or any(int(step) != 1 for step in given.dilation):
            return None
        total = _sums(given.padding, more)
        if any(width >= int(given.pool_size[side % 2]) for side, width in enumerate(total)):
            return None
        return relax.op.nn.max_pool2d(
            padding.args[0],
            given.pool_size,
            given.strides,
            total,
            given.dilation,
            layout=given.layout,
            out_layout=given.out_layout,
        )

    def _zeros(self, expression: relax.Expr) -> Call | None:
        """Return the padding with zeros that computes a value; None for any other value."""
        call = self.called(expression, "relax.nn.pad")
        if call is None or str(call.attrs.pad_mode) != "constant" or call.attrs.pad_value != 0:
            return None
        return call


def _spatial_widths(padding: Call, layout: str) -> list[int] | None:
    """Return the widths before all spatial axes, then those after them, as convolutions have them.

    Returns None if other axes are padded, a width is negative, or channels are in blocks.
    """
    widths = [int(width) for width in padding.attrs.pad_width]
    if 2 * len(layout) != len(widths):
        return None
    pairs = dict(zip(layout, zip(widths[::2], widths[1::2], strict=True), strict=True))
    if any(pairs.pop("N")) or any(pairs.pop("C")) or min(widths) < 0:
        return None
    return [width for side in zip(*pairs.values(), strict=True) for width in side]


def _sums(own: Sequence[Any], more: Sequence[int]) -> list[int]:
    return [int(width) + added for width, added in zip(own, more, strict=True)]
