"""Convert pools whose padding or last window TVM 0.27 gets wrong.

The definitions: https://onnx.ai/onnx/operators
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx.converters.missing import Attributes, Inputs

_SAME = ("SAME_UPPER", "SAME_LOWER")


def with_explicit_pads(
    data: relax.Expr, kernel: Sequence[int], attributes: Attributes
) -> Attributes:
    """Return the attributes of windows over `data` with pads in the place of auto_pad."""
    given = attributes.get("auto_pad", b"NOTSET")
    mode = given.decode() if isinstance(given, bytes) else given
    if mode == "NOTSET":
        return attributes
    rank = len(kernel)
    begin, end = [0] * rank, [0] * rank
    if mode in _SAME:
        lengths = [int(extent) for extent in list(data.ty.shape)[2:]]
        strides, dilations = (
            attributes.get(name) or [1] * rank for name in ("strides", "dilations")
        )
        for axis, length in enumerate(lengths):
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            steps = -(-length // strides[axis]) - 1
            total = max(0, steps * strides[axis] + reach - length)
            begin[axis] = total // 2 if mode == "SAME_UPPER" else total - total // 2
            end[axis] = total - begin[axis]
    others = {name: value for name, value in attributes.items() if name != "auto_pad"}
    return {**others, "pads": [*begin, *end]}


class _WithExplicitPads:
    """Mixes explicit pads into TVM's converter of a pool, the next base."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
    ) -> relax.Expr:
        padded = with_explicit_pads(inputs[0], attributes["kernel_shape"], attributes)
        return super()._impl_v1(builder, inputs, padded, params)  # type: ignore[misc]


class MaxPool(_WithExplicitPads, onnx_frontend.MaxPool):  # type: ignore[misc]
    """MaxPool with auto_pad, whose result has as many elements as strides fit, rounded up."""


class AveragePool(_WithExplicitPads, onnx_frontend.AveragePool):  # type: ignore[misc]
    """AveragePool with auto_pad and dilations."""


class LpPool(OnnxOpConverter):  # type: ignore[misc]
    """LpPool: the p-th root of the sum of p-th powers, by an average over data padded with zeros.

    With ceil_mode, TVM's average counts only the elements of a last window that are in the data.
    """

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, dtype = inputs[0], str(inputs[0].ty.dtype)
        kernel = [int(extent) for extent in attributes["kernel_shape"]]
        rank, power = len(kernel), relax.const(attributes.get("p", 2), dtype)
        attributes = with_explicit_pads(data, kernel, attributes)
        pads = attributes.get("pads") or [0] * (2 * rank)
        strides, dilations = (
            attributes.get(name) or [1] * rank for name in ("strides", "dilations")
        )
        widths = [0, 0, 0, 0]
        for axis, extent in enumerate(list(data.ty.shape)[2:]):
            begin, end, reach = pads[axis], pads[rank + axis], (kernel[axis] - 1) * dilations[axis]
            length, stride = int(extent) + begin, strides[axis]
            rest = (length + end - reach - 1) % stride
            more = stride - rest if attributes.get("ceil_mode", 0) and rest else 0
            if length + end - reach - 1 + more >= length:  # the window would begin in the padding
                more = 0
            widths += [begin, end + more]
        powers = builder.emit(relax.op.power(builder.emit(relax.op.abs(data)), power))
        padded = builder.emit(relax.op.nn.pad(powers, widths, "constant", 0.0))
        pool = getattr(relax.op.nn, f"avg_pool{rank}d")
        mean = builder.emit(pool(padded, kernel, strides, 0, dilations))
        total = builder.emit(relax.op.multiply(mean, relax.const(prod(kernel), dtype)))
        return relax.op.power(total, relax.const(1 / attributes.get("p", 2), dtype))


CONVERTERS = {"MaxPool": MaxPool, "AveragePool": AveragePool, "LpPool": LpPool}
