"""Operators of 8-bit integers as quantized models have them, and what numpy says they are, to the
bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as some
from relax_models import const
from tvm import relax

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A convolution of NCHW by OIHW, or a product where the weight has two axes; then bias, factor,
    rounding and bounds, or nothing.
    """

    data: tuple[int, ...]
    weight: tuple[int, ...]
    dtype: str = "uint8"
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    quantized: bool = True
    zero: int = 0

    @property
    def _channels(self) -> tuple[int, ...]:
        """The shape of a number for each channel."""
        return (1, self.weight[0], 1, 1) if len(self.weight) == 4 else (self.weight[1],)

    def operands(self, numbers: np.random.Generator) -> dict[str, Array]:
        limits = np.iinfo(self.dtype)
        return {
            "x": numbers.integers(limits.min, limits.max + 1, self.data).astype(self.dtype),
            "w": numbers.integers(-128, 128, self.weight).astype("int8"),
            "bias": numbers.integers(-5000, 5000, self._channels).astype("int32"),
            "factor": (
                numbers.random(self._channels) * 2e-2 / np.sqrt(np.prod(self.data[1:]))
            ).astype("float32"),
        }

    def ours(self, emit: Any, x: Any, w: Any, bias: Any, factor: Any) -> Any:
        if len(self.weight) == 4:
            window = {
                "strides": self.strides,
                "padding": self.padding,
                "dilation": self.dilation,
                "groups": self.groups,
            }
            sums = emit(relax.op.nn.conv2d(x, w, out_dtype="int32", **window))
        else:
            sums = emit(relax.op.matmul(x, w, out_dtype="int32"))
        if not self.quantized:
            return sums
        scaled = emit(
            relax.op.multiply(
                emit(relax.op.astype(emit(relax.op.add(sums, bias)), "float32")), factor
            )
        )
        return rounded(emit, scaled, self.zero)

    def exact(self, x: Array, w: Array, bias: Array, factor: Array) -> Array:
        sums = (
            convolved(self, x, w)
            if len(self.weight) == 4
            else x.astype(np.int64) @ w.astype(np.int64)
        )
        if not self.quantized:
            return sums.astype(np.int32)
        scaled = (sums + bias).astype(np.float32) * factor
        return np.clip(np.round(scaled) + self.zero, 0, 255).astype(np.uint8)


def rounded(emit: Any, x: Any, zero: int) -> Any:
    """As uint8: round, add, bounds."""
    whole = emit(relax.op.round(x))
    moved = emit(relax.op.add(whole, const(zero))) if zero else whole
    within = emit(relax.op.minimum(const(255), emit(relax.op.maximum(const(0), moved))))
    return emit(relax.op.astype(within, "uint8"))


def convolved(case: Case, x: Array, w: Array) -> Array:
    """The sums of a convolution in 64 bits."""
    top, left, bottom, right = case.padding
    x = np.pad(x.astype(np.int64), [(0, 0), (0, 0), (top, bottom), (left, right)])
    (count, _, height, width), (channels, depth, kernel_h, kernel_w) = x.shape, w.shape
    (stride_y, stride_x), (dilation_y, dilation_x) = case.strides, case.dilation
    out_h = (height - dilation_y * (kernel_h - 1) - 1) // stride_y + 1
    out_w = (width - dilation_x * (kernel_w - 1) - 1) // stride_x + 1
    sums = np.zeros((count, case.groups, channels // case.groups, out_h, out_w), np.int64)
    grouped = w.astype(np.int64).reshape(case.groups, -1, depth, kernel_h, kernel_w)
    for ky in range(kernel_h):
        for kx in range(kernel_w):
            rows = slice(ky * dilation_y, ky * dilation_y + (out_h - 1) * stride_y + 1, stride_y)
            columns = slice(kx * dilation_x, kx * dilation_x + (out_w - 1) * stride_x + 1, stride_x)
            taken = x[:, :, rows, columns].reshape(count, case.groups, depth, out_h, out_w)
            sums += np.einsum("goi,ngiyx->ngoyx", grouped[..., ky, kx], taken)
    return sums.reshape(count, channels, out_h, out_w)


def module_of(cases: list[Case]) -> tuple[dict[str, Array], Any, dict[str, Array], list[Array]]:
    """Inputs, body and weights of a module that computes all cases, and the exact results."""
    numbers = np.random.default_rng(len(cases))
    drawn = [case.operands(numbers) for case in cases]
    inputs = {f"x{index}": operands["x"] for index, operands in enumerate(drawn)}
    weights = {
        f"{name}{index}": operands[name]
        for index, operands in enumerate(drawn)
        for name in ("w", "bias", "factor")
    }

    def body(emit: Any, *variables: Any) -> list[Any]:
        named = dict(zip([*inputs, *weights], variables, strict=True))
        return [
            emit(
                case.ours(emit, *(named[f"{name}{index}"] for name in ("x", "w", "bias", "factor")))
            )
            for index, case in enumerate(cases)
        ]

    return (
        inputs,
        body,
        weights,
        [case.exact(**operands) for case, operands in zip(cases, drawn, strict=True)],
    )


def _pairs(low: int, high: int) -> some.SearchStrategy[tuple[int, int]]:
    return some.tuples(some.integers(low, high), some.integers(low, high))


@some.composite
def convolutions(draw: some.DrawFn, depthwise: bool = False) -> Case:
    """Of any shape, in one to three groups, or each channel by itself."""
    each, groups = (
        draw(some.sampled_from([1, 3, 7, 16, 40, 70])),
        draw(some.sampled_from([1, 1, 1, 2, 3])),
    )
    outputs = draw(some.sampled_from([1, 5, 8, 16, 24, 33, 64, 100]))
    if depthwise:
        each, groups, outputs = 1, draw(some.sampled_from([3, 8, 16, 24, 33, 64, 100])), 1
    size, kernel = (
        draw(_pairs(1, 20)),
        draw(some.one_of(_pairs(1, 5), some.just((1, 1)), some.just((3, 3)), some.just((7, 7)))),
    )
    strides, dilation, padding = (
        draw(_pairs(1, 3)),
        draw(_pairs(1, 2)),
        draw(some.tuples(*[some.integers(0, 3)] * 4)),
    )
    reach = [dilation[axis] * (kernel[axis] - 1) + 1 for axis in (0, 1)]
    ends = [
        max(padding[2 + axis], reach[axis] - size[axis] - padding[axis]) for axis in (0, 1)
    ]  # at least one output
    return Case(
        (draw(some.sampled_from([1, 3])), groups * each, *size),
        (groups * outputs, each, *kernel),
        draw(some.sampled_from(["uint8", "uint8", "int8"])),
        strides,
        (*padding[:2], *ends),
        dilation,
        groups,
        draw(some.booleans()),
        draw(some.sampled_from([0, 3, 128])),
    )


def depthwise() -> some.SearchStrategy[Case]:
    """Each channel by itself."""
    return convolutions(depthwise=True)


@some.composite
def products(draw: some.DrawFn) -> Case:
    outer = tuple(draw(some.lists(some.integers(1, 3), max_size=2)))
    rows, depth, width = (
        draw(some.integers(1, 40)),
        draw(some.integers(1, 130)),
        draw(some.integers(1, 150)),
    )
    dtype = draw(some.sampled_from(["uint8", "uint8", "int8"]))
    return Case(
        (*outer, rows, depth),
        (depth, width),
        dtype,
        quantized=draw(some.booleans()),
        zero=draw(some.sampled_from([0, 5])),
    )
