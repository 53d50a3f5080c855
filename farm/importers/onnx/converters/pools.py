"""Convert pools whose padding or last window TVM 0.27 gets wrong.

The definitions: https://onnx.ai/onnx/operators
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
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
    """AveragePool with auto_pad and dilations.

    TVM counts too few elements of a dilated window. Such averages are those over data padded with
    zeros, times constants.
    """

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
    ) -> relax.Expr:
        if max(attributes.get("dilations") or [1]) == 1:
            return super()._impl_v1(builder, inputs, attributes, params)
        data, kernel = inputs[0], [int(extent) for extent in attributes["kernel_shape"]]
        windows = _Windows.of_pool(data, kernel, attributes)
        whole = builder.emit(windows.mean_with_zeros(builder, data))
        factor = np.ones([1] * (2 + len(kernel)))
        included = bool(attributes.get("count_include_pad", 0))
        for axis, extent in enumerate(kernel):
            part = extent / np.maximum(1, windows.counts(axis, included))
            factor = factor * part.reshape(
                [-1 if at == 2 + axis else 1 for at in range(factor.ndim)]
            )
        return relax.op.multiply(whole, relax.const(factor, str(data.ty.dtype)))


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
        power = relax.const(attributes.get("p", 2), dtype)
        windows = _Windows.of_pool(data, kernel, attributes)
        powers = builder.emit(relax.op.power(builder.emit(relax.op.abs(data)), power))
        mean = builder.emit(windows.mean_with_zeros(builder, powers))
        total = builder.emit(relax.op.multiply(mean, relax.const(prod(kernel), dtype)))
        return relax.op.power(total, relax.const(1 / attributes.get("p", 2), dtype))


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of a pool. All lists have an element for each axis of the image."""

    extents: list[int]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begins: list[int]  # of the padding
    ends: list[int]
    further: list[int]  # behind the padding, for a last window in ceil_mode

    @classmethod
    def of_pool(cls, data: relax.Expr, kernel: list[int], attributes: Attributes) -> _Windows:
        """Return the windows that a pool's attributes describe."""
        attributes, rank = with_explicit_pads(data, kernel, attributes), len(kernel)
        pads = attributes.get("pads") or [0] * (2 * rank)
        strides, dilations = (
            attributes.get(name) or [1] * rank for name in ("strides", "dilations")
        )
        extents, further = [int(extent) for extent in list(data.ty.shape)[2:]], []
        for axis, extent in enumerate(extents):
            begin, end, reach = pads[axis], pads[rank + axis], (kernel[axis] - 1) * dilations[axis]
            length, stride = extent + begin, strides[axis]
            rest = (length + end - reach - 1) % stride
            more = stride - rest if attributes.get("ceil_mode", 0) and rest else 0
            if length + end - reach - 1 + more >= length:  # the window would begin in the padding
                more = 0
            further.append(more)
        return cls(extents, kernel, strides, dilations, pads[:rank], pads[rank:], further)

    def mean_with_zeros(self, builder: relax.BlockBuilder, data: relax.Expr) -> relax.Expr:
        """Return the means of the windows over `data` padded with zeros, which count."""
        widths = [0, 0, 0, 0]
        for begin, end, more in zip(self.begins, self.ends, self.further, strict=True):
            widths += [begin, end + more]
        padded = builder.emit(relax.op.nn.pad(data, widths, "constant", 0.0))
        pool = getattr(relax.op.nn, f"avg_pool{len(self.kernel)}d")
        # Without count_include_pad, TVM counts too few elements of the last dilated windows.
        return pool(padded, self.kernel, self.strides, 0, self.dilations, count_include_pad=True)

    def counts(self, axis: int, with_padding: bool) -> np.ndarray[Any, Any]:
        """Return how many elements of each window along an axis are in the data or its padding."""
        begin, end = self.begins[axis], self.ends[axis] + self.further[axis]
        reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
        length = (self.extents[axis] + begin + end - reach) // self.strides[axis] + 1
        first = np.arange(length)[:, None] * self.strides[axis] - begin
        places = first + np.arange(self.kernel[axis]) * self.dilations[axis]
        least, most = (-begin, self.ends[axis]) if with_padding else (0, 0)
        counted: np.ndarray[Any, Any] = (places >= least) & (places < self.extents[axis] + most)
        return np.asarray(counted.sum(1))


CONVERTERS = {"MaxPool": MaxPool, "AveragePool": AveragePool, "LpPool": LpPool}
