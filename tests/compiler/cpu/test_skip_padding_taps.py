"""Taps that see nothing but padding are passed over tile by tile, and the answer stays right."""

from __future__ import annotations

import numpy as np
import pytest
from convolution_cases import AFTER, Convolution, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from relax_models import CPUS, target

from farm.compiler.cpu import padding_taps
from farm.compiler.cpu.kernel_config import Workload
from farm.compiler.ir.annotations import SKIP_PADDING_TAPS
from farm.compiler.target.cpu_model import cpu_model_of

WIDE = Convolution(
    channels=16, size=(16, 16), outputs=32, padding=(12, 12, 12, 12), dilation=(12, 12), then="relu"
)


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=some.data())
def test_a_convolution_with_much_padding_is_right(data):
    def pair(low, high):
        return some.tuples(some.integers(low, high), some.integers(low, high))

    case = Convolution(
        batch=data.draw(some.sampled_from([1, 2])),
        channels=data.draw(some.sampled_from([4, 16, 17])),
        size=data.draw(pair(1, 12)),
        outputs=data.draw(some.sampled_from([8, 16, 40])),
        kernel=data.draw(pair(1, 5)),
        strides=data.draw(pair(1, 3)),
        padding=data.draw(some.tuples(*[some.integers(0, 9)] * 4)),
        dilation=data.draw(pair(1, 5)),
        then=data.draw(some.sampled_from(sorted(AFTER))),
    )
    if min(case.result) > 0:
        assert check(case, data.draw(some.sampled_from(CPUS))).notes == []


@settings(max_examples=60)
@given(data=some.data())
def test_the_share_of_taps_is_what_counting_them_gives(data):
    numbers = [
        data.draw(some.integers(low, high))
        for low, high in ((1, 9), (1, 9), (1, 4), (1, 4), (1, 3), (1, 3), (1, 4), (1, 4))
    ]
    height, width, rows, columns, *rest = numbers
    padding = tuple(data.draw(some.integers(0, 6)) for _ in range(4))
    shape = {
        "data": (1, height, width, 8),
        "weight": (rows, columns, 8, 8),
        "strides": tuple(rest[:2]),
        "dilation": tuple(rest[2:]),
    }
    workload = Workload("convolution", padding=padding, **shape)
    if min(workload.output(0), workload.output(1)) < 1:
        return
    image = np.zeros((height + padding[0] + padding[2], width + padding[1] + padding[3]), bool)
    image[padding[0] : padding[0] + height, padding[1] : padding[1] + width] = True
    found = [
        image[y * rest[0] + ry * rest[2], x * rest[1] + rx * rest[3]]
        for y in range(workload.output(0))
        for x in range(workload.output(1))
        for ry in range(rows)
        for rx in range(columns)
    ]
    share = sum(found) / len(found)
    assert padding_taps.used_tap_fraction(workload, 1) == pytest.approx(
        share if share <= padding_taps._WORTHWHILE else 1.0
    )


@pytest.mark.parametrize("pixels", [1, 2, 5, 14])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("before", [0, 4, 9])
def test_a_tap_counts_if_a_pixel_of_the_tile_sees_the_image(before, dilation, stride, pixels):
    columns, taps = 11, 4
    workload = Workload(
        "convolution",
        data=(1, 1, columns, 3),
        weight=(1, taps, 3, 3),
        strides=(1, stride),
        dilation=(1, dilation),
        padding=(0, before, 0, 7),
    )
    outputs = workload.output(1)
    seen = [
        any(
            0 <= x * stride - before + tap * dilation < columns
            for x in range(first, min(first + pixels, outputs))
        )
        for first in range(0, outputs, pixels)
        for tap in range(taps)
    ]
    share = padding_taps._used_of_axis(workload, 1, pixels)
    # a tile that has pixels on both sides of the image, and none that sees it, is counted, too
    assert sum(seen) / len(seen) <= share <= sum(seen) / len(seen) + 0.1


@pytest.mark.parametrize("cpu", CPUS)
def test_it_is_asked_where_taps_see_nothing_and_nowhere_else(cpu):
    def asked(case):
        answer = check(case, cpu)
        assert answer.rules == ["convolution"]
        return any(
            SKIP_PADDING_TAPS in function.script()
            for name, function in answer.lowered.module.functions_items()
            if "convolution" in str(name)
        )

    assert asked(WIDE)
    assert not asked(Convolution(channels=16, size=(4, 9), outputs=32))
    assert cpu_model_of(target(cpu)).has_memory_operands
