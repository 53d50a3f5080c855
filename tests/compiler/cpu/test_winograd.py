"""Winograd's convolution against torch in double precision, and where it is chosen."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as some
from relax_models import CPUS, compute, lowered, run, target
from torch.nn import functional
from tvm import relax, te, tirx

from farm.compiler.codegen.loop_nest_pipelines import register_cpu_pipeline
from farm.compiler.cpu import schedule
from farm.compiler.cpu.conv_dense_compute import CONVOLUTION
from farm.compiler.cpu.cost_model import gemm_candidates
from farm.compiler.cpu.kernel_config import CHANNELS, PIXELS, ConfigSelector, KernelConfig, Workload
from farm.compiler.cpu.register_tiles import Tile, should_group_reduction_step_loads
from farm.compiler.cpu.winograd import compute as winograd_compute
from farm.compiler.cpu.winograd import cost_model
from farm.compiler.cpu.winograd.cost_model import weight_transform_for, winograd_candidates
from farm.compiler.target.cpu_model import CpuModel, cpu_model_of
from farm.compiler.winograd_weights import Phases

sys.path.append(str(Path(__file__).parents[3] / "tools"))

import inner_loops

# Of the largest output, at most, by the longer side of a tile.
ERROR = {4: 2e-6, 6: 1e-5, 8: 3e-5, 10: 2e-5}
TILE = Tile(3, 2, 4)
A53 = CpuModel("neon", 4, 32)


@dataclass(frozen=True)
class Case:
    workload: Workload
    size: int
    band: int
    choice: KernelConfig
    then: str = "nothing"

    @property
    def most(self) -> float:
        """The largest error, relative to the largest output."""
        transform = weight_transform_for(self.workload, self.choice, A53)
        return ERROR[max(transform.tile(self.workload.weight).sides)]


def case(
    data,
    outputs,
    padding=(1, 1, 1, 1),
    size=4,
    band=1,
    tile=TILE,
    order=PIXELS,
    then="nothing",
    groups=1,
    dilation=(1, 1),
    taps=(3, 3),
    strides=(1, 1),
):
    weight = (*taps, data[3] // groups, outputs)
    workload = Workload(CONVOLUTION, data, weight, strides, padding, dilation, groups)
    return Case(workload, size, band, KernelConfig(f"winograd{size}", tile, order), then)


def kernel(case: Case, core: CpuModel) -> tvm.tirx.PrimFunc:
    workload = case.workload
    data = te.placeholder(workload.data, name="data")
    transform = weight_transform_for(workload, case.choice, core)
    weight = te.placeholder(transform.shape(workload.weight), name="weight")
    grouped_loads = should_group_reduction_step_loads(core, transform.depth)
    result = winograd_compute.winograd_conv2d_compute(
        workload, case.choice, case.size, case.band, grouped_loads, data, weight
    )
    residual = te.placeholder(result.shape, name="residual")
    if case.then == "residual":
        total = te.compute(result.shape, lambda *at: result[at] + residual[at], name="sum")
        result = te.compute(result.shape, lambda *at: te.max(total[at], 0.0), name="relu")
    return te.create_prim_func([data, weight, residual, result])


def errors(cases: list[Case], cpu: str) -> list[float]:
    """Compile all cases in one module and run each: the largest errors, relative to the largest
    output.
    """
    core, functions = cpu_model_of(target(cpu)), {}
    for index, each in enumerate(cases):
        function, report = schedule.create_kernel_scheduler(ConfigSelector(core))(
            f"case{index}", kernel(each, core)
        )
        assert (report.rule, report.note) == ("winograd", ""), each
        functions[f"case{index}"] = function.with_attr("global_symbol", f"case{index}")
    library = tvm.compile(
        tvm.IRModule(functions), target=target(cpu), tir_pipeline=register_cpu_pipeline()
    )
    return [error(each, core, library[f"case{index}"]) for index, each in enumerate(cases)]


def error(case: Case, core: CpuModel, function: Any) -> float:
    numbers, workload = np.random.default_rng(0), case.workload
    shape = (workload.data[0], workload.output(0), workload.output(1), workload.channels)
    x, w, residual = (
        numbers.standard_normal(extents).astype("float32")
        for extents in (workload.data, workload.weight, shape)
    )
    packed = weight_transform_for(workload, case.choice, core).apply(w)
    got = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    function(*map(tvm.runtime.tensor, (x, packed, residual)), got)
    top, left, bottom, right = workload.padding
    padded = functional.pad(
        torch.from_numpy(x.transpose(0, 3, 1, 2)).double(), (left, right, top, bottom)
    )
    wanted = (
        functional.conv2d(
            padded,
            torch.from_numpy(w.transpose(3, 2, 0, 1)).double(),
            stride=workload.strides,
            dilation=workload.dilation,
            groups=workload.groups,
        )
        .permute(0, 2, 3, 1)
        .numpy()
    )
    if case.then == "residual":
        wanted = np.maximum(wanted + residual, 0)
    return float(np.abs(got.numpy() - wanted).max() / (np.abs(wanted).max() or 1))


def in_turn(cases: list[Case]) -> list[tuple[str, list[Case]]]:
    """Divide the cases among the CPUs: code for each takes a second."""
    return [(cpu, cases[place :: len(CPUS)]) for place, cpu in enumerate(CPUS)]


def test_shapes_that_fit_nothing_are_right():
    cases = [
        case((1, 1, 1, 5), 7),
        case((3, 1, 1, 16), 16, size=2, order=CHANNELS),
        case((1, 3, 5, 3), 1, (0, 0, 0, 0)),
        case((2, 13, 6, 35), 19, (0, 2, 1, 0), band=2, then="residual"),
        case((2, 13, 6, 35), 19, (0, 2, 1, 0), size=2, band=3, order=CHANNELS, tile=Tile(2, 1, 8)),
        case((3, 10, 10, 40), 72, band=2, then="residual"),
        case((1, 10, 11, 8), 80, order=CHANNELS, tile=Tile(5, 3, 4), then="residual"),
    ]
    for cpu, some_cases in in_turn(cases):
        for each, found in zip(some_cases, errors(some_cases, cpu), strict=True):
            assert found < each.most, (cpu, each)


def test_groups_are_right():
    """A tile reads the inputs of its group, whatever the order and the rows at a time."""
    cases = [
        case((1, 10, 11, 32), 48, band=2, groups=2, then="residual"),
        case((2, 13, 9, 64), 64, order=CHANNELS, groups=4, tile=Tile(2, 1, 8), then="residual"),
        case((1, 6, 7, 48), 24, (0, 2, 1, 0), size=2, band=2, groups=3, tile=Tile(3, 1, 8)),
        case((1, 9, 9, 32), 64, size=2, order=CHANNELS, groups=8, tile=Tile(4, 2, 4)),
    ]
    for cpu, some_cases in in_turn(cases):
        for each, found in zip(some_cases, errors(some_cases, cpu), strict=True):
            assert found < each.most, (cpu, each)


def test_dilated_convolutions_are_right():
    """Rows and columns of a phase lie apart, and need not be as many in each."""
    cases = [
        case((1, 12, 10, 16), 16, (2, 1, 2, 1), dilation=(2, 1)),
        case((2, 12, 10, 16), 24, (1, 1, 1, 1), dilation=(2, 1), then="residual"),
        case((1, 13, 9, 8), 32, (2, 2, 2, 2), band=2, dilation=(2, 2), then="residual"),
        case((2, 15, 14, 32), 48, (0, 3, 1, 5), dilation=(3, 2), order=CHANNELS, then="residual"),
        case((1, 7, 20, 19), 21, (4, 0, 4, 0), size=2, dilation=(4, 1), tile=Tile(2, 1, 8)),
        case((1, 9, 16, 32), 64, (1, 4, 1, 4), dilation=(1, 4), groups=2, order=CHANNELS),
        case((1, 4, 16, 32), 32, (4, 2, 4, 2), band=3, dilation=(4, 2), then="residual"),
        case((3, 8, 8, 32), 32, (2, 2, 2, 2), size=2, dilation=(2, 2), then="residual"),
    ]
    for cpu, some_cases in in_turn(cases):
        for each, found in zip(some_cases, errors(some_cases, cpu), strict=True):
            assert found < each.most, (cpu, each)


def test_kernels_of_other_sizes_are_right():
    """Kernels of up to 7 taps, along both axes or along one, which then is all that is
    transformed.
    """
    around = (2, 2, 2, 2)
    cases = [
        case((2, 13, 9, 35), 19, around, size=2, band=2, then="residual", taps=(5, 5)),
        case((1, 10, 11, 16), 40, around, order=CHANNELS, then="residual", taps=(5, 5)),
        case((1, 12, 9, 16), 24, (3, 3, 3, 3), size=2, taps=(7, 7)),
        case((1, 9, 12, 16), 24, (1, 2, 1, 2), band=2, taps=(3, 5), then="residual"),
        case((2, 17, 9, 32), 24, (0, 3, 0, 3), band=3, taps=(1, 7), then="residual"),
        case((2, 17, 9, 19), 24, (3, 0, 3, 0), size=2, taps=(7, 1), order=CHANNELS),
        case((1, 17, 9, 32), 40, (1, 0, 1, 0), band=2, taps=(3, 1), groups=2, then="residual"),
        case((1, 9, 17, 32), 40, (0, 1, 0, 1), order=CHANNELS, taps=(1, 3), then="residual"),
    ]
    for cpu, some_cases in in_turn(cases):
        for each, found in zip(some_cases, errors(some_cases, cpu), strict=True):
            assert found < each.most, (cpu, each)


def test_kernels_of_even_sizes_are_right():
    """Tiles have one output more along an axis with an even number of taps."""
    cases = [
        case((1, 13, 9, 35), 19, (0, 1, 1, 0), size=2, band=2, then="residual", taps=(2, 2)),
        case((2, 12, 11, 16), 40, (1, 1, 0, 0), order=CHANNELS, then="residual", taps=(2, 2)),
        case((1, 12, 9, 16), 24, (1, 2, 2, 1), then="residual", taps=(4, 4)),
        case((1, 9, 12, 16), 24, (1, 2, 1, 2), size=2, band=2, taps=(2, 3), then="residual"),
        case((2, 9, 17, 32), 24, (0, 3, 0, 2), band=3, taps=(1, 6), then="residual"),
        case((1, 1, 45, 32), 24, (0, 9, 0, 0), taps=(1, 4), dilation=(1, 3), then="residual"),
        case((1, 1, 45, 16), 24, (0, 4, 0, 3), size=2, taps=(1, 8), order=CHANNELS),
    ]
    for cpu, some_cases in in_turn(cases):
        for each, found in zip(some_cases, errors(some_cases, cpu), strict=True):
            assert found < each.most, (cpu, each)


def test_convolutions_with_strides_are_right():
    """Phases may have fewer taps than others, or none; channels need not fill vectors."""
    cases = [
        case((2, 13, 10, 19), 24, strides=(2, 2), band=2, then="residual"),
        case((1, 15, 14, 3), 19, (3, 3, 3, 3), strides=(2, 2), taps=(7, 7), then="residual"),
        case((1, 16, 17, 16), 40, (1, 1, 1, 1), strides=(2, 2), taps=(4, 4), order=CHANNELS),
        case((2, 17, 12, 32), 48, strides=(2, 1), groups=2, then="residual"),
        case((1, 21, 26, 3), 24, (2, 2, 2, 2), strides=(4, 4), taps=(11, 11), then="residual"),
        case((1, 9, 20, 8), 16, (0, 1, 0, 1), strides=(2, 2), taps=(1, 3), size=2),
        case((1, 17, 20, 16), 24, (2, 1, 2, 1), strides=(1, 2), taps=(5, 3), order=CHANNELS),
        case((2, 1, 61, 19), 24, (0, 3, 0, 2), strides=(1, 5), taps=(1, 10), band=2),
        case((1, 1, 46, 32), 40, (0, 1, 0, 1), strides=(1, 2), taps=(1, 3), groups=2),
        case((1, 20, 20, 6), 8, (1, 0, 2, 3), strides=(3, 2), taps=(5, 6), then="residual"),
    ]
    for cpu, some_cases in in_turn(cases):
        for each, found in zip(some_cases, errors(some_cases, cpu), strict=True):
            assert found < each.most, (cpu, each)


def test_convolutions_of_signals_are_right():
    """Images of one row are computed as images of one column."""
    cases = [
        case((1, 1, 50, 16), 24, (0, 1, 0, 1), band=3, taps=(1, 3), then="residual"),
        case((2, 1, 31, 19), 40, (0, 4, 0, 0), size=2, taps=(1, 5), order=CHANNELS),
        case((2, 1, 45, 32), 24, (0, 3, 0, 3), band=4, taps=(1, 7), then="residual"),
        case((1, 1, 45, 32), 24, (0, 9, 0, 9), taps=(1, 7), dilation=(1, 3), then="residual"),
        case((1, 1, 40, 16), 16, (0, 4, 0, 4), size=2, taps=(1, 9), then="residual"),
        case((1, 1, 40, 32), 16, (0, 5, 0, 5), taps=(1, 3), dilation=(1, 5), groups=2),
        case((1, 1, 40, 32), 16, (0, 3, 0, 3), taps=(1, 7), dilation=(4, 1), then="residual"),
        case((1, 1, 40, 32), 16, (1, 3, 2, 3), taps=(1, 7), dilation=(4, 1), then="residual"),
        case((3, 1, 2, 16), 16, (0, 1, 0, 1), taps=(1, 3)),
    ]
    for cpu, some_cases in in_turn(cases):
        for each, found in zip(some_cases, errors(some_cases, cpu), strict=True):
            assert found < each.most, (cpu, each)


@pytest.mark.parametrize(
    ("then", "image"),
    [
        *((then, 32) for then in ("relu", "planes", "rows and columns swapped")),
        *((then, 33) for then in ("leaky", "padding", "rows and columns swapped")),
    ],
)
def test_what_follows_a_dilated_convolution_is_right(then, image):
    """With 33 rows and columns, phases have 16 or 17 of them."""
    x, w, b = (
        np.random.default_rng(0).standard_normal(shape).astype("float32")
        for shape in ((2, 64, image, image), (64, 64, 3, 3), (1, 64, 1, 1))
    )

    def body(emit, x, w, b):
        sums = emit(relax.op.nn.conv2d(x, w, padding=2, dilation=2))
        result = emit(relax.op.add(sums, b))
        if then == "leaky":  # it reads each sum twice
            return emit(relax.op.nn.leakyrelu(result, 0.25))
        result = emit(relax.op.nn.relu(result))
        if then == "planes":
            return emit(relax.op.reshape(result, (2, 64, image * image)))
        if then == "padding":
            return emit(relax.op.nn.pad(result, (0, 0, 0, 0, 1, 2, 0, 3)))
        return emit(relax.op.permute_dims(result, (0, 1, 3, 2))) if "swapped" in then else result

    answer = compute({"x": x}, body, {"w": w, "b": b})
    assert (answer.rules, answer.notes) == (["winograd"], [])
    wanted = (
        functional.conv2d(
            torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=2, dilation=2
        )
        .add(torch.from_numpy(b))
        .numpy()
    )
    wanted = np.maximum(wanted, wanted / 4 if then == "leaky" else 0)
    if then == "planes":
        wanted = wanted.reshape(2, 64, -1)
    elif then == "padding":
        wanted = np.pad(wanted, ((0, 0), (0, 0), (1, 2), (0, 3)))
    elif "swapped" in then:
        wanted = wanted.transpose(0, 1, 3, 2)
    assert np.abs(answer.outputs[0] - wanted).max() < ERROR[6] * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("length", "dilation", "then"),
    [
        *((500, 1, then) for then in ("relu", "rows and columns swapped")),
        *((500, 3, then) for then in ("leaky", "rows and columns swapped")),
        *((501, 3, then) for then in ("sum", "padding")),
    ],
)
def test_what_follows_a_convolution_of_a_signal_is_right(then, length, dilation):
    """With a dilation of 3 and a length of 501, phases are equally long."""
    x, w, b = (
        np.random.default_rng(0).standard_normal(shape).astype("float32")
        for shape in ((2, 64, 1, length), (64, 64, 1, 7), (1, 64, 1, 1))
    )
    steps = {"padding": [0, 3 * dilation], "dilation": [1, dilation]}

    def body(emit, x, w, b):
        result = emit(relax.op.add(emit(relax.op.nn.conv2d(x, w, **steps)), b))
        if then == "leaky":
            return emit(relax.op.nn.leakyrelu(result, 0.25))
        if then == "sum":
            return emit(relax.op.add(result, x))
        result = emit(relax.op.nn.relu(result))
        if then == "padding":
            return emit(relax.op.nn.pad(result, (0, 0, 0, 0, 1, 2, 0, 3)))
        return emit(relax.op.permute_dims(result, (0, 1, 3, 2))) if "swapped" in then else result

    answer = compute({"x": x}, body, {"w": w, "b": b})
    assert (answer.rules, answer.notes) == (["winograd"], [])
    wanted = functional.conv2d(*(torch.from_numpy(one).double() for one in (x, w)), **steps)
    wanted = wanted.add(torch.from_numpy(b)).numpy()
    if then == "sum":
        wanted += x
    else:
        wanted = np.maximum(wanted, wanted / 4 if then == "leaky" else 0)
    if then == "padding":
        wanted = np.pad(wanted, ((0, 0), (0, 0), (1, 2), (0, 3)))
    elif "swapped" in then:
        wanted = wanted.transpose(0, 1, 3, 2)
    assert np.abs(answer.outputs[0] - wanted).max() < ERROR[10] * np.abs(wanted).max()


def test_a_dilated_convolution_of_an_open_batch_is_winograds():
    batch = tirx.Var("n", "int64")
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype("float32")

    def body(emit, x, w):
        return emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, w, padding=2, dilation=2))))

    low = lowered({"x": relax.TensorType((batch, 64, 32, 32), "float32")}, body, {"w": w})
    assert [
        kernel.rule for kernel in low.kernels if kernel.rule not in ("general", "transpose")
    ] == ["winograd"]
    for count in (1, 3):
        x = np.random.default_rng(count).standard_normal((count, 64, 32, 32)).astype("float32")
        wanted = functional.conv2d(
            torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=2, dilation=2
        ).relu()
        (found,) = run(low, [x])
        assert np.abs(found - wanted.numpy()).max() < ERROR[6] * float(wanted.max())


def test_a_grouped_convolution_is_winograds_if_its_channels_fill_vectors():
    x, w = (
        np.random.default_rng(0).standard_normal(shape).astype("float32")
        for shape in ((1, 128, 28, 28), (256, 64, 3, 3))
    )

    def body(emit, x, w):
        return relax.op.nn.conv2d(x, w, padding=1, groups=2)

    answer = compute({"x": x}, body, {"w": w})
    assert (answer.rules, answer.notes) == (["winograd"], [])
    wanted = functional.conv2d(
        torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=1, groups=2
    ).numpy()
    assert np.abs(answer.outputs[0] - wanted).max() < ERROR[6] * np.abs(wanted).max()
    workload = Workload(
        CONVOLUTION, (1, 28, 28, 128), (3, 3, 64, 256), padding=(1, 1, 1, 1), groups=2
    )
    core = cpu_model_of(target())
    for choice, _ in winograd_candidates(workload, core):
        assert 128 % choice.tile.block == 0, "a tile has channels of one group"
    odd = replace(workload, data=(1, 28, 28, 58), weight=(3, 3, 29, 256))
    assert winograd_candidates(odd, core) == ()


@settings(max_examples=3)
@given(data=some.data())
def test_any_shape_is_right(data):
    def draw(*values):
        return data.draw(some.sampled_from(values))

    def padding(dilation, taps):
        (down, across), (r, s) = ((one // 2 for one in taps), taps)
        ends = (draw(down, r), draw(across, s), draw(down, r - 1), draw(across, s - 1))
        return tuple(end * dilation[axis % 2] for axis, end in enumerate(ends))

    kinds = ((3, 3), (3, 3), (5, 5), (1, 3), (3, 1), (1, 7), (7, 1), (3, 5), (2, 2), (4, 3))
    plain = (1, 1)
    steps = [(plain, plain), *((dilation, plain) for dilation in ((2, 1), (1, 3), (2, 2)))]
    steps += [(plain, strides) for strides in ((2, 2), (2, 1), (3, 2))]
    drawn = [(*draw(*steps), draw(*kinds)) for _ in range(6)]
    geometries = [one for one in drawn if Phases(one[2], one[1]).taps_of_each != (1, 1)]
    cases = [
        case(
            (draw(1, 3), draw(1, 2, 4, 9), draw(1, 3, 5, 8), draw(1, 3, 4, 17, 32)),
            draw(1, 3, 8, 21, 33),
            padding(dilation, taps),
            size=draw(2, 4),
            band=draw(1, 2),
            tile=draw(Tile(1, 1, 4), Tile(3, 2, 4), Tile(4, 1, 8)),
            order=draw(PIXELS, CHANNELS),
            then=draw("nothing", "residual"),
            dilation=dilation,
            taps=taps,
            strides=strides,
        )
        for dilation, strides, taps in geometries
    ]
    for each, found in zip(cases, errors(cases, CPUS[-1]), strict=True):
        assert found < each.most, each


def test_sums_of_many_channels_keep_the_stated_error():
    cases = [case((1, 8, 8, 512), 32, size=size, tile=Tile(4, 2, 4)) for size in (2, 4)]
    small, large = errors(cases, CPUS[-1])
    assert small < ERROR[4]
    assert large < ERROR[6]


@pytest.mark.parametrize(
    "core", [cpu_model_of(target(cpu)) for cpu in CPUS] + [A53], ids=lambda core: core.name
)
def test_a_convolution_of_many_channels_and_pixels_is_winograds(core):
    assert best(
        Workload(CONVOLUTION, (1, 56, 56, 64), (3, 3, 64, 64), padding=(1, 1, 1, 1)), core
    ).startswith("winograd")


@pytest.mark.parametrize(
    "taps", [(5, 5), (7, 7), (1, 3), (3, 1), (1, 7), (7, 1), (9, 1), (3, 5), (2, 2), (4, 4), (2, 3)]
)
@pytest.mark.parametrize(
    "core", [cpu_model_of(target(cpu)) for cpu in CPUS] + [A53], ids=lambda core: core.name
)
def test_kernels_of_other_sizes_are_winograds(core, taps):
    down, across = (count // 2 for count in taps)
    padding = (down, across, down, across)
    image = Workload(CONVOLUTION, (1, 56, 56, 64), (*taps, 64, 64), padding=padding)
    assert best(image, core).startswith("winograd")


@pytest.mark.parametrize("taps", [3, 5, 7, 9])
@pytest.mark.parametrize(
    "core", [cpu_model_of(target(cpu)) for cpu in CPUS] + [A53], ids=lambda core: core.name
)
def test_signals_are_winograds(core, taps):
    padding = (0, taps // 2, 0, taps // 2)
    signal = Workload(CONVOLUTION, (1, 1, 2000, 64), (1, taps, 64, 64), padding=padding)
    assert best(signal, core).startswith("winograd")
    assert best(replace(signal, dilation=(1, 3)), core).startswith("winograd")


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("stride", [1, 2])
def test_weights_from_the_l2_cache_are_used_for_many_pixels(cpu, stride):
    """The panels of 512 channels exceed the L1 cache: each tile of a long signal reads them again.
    A tile of two pixels took 1.4 times as long.
    """
    signal = Workload("convolution", (1, 1, 1600, 512), (1, 3, 512, 512), strides=(1, stride))
    core = cpu_model_of(target(cpu))
    found = winograd_candidates(signal, core)
    fastest, _ = min(found, key=lambda one: one[1])
    cycles = 4 * fastest.tile.block / core.l2_bytes_per_cycle
    assert fastest.tile.pixels * fastest.tile.vectors / core.fmas_per_cycle >= cycles


def test_predictions_for_a_long_signal_are_few(monkeypatch):
    """Each takes time."""
    long = Workload(CONVOLUTION, (1, 1, 1 << 24, 64), (1, 3, 64, 64))
    predicted, count = cost_model._cycles, []
    monkeypatch.setattr(
        cost_model, "_cycles", lambda *given: count.append(given) or predicted(*given)
    )
    candidates = winograd_candidates(long, cpu_model_of(target("x86-64-v4")))
    assert 10 < len(candidates) < len(count) < 10_000


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 30, 97, 1000])
def test_bands_are_all_that_differ_in_their_number(rows):
    image = Workload(CONVOLUTION, (1, 2 * rows, 2, 64), (3, 3, 64, 64), padding=(1, 1, 1, 1))
    found = cost_model._bands(image, 2, cpu_model_of(target("x86-64-v4")))
    every = sorted({-(-rows // count) for count in range(1, rows + 1)})
    assert found == every or (len(every) > 32 and set(found) < set(every) and found[0] == 1)


def test_a_dilation_along_an_axis_of_one_tap_changes_nothing():
    core = cpu_model_of(target())
    padding = (0, 3, 0, 3)
    signal = Workload(CONVOLUTION, (1, 1, 500, 64), (1, 7, 64, 64), padding=padding)
    dilated = replace(signal, dilation=(16, 1))
    assert winograd_candidates(dilated, core) == winograd_candidates(signal, core)


def test_bands_of_few_channels_are_winograds_too():
    """A row of tiles of such an image takes less than 16 register tiles of AVX-512."""
    squeezed = Workload(CONVOLUTION, (1, 27, 27, 32), (3, 3, 32, 128), padding=(1, 1, 1, 1))
    assert best(squeezed, cpu_model_of(target("x86-64-v4"))).startswith("winograd")


def test_sums_stay_in_registers_beside_small_buffers():
    """TVM lets buffers of the scope "global" share memory with those up to 16 times their size."""
    avx512 = target("x86-64-v4")
    tile = Tile(7, 3, 16)
    function, report = schedule.create_kernel_scheduler(ConfigSelector(cpu_model_of(avx512)))(
        "one", kernel(case((1, 28, 28, 36), 36, tile=tile), cpu_model_of(avx512))
    )
    assert report.note == ""
    library = tvm.compile(
        tvm.IRModule({"one": function.with_attr("global_symbol", "one")}),
        target=avx512,
        tir_pipeline=register_cpu_pipeline(),
    )
    found = inner_loops.functions(inner_loops.assembly(library.mod))
    products = [
        loop.lines
        for loop in inner_loops.inner_loops("one", found, are_sums=True, least=0)
        if loop.multiply_adds == 4 * tile.pixels * tile.vectors  # vectors of 16 bytes
    ]
    assert products
    for line in (line for lines in products for line in lines):
        assert not re.search(r"vmov\S+\s+%zmm\d+, .*\(", line), "a sum in memory"


@pytest.mark.parametrize(
    "workload",
    [
        Workload(
            CONVOLUTION, (1, 224, 224, 3), (3, 3, 3, 64), padding=(1, 1, 1, 1)
        ),  # transforms cost more than they save
        Workload(
            CONVOLUTION, (1, 7, 7, 512), (3, 3, 512, 512), padding=(1, 1, 1, 1)
        ),  # weights cost more than they save
        Workload(CONVOLUTION, (1, 4, 4, 8), (3, 3, 8, 8), padding=(1, 1, 1, 1)),
    ],
    ids=lambda workload: workload.key,
)
def test_a_convolution_with_nothing_to_gain_is_direct(workload):
    avx512 = tvm.target.Target(
        {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
    )  # whatever this machine has
    assert best(workload, cpu_model_of(avx512)) == "direct"


@pytest.mark.parametrize(
    "other",
    [
        {"strides": (3, 3)},
        {"strides": (2, 2), "dilation": (2, 2)},
        *({"weight": (*taps, 64, 64)} for taps in ((1, 1), (1, 10), (9, 9), (11, 1))),
    ],
    ids=str,
)
def test_other_convolutions_have_no_candidates(other):
    """A phase of 3 x 3 taps with strides of 3 has one tap."""
    plain = {"data": (1, 56, 56, 64), "weight": (3, 3, 64, 64), "padding": (1, 1, 1, 1)}
    assert winograd_candidates(Workload(CONVOLUTION, **plain), A53)
    assert winograd_candidates(Workload(CONVOLUTION, **{**plain, **other}), A53) == ()


def test_bias_and_activation_are_computed_with_the_tiles():
    x, w = (
        np.random.default_rng(0).standard_normal((2, 64, 32, 32)).astype("float32"),
        np.ones((64, 64, 3, 3), "float32"),
    )

    def body(emit, x, w, b):
        return emit(
            relax.op.nn.relu(emit(relax.op.add(emit(relax.op.nn.conv2d(x, w, padding=1)), b)))
        )

    answer = compute({"x": x}, body, {"w": w, "b": np.ones((1, 64, 1, 1), "float32")})
    assert (answer.rules, answer.notes) == (["winograd"], [])
    wanted = (
        (
            functional.conv2d(
                torch.from_numpy(x).double(), torch.ones(64, 64, 3, 3).double(), padding=1
            )
            + 1
        )
        .relu()
        .numpy()
    )
    assert np.abs(answer.outputs[0] - wanted).max() < ERROR[6] * np.abs(wanted).max()


def best(workload: Workload, core: CpuModel) -> str:
    return (
        ConfigSelector(core)
        .best(workload, [*gemm_candidates(workload, core), *winograd_candidates(workload, core)])
        .method
    )


def computed(function: tvm.tirx.PrimFunc, name: str) -> int:
    """How often a scheduled kernel computes an element of a block."""
    work, found = tvm.s_tir.Schedule(tvm.IRModule({"main": function})), 0
    for loop in work.get_loops(work.get_sblock(name)):
        found = (found or 1) * int(work.get(loop).extent)
    return found


@pytest.mark.parametrize("order", [PIXELS, CHANNELS])
def test_a_band_has_its_own_input_and_blocks_of_channels_share_the_whole_one(order):
    one = case((1, 24, 20, 32), 64, band=2, order=order)
    function, report = schedule.create_kernel_scheduler(ConfigSelector(A53))(
        "one", kernel(one, A53)
    )
    assert report.note == ""
    work = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    outputs, inputs = (
        work.get(work.get_loops(work.get_sblock(name))[0])
        for name in (winograd_compute.TILES_OUT, winograd_compute.TILES_IN)
    )
    assert outputs.same_as(inputs) == (order == PIXELS)


@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a72", "x86-64-v3"])
@pytest.mark.parametrize("order", [PIXELS, CHANNELS])
@pytest.mark.parametrize("band", [1, 3, 6])
def test_no_tile_is_transformed_again_for_another(band, order, cpu):
    """Half of a tile's rows are apart on ARM, so that what is shared down a column is computed for
    each half, and no more than that.
    """
    machine = (
        target(cpu)
        if cpu.startswith("x86")
        else tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": cpu})
    )
    core = cpu_model_of(machine)
    one = case((1, 24, 20, 32), 32, band=band, tile=Tile(3, 2, core.lanes), order=order)
    function, report = schedule.create_kernel_scheduler(ConfigSelector(core))(
        "one", kernel(one, core)
    )
    assert report.note == ""
    tiles, side = 6 * 5, one.size + 2
    halves = 1 if cpu.startswith("x86") else 2
    assert computed(function, winograd_compute.ROWS_OUT) <= halves * tiles * one.size * side * 32
    assert computed(function, winograd_compute.TILES_OUT) == 24 * 20 * 32
    assert computed(function, winograd_compute.TILES_IN) == tiles * side * side * 32
    assert computed(function, winograd_compute.ROWS_IN) == 6 * side * (20 + 2) * 32
