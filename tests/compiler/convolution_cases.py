"""Describe a convolution and what follows it, compile it, and compare the answer with torch in
double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from relax_models import Answer, compute
from torch.nn import functional
from tvm import relax

Pair = tuple[int, int]


@dataclass(frozen=True)
class Convolution:
    """Of `batch` images of height x width; padding is top, left, bottom, right; `then` is what
    follows it.
    """

    batch: int = 1
    channels: int = 8
    size: Pair = (6, 7)
    outputs: int = 16
    kernel: Pair = (3, 3)
    strides: Pair = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    then: str = "nothing"

    @property
    def result(self) -> Pair:
        padded = (
            self.size[0] + self.padding[0] + self.padding[2],
            self.size[1] + self.padding[1] + self.padding[3],
        )
        taken = zip(padded, self.kernel, self.strides, self.dilation, strict=True)
        height, width = (
            (extent - dilation * (kernel - 1) - 1) // stride + 1
            for extent, kernel, stride, dilation in taken
        )
        return height, width


AFTER = {  # (convolution, bias, residual) -> results, in relax and in torch
    "nothing": (lambda emit, y, b, r: y, lambda y, b, r: [y]),
    "bias": (lambda emit, y, b, r: emit(relax.op.add(y, b)), lambda y, b, r: [y + b]),
    "relu": (
        lambda emit, y, b, r: emit(relax.op.nn.relu(emit(relax.op.add(y, b)))),
        lambda y, b, r: [(y + b).relu()],
    ),
    "relu6": (
        lambda emit, y, b, r: emit(relax.op.clip(emit(relax.op.add(y, b)), 0, 6)),
        lambda y, b, r: [(y + b).clamp(0, 6)],
    ),
    "residual": (
        lambda emit, y, b, r: emit(relax.op.nn.relu(emit(relax.op.add(y, r)))),
        lambda y, b, r: [(y + r).relu()],
    ),
    "silu": (
        lambda emit, y, b, r: emit(relax.op.multiply(y, emit(relax.op.sigmoid(y)))),
        lambda y, b, r: [y * y.sigmoid()],
    ),
    "two results": (
        lambda emit, y, b, r: [emit(relax.op.add(y, b)), emit(relax.op.nn.relu(y))],
        lambda y, b, r: [y + b, y.relu()],
    ),
    "both": (lambda emit, y, b, r: [y, emit(relax.op.add(y, b))], lambda y, b, r: [y, y + b]),
}


def check(case: Convolution, cpu: str) -> Answer:
    """Compile and run a convolution, and compare it with torch's."""
    numbers = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return numbers.standard_normal(shape).astype("float32")

    x, residual = (
        draw(case.batch, case.channels, *case.size),
        draw(case.batch, case.outputs, *case.result),
    )
    weight, bias = (
        draw(case.outputs, case.channels // case.groups, *case.kernel),
        draw(1, case.outputs, 1, 1),
    )
    ours, theirs = AFTER[case.then]

    def body(emit, x, r, w, b):
        y = emit(
            relax.op.nn.conv2d(
                x,
                w,
                strides=case.strides,
                padding=case.padding,
                dilation=case.dilation,
                groups=case.groups,
            )
        )
        return ours(emit, y, b, r)

    answer = compute({"x": x, "r": residual}, body, {"w": weight, "b": bias}, cpu)
    top, left, bottom, right = case.padding
    padded = functional.pad(torch.from_numpy(x).double(), (left, right, top, bottom))
    exact = functional.conv2d(
        padded, torch.from_numpy(weight).double(), None, case.strides, 0, case.dilation, case.groups
    )
    for got, wanted in zip(
        answer.outputs,
        theirs(exact, torch.from_numpy(bias), torch.from_numpy(residual)),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted.numpy(), atol=1e-4, rtol=1e-4)
    return answer
