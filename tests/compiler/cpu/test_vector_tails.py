"""Channels that do not fill vectors: what follows a convolution goes by whole vectors all the same,
and is right at the end.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from convolution_cases import AFTER, Convolution, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from relax_models import CPUS, lowered, target
from tvm import relax, s_tir, te

from farm.compiler.cpu.general_schedule import vectorize_with_tail
from farm.compiler.cpu.tir_passes.vector_tails import vector_starts_and_widths
from farm.compiler.cpu.windows.depthwise_pool import _lanes
from farm.compiler.target.cpu_model import cpu_model_of


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("width", range(49))
def test_the_pieces_of_a_rest_cover_it_once_by_halves_of_a_vector(width, lanes):
    covered = [
        begin + lane
        for begin, wide in vector_starts_and_widths(width, lanes)
        for lane in range(wide)
    ]
    assert covered == list(range(width))
    assert all(lanes % wide == 0 for _, wide in vector_starts_and_widths(width, lanes))


@pytest.mark.parametrize(
    ("extent", "widths"), [(27, [8, 3]), (9, [8, 1]), (24, [8]), (8, [8]), (5, [5])]
)
def test_a_loop_goes_by_whole_vectors_and_its_rest_by_a_narrower_one(extent, widths):
    data = te.placeholder((extent,), name="data")
    function = te.create_prim_func([data, te.compute((extent,), lambda at: data[at] + 1.0)])
    work = s_tir.Schedule(function)
    (loop,) = work.get_loops(work.get_child_blocks(work.get_sblock("root"))[0])
    vectorize_with_tail(work, loop, 8)
    found = re.findall(r"T\.vectorized\((?:(\d+), )?(\d+)\)", work.mod["main"].script())
    assert [int(end) - int(begin or 0) for begin, end in found] == widths


@settings(max_examples=24, suppress_health_check=list(HealthCheck))
@given(data=some.data())
def test_a_convolution_to_any_number_of_channels_is_right(data):
    case = Convolution(
        batch=data.draw(some.sampled_from([1, 2])),
        channels=data.draw(some.sampled_from([3, 8, 27])),
        outputs=data.draw(some.integers(1, 170)),
        size=(data.draw(some.integers(1, 6)), data.draw(some.integers(1, 15))),
        kernel=(1, data.draw(some.sampled_from([1, 1, 3]))),
        padding=(0, 1, 0, 1),
        then=data.draw(some.sampled_from(sorted(AFTER))),
    )
    assert check(case, data.draw(some.sampled_from(CPUS))).notes == []


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("channels", [27, 58, 162, 366])
def test_an_activation_after_a_convolution_goes_by_whole_vectors(channels, cpu):
    low = check(
        Convolution(channels=27, outputs=channels, size=(4, 14), kernel=(1, 1), then="silu"), cpu
    ).lowered
    (kernel,) = (
        function
        for name, function in low.module.functions_items()
        if "convolution" in str(name.name_hint)
    )
    widths = [
        int(width)
        for width in re.findall(
            r"vectorized\(T\.int64\((\d+)\)\):\n\s+with T\.sblock\(\"(?!convolution)",
            kernel.script(),
        )
    ]
    assert max(widths) == max(
        width for width in cpu_model_of(target(cpu)).vector_widths if width <= channels
    )


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("channels", [24, 27, 72, 88, 162, 184, 228])
def test_a_depthwise_convolution_goes_by_vectors_that_a_core_has(channels, cpu):
    core = cpu_model_of(target(cpu))
    assert _lanes(core, channels) in core.vector_widths
    case = Convolution(
        channels=channels,
        outputs=channels,
        groups=channels,
        size=(5, 9),
        padding=(1, 1, 1, 1),
        then="silu",
    )
    assert check(case, cpu).rules == ["depthwise"]
    assert check(replace(case, strides=(2, 2), then="residual"), cpu).rules == ["depthwise"]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("vectors", [4, 9])
@pytest.mark.parametrize("operator", ["depthwise", "max_pool", "average_pool"])
def test_what_follows_overlapping_vectors_goes_a_row_at_a_time_by_whole_vectors(
    operator, vectors, cpu
):
    lanes = cpu_model_of(target(cpu)).lanes
    channels = vectors * lanes + lanes // 2 + 1  # odd: no narrower vectors divide them
    assert _lanes(cpu_model_of(target(cpu)), channels) == lanes
    x = np.ones((1, 12, 12, channels), "float32")

    def body(emit, x, w, b):
        window = {
            "depthwise": lambda: relax.op.nn.conv2d(
                x,
                w,
                padding=(1, 1, 1, 1),
                groups=channels,
                data_layout="NHWC",
                kernel_layout="HWIO",
            ),
            "max_pool": lambda: relax.op.nn.max_pool2d(x, (3, 3), padding=(1,) * 4, layout="NHWC"),
            "average_pool": lambda: relax.op.nn.avg_pool2d(
                x, (3, 3), padding=(1,) * 4, layout="NHWC"
            ),
        }[operator]()
        return emit(relax.op.nn.relu(emit(relax.op.add(emit(window), b))))

    weights = {
        "w": np.ones((3, 3, 1, channels), "float32"),
        "b": np.ones(channels, "float32"),
    }
    low = lowered({"x": x}, body, weights, cpu)
    [kernel] = [kernel for kernel in low.kernels if kernel.rule not in ("general", "transpose")]
    text = low.module[kernel.name].script()
    widths = {
        int(end) - int(begin or 0)
        for begin, end in re.findall(
            r"T\.vectorized\((?:T\.int64\()?(?:(\d+)\)?, (?:T\.int64\()?)?(\d+)", text
        )
    }
    assert widths <= {lanes, channels % lanes}
    body = text[text.index('with T.sblock("root")') :]
    assert (
        len(re.findall(r"^    for ", body, re.MULTILINE)) == 1
    )  # one nest: nothing comes after it
