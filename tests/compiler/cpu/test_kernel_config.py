"""What is chosen for a kernel: the cheapest prediction, or a record where a rule can build it, for
its core only.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade_records import record
from relax_models import CPUS, lowered, module, run, target
from small_network import network, weights
from target_profiles import ARM64, X86
from torch.nn import functional
from tvm import relax

from farm.compiler import relax_pipeline
from farm.compiler.build import find_or_build_model
from farm.compiler.cpu import cost_model
from farm.compiler.cpu.kernel_config import (
    CHANNELS,
    DIRECT,
    PIXELS,
    ConfigSelector,
    KernelConfig,
    Workload,
    decode_recorded_configs,
)
from farm.compiler.cpu.register_tiles import Tile
from farm.compiler.ir.relax_rewriter import op_name
from farm.compiler.lower import lower_module, resolve_target
from farm.compiler.target.cpu_model import cpu_model_of
from farm.compiler.tuning import tasks
from farm.compiler.tuning.batch_build import build_variant_batch, cpu_model_key_and_tuning_tasks
from farm.store import TuningRecordStore

WORKLOAD = Workload("convolution", (1, 56, 56, 64), (3, 3, 64, 128), (1, 1), (1, 1, 1, 1))
CHEAP, DEAR = KernelConfig(DIRECT, Tile(7, 2, 16)), KernelConfig(DIRECT, Tile(1, 1, 16))


@pytest.fixture
def records(tmp_path):
    return TuningRecordStore(tmp_path / "records.sqlite")


@pytest.fixture
def prepared(kept):
    return kept({"x": np.zeros((1, 3, 9, 9), "float32")}, network, weights())


def test_a_key_says_all_that_a_choice_may_depend_on():
    assert WORKLOAD.key == "convolution 1x56x56x64 3x3x64x128 s1,1 p1,1,1,1 d1,1 g1"
    others = [
        replace(WORKLOAD, strides=(2, 1)),
        replace(WORKLOAD, groups=2),
        replace(WORKLOAD, padding=(1, 1, 1, 0)),
    ]
    assert len({WORKLOAD.key, *(other.key for other in others)}) == 4


def test_the_cheapest_candidate_is_chosen_unless_a_record_names_another_that_there_is():
    candidates = [(DEAR, 20.0), (CHEAP, 10.0)]
    unknown = KernelConfig("magic", Tile(1, 1, 1))
    for recorded, chosen, used in [
        ({}, CHEAP, False),
        ({WORKLOAD.key: DEAR}, DEAR, True),
        ({WORKLOAD.key: unknown}, CHEAP, False),
    ]:
        selector = ConfigSelector(cpu_model_of(resolve_target(X86)), recorded)
        assert selector.best(WORKLOAD, candidates) == chosen
        assert selector.decisions[WORKLOAD.key].recorded is used


@pytest.mark.parametrize("profile", [X86, ARM64], ids=["x86", "arm64"])
@pytest.mark.parametrize(
    ("rows", "depth", "width", "order"),
    [(4096, 64, 64, PIXELS), (64, 1024, 1024, CHANNELS)],
    ids=["weights-stay-in-cache", "weights-do-not"],
)
def test_what_does_not_stay_in_the_cache_is_read_once(profile, rows, depth, width, order):
    cpu = cpu_model_of(resolve_target(profile))
    workload = Workload("dense", (rows, depth), (depth, width))
    config = ConfigSelector(cpu, {}).best(workload, cost_model.gemm_candidates(workload, cpu))
    assert config.order == order


def test_a_choice_survives_json_and_what_another_farm_wrote_is_left_out():
    assert decode_recorded_configs(
        {"a": CHEAP.to_json(), "b": {"method": "direct"}, "c": {"tile": 3}}
    ) == {"a": CHEAP}


def test_a_record_changes_the_code_and_only_for_its_core(context, prepared, cache, records):
    first = find_or_build_model(context, prepared, X86, cache, records)
    [convolution] = [
        task
        for task in cpu_model_key_and_tuning_tasks(prepared, X86, records)[1]
        if task.workload.startswith("convolution")
    ]
    other = next(
        one
        for one in convolution.candidates
        if one != convolution.default and one.choice["tile"] != convolution.default.choice["tile"]
    )
    records.keep(
        record(X86, "convolution 1x1x1x1 1x1x1x1 s1,1 p0,0,0,0 d1,1 g1", other.choice)
    )  # of another model
    records.keep(record(ARM64, convolution.workload, other.choice))
    assert find_or_build_model(context, prepared, X86, cache, records).digest == first.digest
    records.keep(record(X86, convolution.workload, other.choice))
    [chosen] = [
        (task.chosen, task.default)
        for task in cpu_model_key_and_tuning_tasks(prepared, X86, records)[1]
        if task.workload == convolution.workload
    ]
    assert chosen == (other, convolution.default) and other != convolution.default
    second = find_or_build_model(context, prepared, X86, cache, records)
    assert second.digest != first.digest and second.library_digest != first.library_digest
    [kernel] = [kernel for kernel in second.kernels if kernel.workload == convolution.workload]
    assert (kernel.recorded, kernel.choice) == (True, other.words)
    assert find_or_build_model(context, prepared, X86, cache, records).cached
    assert find_or_build_model(context, prepared, X86, cache).digest == first.digest


def test_a_record_of_a_method_that_this_farm_does_not_know_is_of_no_effect_but_on_the_digest(
    context, prepared, cache, records
):
    first = find_or_build_model(context, prepared, X86, cache, records)
    key = next(kernel.workload for kernel in first.kernels if kernel.workload)
    records.keep(record(X86, key, {"method": "magic", "tile": [1, 1, 1], "order": PIXELS}))
    second = find_or_build_model(context, prepared, X86, cache, records)
    assert second.library_digest == first.library_digest
    assert find_or_build_model(context, prepared, X86, cache, records).digest == second.digest


def test_a_task_is_an_operator_with_what_is_fused_to_it_and_the_number_of_its_calls():
    def body(emit, x, v, w):
        made = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, v, padding=1))))
        made = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(made, v, padding=1))))
        read_twice = emit(relax.op.nn.conv2d(made, w))
        return [emit(relax.op.nn.relu(read_twice)), emit(relax.op.exp(read_twice))]

    inputs = {"x": np.zeros((1, 8, 9, 9), "float32")}
    values = {"v": np.ones((8, 8, 3, 3), "float32"), "w": np.ones((24, 8, 1, 1), "float32")}
    machine = resolve_target(X86)
    with machine:
        bound = relax_pipeline.bind_weights(module(inputs, body, values), list(values.values()))
        simple = relax_pipeline.run_passes_before_legalization(bound)
        found = tasks.operator_tasks(simple, cpu_model_of(machine), False)
    operators = [
        [name for one in block.bindings if (name := op_name(one.value))]
        for task in found.values()
        for block in task.module["main"].body.blocks
    ]
    assert [task.calls for task in found.values()] == [2, 1]
    assert operators == [["relax.nn.conv2d", "relax.nn.relu"], ["relax.nn.conv2d"]]


def test_a_batch_has_a_variant_of_each_candidate_and_its_arguments(
    context, prepared, records, tmp_path
):
    _, found = cpu_model_key_and_tuning_tasks(prepared, X86, records)
    found = [task for task in found if not task.open]
    assert {task.workload.split()[0] for task in found} == {"convolution", "dense"}
    wanted = [(task.workload, candidate) for task in found for candidate in task.candidates[:2]]
    batch = build_variant_batch(context, prepared, X86, wanted, tmp_path / "batch")
    assert [variant.workload for variant in batch.variants] == [key for key, _ in wanted]
    assert batch.library.exists() and batch.failed == ()
    with np.load(batch.arrays) as arrays:
        assert all(name in arrays.files for variant in batch.variants for name in variant.arguments)


def dense(emit, x, w):
    return emit(relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", padding=1))


def depthwise(emit, x, w):
    channels = int(x.ty.shape[3])
    return emit(
        relax.op.nn.conv2d(
            x, w, groups=channels, data_layout="NHWC", kernel_layout="HWIO", padding=1
        )
    )


def pairwise(configs):
    """The configurations without one of two that differ in their order only, by turns."""
    found = {}
    for config in configs:
        found.setdefault(config.tile, []).append(config)
    return [alike[(tile.pixels + tile.vectors) % len(alike)] for tile, alike in found.items()]


@pytest.mark.parametrize(
    ("body", "channels", "shape"), [(dense, 5, (3, 3, 5, 24)), (depthwise, 17, (3, 3, 1, 17))]
)
def test_a_convolution_by_any_candidate_is_right(body, channels, shape):
    cpu = CPUS[-1]
    numbers = np.random.default_rng(3)
    x = numbers.standard_normal((1, 9, 11, channels)).astype("float32")
    w = numbers.standard_normal(shape).astype("float32")
    image, kernel = torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(w).permute(3, 2, 0, 1)
    groups = channels if body is depthwise else 1
    exact = functional.conv2d(image, kernel, padding=1, groups=groups).permute(0, 2, 3, 1).numpy()
    [(key, decision)] = lowered({"x": x}, body, {"w": w}, cpu).decisions.items()
    assert decision.config == min(decision.candidates, key=lambda one: one[1])[0]
    assert len(decision.candidates) > 1
    for config in pairwise([config for config, _ in decision.candidates]):
        low = lower_module(module({"x": x}, body, {"w": w}), [w], target(cpu), {}, {key: config})
        [kernel] = [kernel for kernel in low.kernels if kernel.workload]
        assert (kernel.choice, kernel.recorded, kernel.note) == (str(config), True, "")
        np.testing.assert_allclose(run(low, [x], cpu)[0], exact, atol=1e-4, rtol=1e-4)


def test_a_record_for_weights_of_float16_is_none_for_those_of_float32_where_a_kernel_may_read_them():  # noqa: E501
    def body(emit, x, w):
        return emit(relax.op.matmul(x, emit(relax.op.astype(w, "float32"))))

    row = {"x": np.ones((1, 256), "float32")}
    half = np.random.default_rng(5).standard_normal((256, 256)).astype("float16")
    keys = {
        dtype: lowered(row, body, {"w": half.astype(dtype)}, "x86-64-v3").record_keys
        for dtype in ("float16", "float32")
    }
    assert keys["float16"] == [f"{keys['float32'][0]} f16"]
    for cpu, small in (
        ("x86-64", half),
        ("x86-64-v3", half[:, :8]),
    ):  # a core without the instruction; what stays in the nearest cache
        assert (
            lowered(row, body, {"w": small}, cpu).record_keys
            == lowered(row, body, {"w": small.astype("float32")}, cpu).record_keys
        )


def test_a_search_measures_kernels_that_read_float16_as_the_build_will_have_them(
    context, kept, records, tmp_path
):
    def body(emit, x, w):
        return emit(relax.op.matmul(x, emit(relax.op.astype(w, "float32"))))

    half = np.random.default_rng(5).standard_normal((512, 512)).astype("float16")
    prepared = kept({"x": np.ones((1, 512), "float32")}, body, {"w": half})
    [task] = cpu_model_key_and_tuning_tasks(prepared, X86, records)[1]
    assert task.workload.endswith(" f16")
    batch = build_variant_batch(
        context, prepared, X86, [(task.workload, task.default)], tmp_path / "batch"
    )
    with np.load(batch.arrays) as arrays:
        assert {arrays[name].dtype.name for name in batch.variants[0].arguments} == {
            "float32",
            "float16",
        }
