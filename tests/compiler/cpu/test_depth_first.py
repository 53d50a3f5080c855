"""A convolution and the windows over its result as one kernel: right, and where it is chosen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from relax_models import CPUS, Answer, compute, const, lowered, runner
from tvm import relax, tirx

from farm.compiler import relax_pipeline
from farm.compiler.cpu.depth_first.plan import DepthFirstPlan, depth_first_plan
from farm.compiler.cpu.kernel_config import DIRECT, ConfigDecision, KernelConfig, Workload
from farm.compiler.cpu.register_tiles import Tile
from farm.compiler.target.cpu_model import CpuModel

Array = np.ndarray[Any, Any]
Emit = Callable[..., Any]
Activation = tuple[Callable[..., Any], Callable[..., Any]]  # in Relax and in torch
RANDOM = np.random.default_rng(0)
ERROR = 2e-5  # of the largest output
DEPTHWISE, MAXIMUM, AVERAGE = "depthwise", "maximum", "average"


def clipped(emit: Emit, x: Any) -> Any:
    return emit(relax.op.minimum(const(6), emit(relax.op.maximum(const(0), x))))


def silu(emit: Emit, x: Any) -> Any:
    return emit(relax.op.nn.silu(x))


ACTIVATIONS: dict[str, Activation] = {
    "none": (lambda emit, x: x, lambda x: x),
    "clip": (clipped, torch.nn.functional.relu6),
    "silu": (silu, torch.nn.functional.silu),
}


@dataclass(frozen=True)
class Case:
    """Images are batch x channels x height x width; `kernel` is the convolution's."""

    batch: int
    channels: int
    height: int
    width: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    window: int = 3
    window_stride: int = 1
    dilation: int = 1
    windows: str = DEPTHWISE
    activation: str = "clip"

    @property
    def image(self) -> Array:
        shape = (self.batch, self.channels, self.height, self.width)
        return RANDOM.standard_normal(shape).astype("float32")

    @property
    def weights(self) -> dict[str, Array]:
        shapes = {
            "w": (self.outputs, self.channels, self.kernel, self.kernel),
            "b": (1, self.outputs, 1, 1),
            "d": (self.outputs, 1, self.window, self.window),
            "e": (1, self.outputs, 1, 1),
        }
        return {
            name: RANDOM.standard_normal(shape).astype("float32") for name, shape in shapes.items()
        }

    @property
    def padding(self) -> int:
        return (self.window - 1) * self.dilation // 2

    def body(self, emit: Emit, x: Any, w: Any, b: Any, d: Any, e: Any) -> Any:
        between = self.convolved(emit, x, w, b)
        result = self.slid(emit, between, d)
        return ACTIVATIONS[self.activation][0](emit, emit(relax.op.add(result, e)))

    def convolved(self, emit: Emit, x: Any, w: Any, b: Any) -> Any:
        convolution = relax.op.nn.conv2d(x, w, self.stride, self.kernel // 2)
        between = emit(relax.op.add(emit(convolution), b))
        return ACTIVATIONS[self.activation][0](emit, between)

    def slid(self, emit: Emit, between: Any, d: Any) -> Any:
        sizes = (self.window, self.window), self.window_stride, self.padding, self.dilation
        if self.windows == MAXIMUM:
            return emit(relax.op.nn.max_pool2d(between, *sizes))
        if self.windows == AVERAGE:
            return emit(relax.op.nn.avg_pool2d(between, *sizes))
        return emit(relax.op.nn.conv2d(between, d, *sizes[1:], groups=self.outputs))

    def right(self, x: Array, w: Array, b: Array, d: Array, e: Array) -> Array:
        x_, w_, b_, d_, e_ = (torch.from_numpy(one).double() for one in (x, w, b, d, e))
        follow, here = ACTIVATIONS[self.activation][1], torch.nn.functional
        between = follow(here.conv2d(x_, w_, None, self.stride, self.kernel // 2) + b_)
        sizes = self.window_stride, self.padding
        if self.windows == MAXIMUM:
            slid = here.max_pool2d(between, self.window, *sizes, self.dilation)
        elif self.windows == AVERAGE:
            slid = here.avg_pool2d(between, self.window, *sizes, count_include_pad=False)
        else:
            slid = here.conv2d(between, d_, None, *sizes, self.dilation, self.outputs)
        result: Array = follow(slid + e_).numpy()
        return result

    def answer(self, cpu: str = "native") -> tuple[Answer, float]:
        """Return the answer, and its error of the largest output."""
        x, weights = self.image, self.weights
        answer = compute({"x": x}, self.body, weights, cpu)
        wanted = self.right(x, *weights.values())
        return answer, float(np.abs(answer.outputs[0] - wanted).max() / np.abs(wanted).max())


CASES = [
    Case(1, 16, 112, 112, 96, window_stride=2),
    Case(1, 3, 96, 80, 32, kernel=3, stride=2),
    Case(2, 24, 28, 28, 96, window=5, activation="silu"),
    Case(1, 20, 15, 24, 32, dilation=2, activation="none"),
    Case(1, 17, 30, 14, 64, window=3, window_stride=2, windows=MAXIMUM),
    Case(1, 32, 20, 20, 64, windows=AVERAGE, activation="none"),
    Case(1, 8, 9, 7, 160, window=7, activation="silu"),
    Case(3, 12, 13, 26, 32, window=4, window_stride=3),
    Case(1, 8, 56, 56, 32, window=2, window_stride=3),  # rows that no window reads
]


@pytest.mark.parametrize(
    ("cpu", "case"), [(cpu, one) for cpu in CPUS for one in CASES[CPUS.index(cpu) % 2 :: 2]]
)
def test_a_convolution_and_windows_over_its_result_are_one_kernel_and_right(cpu, case):
    answer, error = case.answer(cpu)
    assert answer.rules == ["depth_first"] and not answer.notes
    assert error < ERROR


@pytest.mark.parametrize("case", CASES[:3])
def test_the_results_are_those_of_separate_kernels_to_the_bit(case, monkeypatch):
    x, weights = case.image, case.weights
    merged = compute({"x": x}, case.body, weights)
    monkeypatch.setattr(
        relax_pipeline, "merge_convolutions_with_windows", lambda module, selector: module
    )
    separate = compute({"x": x}, case.body, weights)
    assert merged.rules == ["depth_first"] and len(separate.rules) == 2
    np.testing.assert_array_equal(merged.outputs[0], separate.outputs[0])


@settings(max_examples=12)
@given(
    some.builds(
        Case,
        batch=some.integers(1, 2),
        channels=some.integers(1, 40),
        height=some.integers(4, 40),
        width=some.integers(4, 40),
        outputs=some.sampled_from([8, 16, 24, 32, 40, 48, 64, 80, 96]),
        kernel=some.sampled_from([1, 1, 1, 3]),
        stride=some.integers(1, 2),
        window=some.integers(2, 5),
        window_stride=some.integers(1, 3),
        dilation=some.integers(1, 2),
        windows=some.sampled_from([DEPTHWISE, DEPTHWISE, MAXIMUM]),
        activation=some.sampled_from(sorted(ACTIVATIONS)),
    ),
    some.sampled_from(CPUS),
)
def test_pairs_of_any_size_are_right(case, cpu):
    answer, error = case.answer(cpu)
    assert not answer.notes
    assert error < ERROR


def test_a_pair_is_right_at_every_batch():
    case = Case(3, 16, 28, 28, 64)
    x, weights = case.image, case.weights
    batch = tirx.Var("n", "int64")
    shape = relax.TensorType((batch, *x.shape[1:]), "float32")
    low = lowered({"x": shape}, case.body, weights)
    assert [
        kernel.rule for kernel in low.kernels if kernel.rule not in ("general", "transpose")
    ] == ["depth_first"]
    run = runner(low)
    for count in (1, 2, 3):
        wanted = case.right(x[:count], *weights.values())
        np.testing.assert_allclose(run([x[:count]])[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "case", [Case(1, 160, 14, 14, 960), Case(1, 1024, 2, 2, 4096, window=2)], ids=["14", "2"]
)
def test_a_pair_with_weights_of_float16_is_right(case):
    x, weights = case.image, {k: one.astype("float16") for k, one in case.weights.items()}

    def body(emit: Emit, x: Any, *halves: Any) -> Any:
        return case.body(emit, x, *(emit(relax.op.astype(one, "float32")) for one in halves))

    low = lowered({"x": x}, body, weights, cpu="x86-64-v4")
    assert "depth_first" in {kernel.rule for kernel in low.kernels}
    answer = compute({"x": x}, body, weights, cpu=CPUS[-1])
    assert not answer.notes
    wanted = case.right(x, *weights.values())
    assert np.abs(answer.outputs[0] - wanted).max() < ERROR * np.abs(wanted).max()


def test_a_result_that_others_read_stays_a_result():
    case = Case(1, 16, 14, 14, 64)

    def body(emit: Emit, x: Any, w: Any, b: Any, d: Any, e: Any) -> Any:
        between = case.convolved(emit, x, w, b)
        return [emit(relax.op.add(case.slid(emit, between, d), e)), between]

    answer = compute({"x": case.image}, body, case.weights)
    assert sorted(answer.rules) == ["convolution", "depthwise"]


@pytest.mark.parametrize("of_image", [False, True], ids=["windows over it", "over the image"])
def test_a_result_that_is_added_to_windows_stays_a_result(of_image):
    case = Case(1, 64, 14, 14, 64)

    def body(emit: Emit, x: Any, w: Any, b: Any, d: Any, e: Any) -> Any:
        between = case.convolved(emit, x, w, b)
        slid = case.slid(emit, x if of_image else between, d)
        return emit(relax.op.add(emit(relax.op.add(slid, e)), between))

    x, weights = case.image, case.weights
    answer = compute({"x": x}, body, weights)
    assert (sorted(answer.rules), answer.notes) == (["convolution", "depthwise"], [])
    x_, w, b, d, e = (torch.from_numpy(one).double() for one in (x, *weights.values()))
    between = torch.nn.functional.relu6(torch.nn.functional.conv2d(x_, w) + b)
    source = x_ if of_image else between
    wanted = torch.nn.functional.conv2d(source, d, None, 1, 1, 1, 64) + e + between
    np.testing.assert_allclose(answer.outputs[0], wanted.numpy(), rtol=1e-4, atol=2e-4)


def test_windows_may_read_the_result_as_any_of_their_kernel_s_operands():
    case = Case(1, 16, 14, 14, 64)
    a, f = RANDOM.standard_normal((2, 1, 64, 14, 14)).astype("float32")

    def body(emit: Emit, x: Any, a: Any, f: Any, w: Any, b: Any, d: Any, e: Any) -> Any:
        between = case.convolved(emit, x, w, b)
        scaled = emit(relax.op.multiply(emit(relax.op.multiply(a, f)), const(0.5)))
        return emit(relax.op.add(scaled, case.slid(emit, between, d)))

    x, weights = case.image, case.weights
    answer = compute({"x": x, "a": a, "f": f}, body, weights)
    assert (answer.rules, answer.notes) == (["depth_first"], [])
    x_, w, b, d, _ = (torch.from_numpy(one).double() for one in (x, *weights.values()))
    between = torch.nn.functional.relu6(torch.nn.functional.conv2d(x_, w) + b)
    wanted = torch.nn.functional.conv2d(between, d, None, 1, 1, 1, 64).numpy() + a * f / 2
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-4, atol=2e-4)


def test_the_report_has_the_tile_and_the_bands_that_the_kernel_has():
    answer, _ = Case(1, 16, 112, 112, 96, window_stride=2).answer("native")
    (kernel,) = (kernel for kernel in answer.kernels if kernel.rule == "depth_first")
    assert re.fullmatch(r"\d+x\d+x\d+, \d+ bands?", kernel.choice)
    pixels = int(kernel.choice.split("x")[0])
    assert 112 % pixels == 0 and not kernel.recorded


CPU = CpuModel("test", 16, 32, l2_bytes=1 << 20)
CONVOLUTION = Workload("convolution", (1, 112, 112, 16), (1, 1, 16, 96))
WINDOWS = Workload("depthwise", (1, 112, 112, 96), (3, 3, 1, 96), (2, 2), (1, 1, 1, 1), groups=96)


def decided(workload: Workload, tile: Tile) -> ConfigDecision:
    return ConfigDecision(workload, KernelConfig(DIRECT, tile), False, ())


def test_fewer_bands_are_taken_where_more_would_compute_too_many_rows_twice():
    convolution = Workload("convolution", (1, 14, 14, 16), (1, 1, 16, 64))
    windows = Workload("depthwise", (1, 14, 14, 64), (3, 3, 1, 64), (1, 1), (1, 1, 1, 1), groups=64)
    chosen = decided(convolution, Tile(7, 2, 16)), decided(windows, Tile(7, 1, 16))
    # Two bands would keep four threads busy, but each computes 8 rows for 7
    assert depth_first_plan(*chosen, 1, CPU) == DepthFirstPlan(Tile(7, 2, 16), 1)


def test_the_tile_of_a_pair_divides_the_rows():
    windows = decided(WINDOWS, Tile(8, 1, 16))
    kept = depth_first_plan(decided(CONVOLUTION, Tile(14, 1, 16)), windows, 1, CPU)
    assert kept is not None and kept.tile == Tile(14, 1, 16)
    changed = depth_first_plan(decided(CONVOLUTION, Tile(13, 1, 16)), windows, 1, CPU)
    assert changed is not None and 112 % changed.tile.pixels == 0
    prime = replace(CONVOLUTION, data=(1, 113, 113, 16))
    assert depth_first_plan(decided(prime, Tile(14, 1, 16)), windows, 1, CPU) is None


def test_channels_that_fill_no_whole_blocks_are_left_to_separate_kernels():
    windows = decided(WINDOWS, Tile(8, 1, 16))
    assert depth_first_plan(decided(CONVOLUTION, Tile(7, 3, 16)), windows, 1, CPU) is not None
    assert depth_first_plan(decided(CONVOLUTION, Tile(7, 4, 16)), windows, 1, CPU) is None
    half = decided(CONVOLUTION, Tile(7, 3, 8))
    assert depth_first_plan(half, windows, 1, CPU) is None, "windows of 16 lanes, blocks of 24"


def test_a_band_has_the_rows_that_dilated_windows_reach():
    dilated = replace(WINDOWS, strides=(1, 1), padding=(8, 8, 8, 8), dilation=(8, 8))
    pair = decided(CONVOLUTION, Tile(14, 1, 16)), decided(dilated, Tile(8, 1, 16))
    plan = depth_first_plan(*pair, 1, replace(CPU, l2_bytes=16 << 20))
    assert plan is not None and plan.bands == 1
    assert depth_first_plan(*pair, 1, replace(CPU, l2_bytes=256 << 10)) is None


def test_windows_with_rows_between_them_have_one_band():
    apart = replace(WINDOWS, weight=(1, 1, 1, 96), padding=(0, 0, 0, 0))
    pair = decided(CONVOLUTION, Tile(14, 1, 16)), decided(apart, Tile(8, 1, 16))
    plan = depth_first_plan(*pair, 1, replace(CPU, l2_bytes=16 << 20))
    assert plan is not None and plan.bands == 1
    assert depth_first_plan(*pair, 1, replace(CPU, l2_bytes=512 << 10)) is None


def test_windows_that_load_by_rows_have_one_band():
    core = CpuModel("a53", 4, 32, in_order=True, has_memory_operands=False, l2_bytes=128 << 10)
    pair = decided(CONVOLUTION, Tile(8, 2, 4)), decided(WINDOWS, Tile(8, 1, 4))
    assert depth_first_plan(*pair, 1, core) is None
    plan = depth_first_plan(*pair, 1, replace(core, l2_bytes=4 << 20))
    assert plan is not None and plan.bands == 1


def test_bands_are_whole_tiles_of_rows():
    pair = decided(CONVOLUTION, Tile(14, 1, 16)), decided(WINDOWS, Tile(8, 1, 16))
    for rows in (1, 4, 7, 8):
        plan = depth_first_plan(*pair, rows, replace(CPU, l2_bytes=512 << 10))
        assert plan is not None and 56 // plan.bands % rows == 0, rows


def test_the_rows_of_a_band_fit_into_the_cache():
    pair = decided(CONVOLUTION, Tile(14, 1, 16)), decided(WINDOWS, Tile(8, 1, 16))
    for kib in (256, 1024, 16384):
        plan = depth_first_plan(*pair, 1, replace(CPU, l2_bytes=kib << 10))
        assert plan is not None
        rows = min(112, (56 // plan.bands - 1) * 2 + 3)
        assert rows * 112 * 16 * 4 <= kib << 9, kib
    tiny = depth_first_plan(*pair, 1, replace(CPU, l2_bytes=64 << 10))
    assert tiny is None, "bands of a row would compute half of the rows twice"
