"""Convolutions of all kinds against torch in double precision, and which rule each of them gets."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from convolution_cases import AFTER, Convolution, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from relax_models import CPUS, compute, const, lowered, run, target
from torch.nn import functional
from tvm import relax

from farm.compiler.codegen.executable import compile_executable
from farm.compiler.codegen.stack_tiles import TILE_BYTES
from farm.compiler.cpu import legalize, schedule
from farm.compiler.cpu.conv_dense_compute import CONVOLUTION
from farm.compiler.cpu.cost_model import gemm_candidates
from farm.compiler.cpu.kernel_config import ConfigSelector, Workload
from farm.compiler.cpu.register_tiles import gemm_tiles_with_cycles
from farm.compiler.ir.blocks import blocks_in_loops
from farm.compiler.target.cpu_model import cpu_model_of

sys.path.append(str(Path(__file__).parents[3] / "tools"))

import inner_loops

DEPTHWISE = Convolution(channels=16, outputs=16, groups=16)


@pytest.mark.parametrize(
    ("case", "left"),
    [
        (Convolution(size=(12, 12), dilation=(12, 12), padding=(12, 12, 12, 12)), (1, 1)),
        (
            Convolution(size=(12, 40), dilation=(24, 24), padding=(24, 24, 24, 24), then="relu"),
            (1, 3),
        ),
        (
            Convolution(
                size=(5, 5), kernel=(5, 5), dilation=(3, 3), padding=(6, 6, 6, 6), strides=(2, 2)
            ),
            (3, 3),
        ),
        (
            Convolution(
                size=(5, 6), kernel=(4, 3), dilation=(6, 2), padding=(18, 2, 0, 2), batch=2
            ),
            (1, 3),
        ),  # causal: the last sees the image
        (
            replace(
                DEPTHWISE,
                channels=32,
                outputs=32,
                groups=32,
                size=(7, 7),
                dilation=(7, 7),
                padding=(7, 7, 7, 7),
            ),
            (1, 1),
        ),
        (Convolution(size=(6, 7), padding=(1, 1, 1, 1)), (3, 3)),
        (
            Convolution(size=(4, 4), padding=(9, 0, 9, 0), kernel=(3, 3)),
            (3, 3),
        ),  # some results see nothing but padding, each tap a pixel
    ],
    ids=str,
)
def test_taps_that_see_nothing_but_padding_are_left_out(case, left):
    answer = check(case, "native")
    weights = case.outputs * case.channels // case.groups
    assert max(value.size for value in answer.lowered.parameters) == weights * left[0] * left[1]


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("case", "by_tile"),
    [
        (
            Convolution(
                channels=64, outputs=64, size=(80, 80), groups=4, strides=(2, 2), padding=(1,) * 4
            ),
            True,
        ),
        (
            Convolution(
                channels=32,
                outputs=40,
                size=(97, 103),
                strides=(2, 1),
                dilation=(1, 2),
                padding=(0, 1, 2, 3),
                then="residual",
            ),
            True,
        ),
        (
            Convolution(
                batch=2,
                channels=24,
                size=(120, 90),
                kernel=(10, 2),
                strides=(1, 2),
                padding=(4, 1, 0, 1),
                then="both",
            ),
            True,
        ),
        (Convolution(channels=16, size=(20, 20), strides=(2, 2), padding=(1,) * 4), False),
    ],
    ids=str,
)
def test_an_image_that_the_cache_does_not_hold_is_padded_tile_by_tile(case, by_tile, cpu):
    """The copy of a whole one would be written to memory and read again."""
    [kernel] = (
        function
        for variable, function in check(case, cpu).lowered.module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc) and "convolution" in variable.name_hint
    )
    outermost = {str(one.block.name_hint): one.loops[0] for one in blocks_in_loops(kernel)}
    assert outermost["padding"].same_as(outermost["convolution_update"]) == by_tile


def test_taps_of_weights_that_are_computed_are_left_out_too():
    x, w = (
        np.random.default_rng(8).standard_normal(shape).astype("float16")
        for shape in ((1, 8, 5, 5), (16, 8, 3, 3))
    )

    def body(emit, x, w):
        return emit(
            relax.op.nn.conv2d(x, emit(relax.op.astype(w, "float32")), padding=9, dilation=9)
        )

    answer = compute({"x": x.astype("float32")}, body, {"w": w})
    exact = functional.conv2d(
        torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=9, dilation=9
    )
    np.testing.assert_allclose(answer.outputs[0], exact.numpy(), atol=1e-4)
    assert max(value.size for value in answer.lowered.parameters) == 16 * 8


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "case",
    [
        Convolution(),
        Convolution(then="relu"),
        Convolution(then="relu6", padding=(1, 1, 1, 1)),
        Convolution(then="residual", padding=(1, 1, 1, 1)),
        Convolution(then="silu"),
        Convolution(channels=3, outputs=24, then="bias"),
        Convolution(channels=5, outputs=48, size=(1, 1), kernel=(1, 1), then="relu"),
        Convolution(kernel=(1, 1), strides=(3, 2)),
        Convolution(padding=(0, 1, 2, 3), strides=(2, 1)),
        Convolution(dilation=(2, 1), padding=(2, 0, 2, 0), size=(9, 9)),
        Convolution(batch=3, then="relu"),
        Convolution(
            channels=256, outputs=128, size=(4, 4), strides=(2, 1), padding=(1, 1, 1, 1)
        ),  # weights beyond the L2 cache
        Convolution(outputs=7, then="relu"),
        Convolution(outputs=1, padding=(1, 1, 1, 1), then="bias"),
        Convolution(
            channels=256, outputs=1024, size=(4, 14), kernel=(1, 1), then="residual"
        ),  # large tiles, several blocks together
        Convolution(
            outputs=58, size=(13, 13), then="residual"
        ),  # neither the channels nor the pixels fill tiles
        Convolution(channels=1, outputs=1),
        Convolution(channels=8, outputs=32, groups=2, then="relu"),
        Convolution(channels=8, outputs=32, groups=8, then="relu"),  # depthwise with a multiplier
        Convolution(channels=8, outputs=16, groups=4, padding=(1, 0, 0, 1)),
    ],
    ids=str,
)
def test_a_convolution_gets_the_convolution_rule(case, cpu):
    answer = check(case, cpu)
    assert (answer.rules, answer.notes) == (["convolution"], [])


NARROW = Convolution(channels=16, outputs=48, size=(40, 1), kernel=(5, 1), padding=(2, 0, 2, 0))


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "case",
    [
        NARROW,
        replace(NARROW, then="relu", outputs=58, size=(41, 1)),
        replace(NARROW, then="residual", batch=2, strides=(2, 1), padding=(0, 0, 3, 0)),
        replace(
            NARROW, then="silu", size=(37, 2), kernel=(3, 2), padding=(1, 1, 1, 0), dilation=(2, 1)
        ),
        replace(
            NARROW,
            then="bias",
            channels=3,
            outputs=27,
            size=(50, 2),
            kernel=(3, 3),
            padding=(1, 1, 1, 1),
        ),
        replace(NARROW, then="two results", channels=32, outputs=68, groups=2),
        replace(NARROW, then="relu", size=(29, 2), kernel=(1, 1), padding=(0, 0, 0, 0)),
        replace(NARROW, then="both", size=(6, 9), kernel=(3, 3), padding=(1, 0, 2, 1)),
        replace(
            NARROW,
            channels=20,
            outputs=136,
            groups=4,
            size=(8, 7),
            kernel=(1, 1),
            padding=(0, 0, 0, 0),
            then="relu",
        ),
    ],
    ids=str,
)
def test_a_convolution_of_turned_images_is_right(case, cpu, monkeypatch):
    monkeypatch.setattr(legalize, "is_faster_with_tiles_along_height", lambda *_: True)
    answer = check(case, cpu)
    rule = "grouped_convolution" if case.groups > 1 else "convolution"
    assert (answer.rules, answer.notes) == ([rule], [])
    assert is_turned(answer, case)


@pytest.mark.parametrize("cpu", CPUS)
def test_tiles_run_along_the_height_of_narrow_images_only(cpu):
    narrow = replace(NARROW, kernel=(11, 1), padding=(5, 0, 5, 0))  # Winograd has at most 9 taps
    assert is_turned(check(narrow, cpu), narrow)
    wide = replace(narrow, size=(40, 16))
    assert not is_turned(check(wide, cpu), wide)


def is_turned(answer, case):
    (workload,) = (
        kernel.workload for kernel in answer.lowered.kernels if "convolution" in kernel.rule
    )
    return workload.startswith(
        f"convolution {case.batch}x{case.size[1]}x{case.size[0]}x{case.channels} "
    )


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "case",
    [
        DEPTHWISE,
        replace(DEPTHWISE, then="relu6", padding=(1, 1, 1, 1)),
        replace(DEPTHWISE, then="silu", strides=(2, 2), padding=(1, 1, 1, 1)),
        replace(DEPTHWISE, then="residual", padding=(0, 2, 1, 0)),
        replace(DEPTHWISE, batch=3, dilation=(1, 2), then="bias"),
        replace(DEPTHWISE, channels=17, outputs=17, groups=17, padding=(1, 1, 1, 1)),
        replace(DEPTHWISE, channels=58, outputs=58, groups=58, size=(13, 13), then="relu"),
        replace(DEPTHWISE, size=(3, 3)),
        replace(
            DEPTHWISE, size=(9, 9), kernel=(8, 8), padding=(4, 4, 4, 4)
        ),  # too many taps to unroll but for those of a row
        replace(
            DEPTHWISE,
            channels=33,
            outputs=33,
            groups=33,
            size=(20, 19),
            kernel=(11, 9),
            strides=(2, 1),
            padding=(5, 4, 5, 4),
            then="silu",
        ),
        replace(DEPTHWISE, size=(3, 45), kernel=(2, 40), padding=(1, 3, 0, 3)),  # nor those
        replace(DEPTHWISE, size=(1, 1), padding=(1, 1, 1, 1)),
    ],
    ids=str,
)
def test_a_depthwise_convolution_gets_the_depthwise_rule(case, cpu):
    answer = check(case, cpu)
    assert (answer.rules, answer.notes) == (["depthwise"], [])


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "case",
    [
        Convolution(channels=8, outputs=24, groups=8, then="relu"),
        Convolution(channels=8, outputs=12, groups=2, padding=(1, 0, 0, 1)),
        Convolution(
            channels=136, outputs=136, groups=4, size=(7, 6), kernel=(1, 1), then="residual"
        ),  # ShuffleNet's
        Convolution(
            channels=51,
            outputs=66,
            groups=3,
            size=(9, 5),
            strides=(2, 1),
            dilation=(1, 2),
            then="silu",
            batch=2,
        ),
        Convolution(channels=6, outputs=6, groups=3, padding=(1, 1, 1, 1), then="bias"),
        Convolution(channels=10, outputs=10, groups=2, then="two results"),
    ],
    ids=str,
)
def test_a_convolution_whose_groups_fill_no_tiles_is_computed_by_groups(case, cpu):
    answer = check(case, cpu)
    assert answer.rules in (["convolution"], ["grouped_convolution"])
    assert answer.notes == []


@pytest.mark.parametrize("cpu", CPUS)
def test_the_results_of_a_padded_group_are_stored_in_vectors(cpu):
    """68 channels are four vectors of 16 and one of 4, or eight of 8 and one of 4."""
    case = Convolution(channels=272, outputs=272, groups=4, size=(14, 14), kernel=(1, 1))
    [kernel] = (
        function
        for variable, function in check(case, cpu).lowered.module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc) and "convolution" in variable.name_hint
    )
    nests = list(blocks_in_loops(kernel))
    assert all(nest.loops[-1].kind == tvm.tirx.ForKind.VECTORIZED for nest in nests)
    # along the channels of a group, which are contiguous, and not along the groups
    assert int(nests[-1].block.iter_vars[-1].dom.extent) == 68


@pytest.mark.parametrize("cpu", CPUS)
def test_a_convolution_with_one_channel_a_group_is_right_by_the_general_rule(cpu):
    answer = check(Convolution(channels=16, outputs=8, groups=8, then="relu"), cpu)
    assert (answer.rules, answer.notes) == ([], [])


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=some.data())
def test_any_convolution_is_right(data):
    def pair(low, high):
        return some.tuples(some.integers(low, high), some.integers(low, high))

    kind = data.draw(some.sampled_from(["full", "full", "depthwise", "multiplied", "grouped"]))
    channels = data.draw(some.sampled_from([1, 2, 3, 5, 8, 16, 17]))
    outputs, groups = {
        "full": (data.draw(some.sampled_from([1, 3, 4, 8, 16, 24, 33, 64])), 1),
        "depthwise": (channels, channels),
        "multiplied": (2 * channels, channels),
        "grouped": (6, 2),
    }[kind]
    channels = 2 * channels if kind == "grouped" else channels
    case = Convolution(
        batch=data.draw(some.sampled_from([1, 3])),
        channels=channels,
        size=data.draw(pair(1, 9)),
        outputs=outputs,
        kernel=data.draw(pair(1, 4)),
        strides=data.draw(pair(1, 4)),
        padding=data.draw(some.tuples(*[some.integers(0, 3)] * 4)),
        dilation=data.draw(pair(1, 2)),
        groups=groups,
        then=data.draw(some.sampled_from(sorted(AFTER))),
    )
    if min(case.result) > 0:
        answer = check(case, data.draw(some.sampled_from(CPUS)))
        assert answer.notes == []


def test_two_results_of_one_convolution_are_right_whatever_is_fused():
    assert "none" not in check(Convolution(then="two results"), CPUS[0]).rules
    assert "none" not in check(Convolution(then="both"), CPUS[0]).rules


def test_a_rule_that_fails_leaves_the_kernel_to_the_general_one_with_the_reason(monkeypatch):
    def fails(work, core):
        work.get_sblock("no such block")

    monkeypatch.setitem(schedule._RULES, "convolution", fails)
    answer = check(Convolution(then="relu"), CPUS[0])
    (note,) = answer.notes
    assert answer.rules == []
    assert note.startswith("convolution: ")
    assert "no such block" in note


def test_a_kernel_that_no_rule_takes_stays_as_it_is_and_right(monkeypatch):
    def fails(work, core):
        raise ValueError

    for rule in schedule._RULES:
        monkeypatch.setitem(schedule._RULES, rule, fails)
    answer = check(Convolution(then="relu"), CPUS[0])
    assert "none" in answer.rules
    assert "general: ValueError" in answer.notes


@pytest.mark.parametrize("cpu", CPUS)
def test_sums_of_a_tile_stay_in_registers(cpu):
    core = cpu_model_of(target(cpu))
    for width in (1, 7, 14, 56, 113):
        for channels in (1, 10, 16, 24, 58, 1280):
            for tile, cycles in gemm_tiles_with_cycles(core, width, channels, 64):
                assert cycles > 0
                assert tile.pixels <= width
                assert tile.pixels * tile.vectors <= max(core.accumulators, tile.vectors)
                assert tile.pixels * tile.block * 4 <= TILE_BYTES


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if cpu in ("x86-64-v3", "x86-64-v4")])
def test_the_largest_tiles_are_in_registers(cpu):
    """LLVM has to keep in memory what TVM allocates there."""
    x, w = np.zeros((1, 256, 14, 28), "float32"), np.ones((64, 256, 1, 1), "float32")
    low = lowered({"x": x}, lambda emit, x, w: emit(relax.op.nn.conv2d(x, w)), {"w": w}, cpu)
    assembly = inner_loops.assembly(compile_executable(low.module, target(cpu)).mod)
    assert "AllocWorkspace" not in assembly, "a tile is on the heap"
    innermost = re.findall(r"\n(\.LBB\S+):((?:\n(?!\.LBB).*)*?\n\s+j\w+\s+\1)\n", assembly)
    sums = max((text for _, text in innermost), key=lambda text: text.count("vfmadd"))
    assert sums.count("vfmadd") > cpu_model_of(target(cpu)).registers * 5 // 8
    assert not re.search(r"[yz]mm\d+.*%rsp|%rsp.*[yz]mm\d+", sums)
    assert not re.search(r"vmov\w+\s+%[yz]mm\d+, \S*\(", sums), "a register is stored"


@pytest.mark.parametrize(
    ("channels", "stride", "shared"),
    [
        *[(1024, 1, True), (2048, 1, True), (512, 2, True)],
        *[(512, 1, False), (1536, 1, False), (1025, 1, False)],
    ],
)
def test_the_inputs_of_a_tile_do_not_evict_each_other(channels, stride, shared):
    """Inputs 4 KiB apart share a set of the L1 cache, which has 8 lines; one is for the weights."""
    size = 28 * stride
    workload = Workload(
        CONVOLUTION,
        (1, size, size, channels),
        (1, 1, channels, 256),
        strides=(stride, stride),
    )
    core = cpu_model_of(target("x86-64-v4"))
    config = ConfigSelector(core).best(workload, gemm_candidates(workload, core))
    assert (config.tile.pixels <= 7) == shared


def test_what_is_added_to_a_tile_is_fetched_ahead():
    if CPUS[-1] == "native":
        pytest.skip("for x86 only")
    x, r, w = (
        np.zeros((1, 32, 14, 14), "float32"),
        np.zeros((1, 64, 14, 14), "float32"),
        np.ones((64, 32, 1, 1), "float32"),
    )
    bias = np.ones((1, 64, 1, 1), "float32")

    def fetches(other):
        def body(emit, x, r, w):
            y = emit(relax.op.add(emit(relax.op.nn.conv2d(x, w)), const(bias)))
            return emit(relax.op.nn.relu(emit(relax.op.add(y, r)) if other else y))

        return len(
            re.findall(
                "llvm.prefetch", lowered({"x": x, "r": r}, body, {"w": w}, CPUS[-1]).module.script()
            )
        )

    assert (fetches(other=True), fetches(other=False)) == (1, 0)


@pytest.mark.parametrize(("rows", "prefetched"), [(3, False), (9, True), (17, True), (196, True)])
def test_weights_are_prefetched_where_the_products_of_a_tile_hide_it(rows, prefetched):
    numbers = np.random.default_rng(17)
    x, w = numbers.standard_normal((rows, 96)), numbers.standard_normal((96, 512))
    x, w = x.astype("float32"), w.astype("float32")
    low = lowered({"x": x}, lambda emit, x, w: emit(relax.op.matmul(x, w)), {"w": w}, CPUS[-1])
    assert ("llvm.prefetch" in low.module.script()) == prefetched
    np.testing.assert_allclose(run(low, [x], CPUS[-1])[0], x @ w, rtol=1e-4, atol=1e-4)
