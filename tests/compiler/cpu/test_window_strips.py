"""How images are divided among threads by depthwise convolutions and pools."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import lowered
from tvm import relax, tirx

from farm.compiler.cpu.windows.depthwise_pool import even_strips
from farm.compiler.ir.blocks import blocks_in_loops


@pytest.mark.parametrize(
    ("rows", "most", "strips"),
    [(56, 56, 8), (28, 28, 28), (28, 16, 14), (14, 14, 14), (13, 13, 13), (27, 16, 9), (1, 1, 1)],
)
def test_threads_get_as_many_strips_as_each_other_where_the_rows_allow_it(rows, most, strips):
    assert even_strips(rows, most) == strips


def depthwise(emit, x):
    channels = int(x.ty.shape[3])
    weight = relax.const(np.ones((3, 3, 1, channels), "float32"))
    return emit(
        relax.op.nn.conv2d(
            x, weight, groups=channels, padding=1, data_layout="NHWC", kernel_layout="HWIO"
        )
    )


def max_pool(emit, x):
    return emit(relax.op.nn.max_pool2d(x, (3, 3), (2, 2), layout="NHWC"))


# Of 58 channels the last vectors overlap, and each strip takes a buffer.
@pytest.mark.parametrize(
    ("body", "size", "channels", "strips"),
    [
        (depthwise, 56, 64, {8}),
        (depthwise, 56, 58, {8}),
        (depthwise, 28, 64, {28}),
        (depthwise, 28, 58, {14}),
        (depthwise, 7, 64, set()),
        (max_pool, 55, 64, {27}),
        (max_pool, 55, 58, {9}),
    ],
)
def test_a_kernel_that_takes_long_enough_is_divided_whatever_its_channels(
    body, size, channels, strips
):
    x = np.zeros((1, size, size, channels), "float32")
    low = lowered({"x": x}, body, {}, "x86-64-v3")
    [kernel] = low.kernels
    found = {
        int(loop.extent)
        for one in blocks_in_loops(low.module[kernel.name])
        for loop in one.loops
        if loop.kind == tirx.ForKind.PARALLEL
    }
    assert found == strips
