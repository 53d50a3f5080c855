"""The inner loops of ARM's convolutions: nothing of a tile is kept in memory, and multiply-adds
fill the core's time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import relax_models
import tvm
from tvm import relax

from farm.compiler.lower import lower_module
from farm.processes import subprocesses

sys.path.append(str(Path(__file__).parents[3] / "tools"))

import inner_loops


@dataclass(frozen=True)
class Layer:
    """A convolution: height and width of the image, channels, height and width of the kernel.

    A depthwise convolution of 3 x 3 with the stride `windows` follows, unless that is 0.
    """

    size: int
    channels: int
    outputs: int
    kernel: int
    stride: int
    groups: int
    windows: int = 0


LAYERS = {
    "1x1": Layer(14, 96, 576, 1, 1, 1),
    "1x1 of 32 channels": Layer(28, 32, 192, 1, 1, 1),
    "1x1 of 24 channels": Layer(28, 24, 144, 1, 1, 1),
    "1x1 of 16 channels": Layer(56, 16, 96, 1, 1, 1),
    "3x3 by Winograd": Layer(28, 64, 64, 3, 1, 1),
    "3x3 by Winograd of 256 channels": Layer(14, 256, 256, 3, 1, 1),
    "3x3 by Winograd of 512 channels": Layer(7, 512, 512, 3, 1, 1),
    "3x3 of stride 2": Layer(28, 64, 128, 3, 2, 1),
    "3x3 of few channels": Layer(32, 3, 32, 3, 2, 1),
    "7x7": Layer(64, 3, 64, 7, 2, 1),
    "depthwise": Layer(56, 96, 96, 3, 1, 96),
    "depthwise of 112 columns": Layer(112, 32, 32, 3, 1, 32),
    "depthwise of 7 columns": Layer(7, 960, 960, 3, 1, 960),
    "depthwise of stride 2": Layer(28, 96, 96, 3, 2, 96),
    "1x1, then depthwise": Layer(56, 24, 144, 1, 1, 1, windows=1),
    "1x1, then depthwise of stride 2": Layer(56, 24, 144, 1, 1, 1, windows=2),
}
TRIPLE = "aarch64-linux-gnu"
CPUS = ("cortex-a53", "cortex-a72")
LEAST = 0.75  # of the core's multiply-adds
OF_TRANSFORMS = 0.25  # multiply-adds of the fullest loop, an input's, that an output's has at least
IN_ORDER = {  # what layers reach on a core in order; see tools/inspect-loops
    "1x1": LEAST,
    "1x1 of 32 channels": LEAST,
    "1x1 of 24 channels": LEAST,
    "1x1 of 16 channels": LEAST,
    "3x3 by Winograd": LEAST,
    "3x3 by Winograd of 256 channels": 0.76,
    "3x3 by Winograd of 512 channels": 0.76,
    "3x3 of stride 2": LEAST,
    "3x3 of few channels": LEAST,
    "7x7": LEAST,
    "depthwise": 0.46,
    "depthwise of 112 columns": 0.46,
    "depthwise of 7 columns": 0.33,
    "depthwise of stride 2": 0.3,
    "1x1, then depthwise": 0.46,
    "1x1, then depthwise of stride 2": 0.46,
}
# An address that is loaded again in an iteration of 250 multiply-adds
SPILLS = {("1x1, then depthwise", "cortex-a53"): 1}


@pytest.fixture(scope="module")
def loops_of():
    """The inner loops of a layer's kernel for a CPU."""
    kept: dict[tuple[str, str], list[inner_loops.Loop]] = {}

    def loops(layer: str, cpu: str) -> list[inner_loops.Loop]:
        if (layer, cpu) not in kept:
            kept[layer, cpu] = compiled(layer, cpu)
        return kept[layer, cpu]

    return loops


def compiled(layer: str, cpu: str) -> list[inner_loops.Loop]:
    one = LAYERS[layer]
    numbers = np.random.default_rng(0)
    weights = {
        "w": numbers.standard_normal(
            (one.outputs, one.channels // one.groups, one.kernel, one.kernel)
        ),
        "b": numbers.standard_normal((1, one.outputs, 1, 1)),
        "d": numbers.standard_normal((one.outputs, 1, 3, 3)),
    }
    weights = {name: value.astype("float32") for name, value in weights.items()}

    def follow(emit, y, b):
        return emit(relax.op.clip(emit(relax.op.add(y, b)), 0, 6))

    def body(emit, x, w, b, d):
        padding = (one.kernel // 2,) * 4
        y = emit(relax.op.nn.conv2d(x, w, one.stride, padding, groups=one.groups))
        y = follow(emit, y, b)
        if not one.windows:
            return y
        y = emit(relax.op.nn.conv2d(y, d, one.windows, (1, 1, 1, 1), groups=one.outputs))
        return follow(emit, y, b)

    target = tvm.target.Target({"kind": "llvm", "mtriple": TRIPLE, "mcpu": cpu, "mattr": ["+neon"]})
    module = relax_models.module(
        {"x": np.zeros((1, one.channels, one.size, one.size), "float32")}, body, weights
    )
    low = lower_module(module, list(weights.values()), target, {})
    functions = inner_loops.functions(
        inner_loops.assembly(tvm.compile(low.module, target=target).mod)
    )
    (kernel,) = (
        kernel
        for kernel in low.kernels
        if kernel.rule in ("convolution", "depth_first", "depthwise", "winograd")
    )
    assert (kernel.rule == "winograd") == ("Winograd" in layer)
    assert (kernel.rule == "depth_first") == (one.windows > 0)
    kinds = (True, False) if kernel.rule == "winograd" else (None,)
    return [
        loop
        for kind in kinds
        for loop in inner_loops.inner_loops(
            kernel.name, functions, kind, OF_TRANSFORMS if kind is False else 0.5
        )
    ]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("layer", LAYERS)
def test_no_inner_loop_spills(layer, cpu, loops_of):
    loops = loops_of(layer, cpu)
    assert loops
    worst = max(loops, key=lambda loop: loop.spills)
    assert worst.spills <= SPILLS.get((layer, cpu), 0), "\n".join(worst.lines)


@pytest.mark.parametrize(
    ("layer", "cpu", "least"),
    [
        *((layer, "cortex-a72", LEAST) for layer in LAYERS),
        *((layer, "cortex-a53", least) for layer, least in IN_ORDER.items()),
    ],
)
def test_multiply_adds_fill_the_time(layer, cpu, least, loops_of):
    if not subprocesses.first_installed_program(inner_loops.MCA):
        pytest.skip("llvm-mca is not installed: apt-get install llvm")
    loops = [
        loop for loop in loops_of(layer, cpu) if loop.is_sum or "Winograd" not in layer
    ]  # not the transforms
    fullest = max(loops, key=lambda loop: loop.multiply_adds)
    assert inner_loops.share_of_peak(fullest, TRIPLE, cpu) >= least


def test_all_loops_of_a_core_out_of_order_fill_the_time(loops_of):
    if not subprocesses.first_installed_program(inner_loops.MCA):
        pytest.skip("llvm-mca is not installed: apt-get install llvm")
    for layer in LAYERS:
        loops = [
            loop for loop in loops_of(layer, "cortex-a72") if loop.is_sum or "Winograd" not in layer
        ]
        assert (
            min(inner_loops.share_of_peak(loop, TRIPLE, "cortex-a72") for loop in loops) >= LEAST
        ), layer


def test_sums_of_a_depthwise_convolution_begin_with_loads(loops_of):
    """Copies between registers would take the place of multiply-adds."""
    loop = max(loops_of("depthwise of stride 2", "cortex-a72"), key=lambda loop: loop.multiply_adds)
    assert not [line for line in loop.lines if line.split()[0] == "mov" and ".16b" in line]


def test_the_busiest_unit_is_the_one_that_a_loop_is_bound_by():
    if not subprocesses.first_installed_program(inner_loops.MCA):
        pytest.skip("llvm-mca is not installed: apt-get install llvm")
    loads = inner_loops.Loop(tuple(f"\tldr\tq{at}, [x0]" for at in range(16)))
    waits = inner_loops.Loop(("\tfmla\tv0.4s, v1.4s, v2.4s",))
    unit, busy = inner_loops.busiest(loads, TRIPLE, "cortex-a53")
    assert unit == "A53UnitLdSt"
    assert busy > 0.9
    assert inner_loops.busiest(waits, TRIPLE, "cortex-a53")[1] < 0.2
    assert inner_loops.cycles(waits, TRIPLE, "cortex-a53") > 5


def test_a_spill_is_seen_by_any_register_that_points_into_the_stack():
    lines = [
        "\tadd\tx9, sp, #32",
        ".LBB0_1:",
        "\tldr\tq0, [x9, #16]",
        "\tfmla\tv1.4s, v2.4s, v0.s[0]",
        "\tldr\tq0, [x8]",
        "\tb.ne\t.LBB0_1",
    ]
    (loop,) = inner_loops.inner_loops(
        "kernel", inner_loops.functions("\n".join(["kernel_compute_:", *lines]))
    )
    assert (loop.multiply_adds, loop.spills) == (1, 1)


def test_maximum_and_minimum_are_one_instruction_each(loops_of):
    (words, *_) = (
        [line.split()[0] for line in loop.lines] for loop in loops_of("depthwise", "cortex-a72")
    )
    assert {"fmax", "fmin"} <= set(words)
    assert not {"fcmgt", "bit", "bif", "bsl"} & set(words)


def test_sums_are_told_from_transforms():
    total = ["\tldr\tq1, [x0]", "\tfmla\tv0.4s, v1.4s, v2.s[0]", "\tb.ne\t.LBB0_1"]
    line = [
        "\tldr\tq0, [x0]",
        "\tfmla\tv0.4s, v1.4s, v2.s[0]",
        "\tstr\tq0, [x0]",
        "\tb.ne\t.LBB0_1",
    ]
    halves = ["\tvld1.32\t{d16, d17}, [r0]", "\tvmla.f32\tq8, q9, d0[0]", "\tbne\t.LBB0_1"]
    assert [inner_loops.Loop(tuple(lines)).is_sum for lines in (total, line, halves)] == [
        True,
        False,
        False,
    ]
