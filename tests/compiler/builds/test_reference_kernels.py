"""A build taken apart into its steps, as plain loops for this machine: for other architectures, and
for a batch that is left open.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from handmade_records import record
from onnx_models import graph, node, save
from qdq_models import Network, residual_network
from relax_models import HOST
from target_profiles import ARM
from tvm import relax

from farm import importers
from farm.checked_model_import import prepare_model
from farm.compiler import host_run
from farm.compiler.build import find_or_build_model
from farm.compiler.diagnostics.reference_kernels import build_reference_kernels
from farm.compiler.parameter_files import INDEX
from farm.compiler.tuning.batch_build import cpu_model_key_and_tuning_tasks
from farm.errors import BuildError
from farm.store import TuningRecordStore
from farm.types import Model, Profile, QuantizeSettings

numbers = np.random.default_rng(21)


@pytest.fixture
def answer(context, cache, tmp_path):
    """What the plain kernels of a model's build for a profile make of an input, one step after the
    other.
    """

    def compute(model, profile, x):
        records = TuningRecordStore(tmp_path / "records.sqlite")
        prepared = prepare_model(context, model, HOST, cache)
        parts = build_reference_kernels(
            prepared, find_or_build_model(context, prepared, profile, cache, records), profile, {}
        )
        values = {**parts.parameters, parts.inputs[0]: x}
        for step in parts.steps:
            values.update(
                zip(
                    (number for number, _, _ in step.outputs),
                    parts.compute(step, values),
                    strict=True,
                )
            )
        return {step.kernel for step in parts.steps}, [values[number] for number in parts.outputs]

    return compute


def built_here(model, cache, x):
    imported = importers.import_model(model, cache)
    return host_run.compile_host_runner(imported.module, imported.weights, HOST)([x])


@pytest.mark.parametrize("kind", ["armv7", "aarch64"])
def test_integers_of_an_arm_build_are_the_same_to_the_bit_as_loops_of_this_machine(
    kind, answer, cache, tmp_path
):
    model = Model("integers", str(save(tmp_path / "integers.onnx", residual_network())))
    x = numbers.uniform(-4, 4, (1, 3, 12, 12)).astype(np.float32)
    kernels, found = answer(model, ARM[kind], x)
    assert any("depthwise_int8" in kernel for kernel in kernels) and any(
        "convolution_int8" in kernel for kernel in kernels
    )
    [expected] = built_here(model, cache, x)
    assert found[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("profile", "reads_halves"),
    [(Profile("v3", {"kind": "llvm", "mcpu": "x86-64-v3"}, ""), True), (ARM["armv7"], False)],
    ids=["v3", "armv7"],
)
def test_loops_of_this_machine_take_weights_of_float16_as_the_kernels_of_a_build_do(
    profile, reads_halves, answer, tmp_path
):
    w = (0.1 * numbers.standard_normal((512, 512))).astype(np.float32)
    net = graph([node("MatMul", ["x", "w"], ["y"])], {"x": [1, 512]}, {"y": [1, 512]}, {"w": w})
    model = Model(
        "halved",
        str(save(tmp_path / "halved.onnx", net)),
        quantize=QuantizeSettings(dtype="float16"),
    )
    x = numbers.standard_normal((1, 512)).astype(np.float32)
    kernels, [found] = answer(model, profile, x)
    assert any(kernel.endswith("_half") for kernel in kernels) == reads_halves
    np.testing.assert_allclose(
        found, x.astype("float64") @ w.astype("float16").astype("float64"), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("profile", [HOST, ARM["armv7"]], ids=["host", "armv7"])
def test_steps_of_an_open_batch_are_those_of_a_batch_of_one(profile, answer, cache, tmp_path):
    net = Network()
    hidden = net.convolution(net.quantized("x", 0.03, 119), 0.03, (16, 3, 3, 3), pads=[1, 1, 1, 1])
    hidden = net.convolution(net.quantized(hidden, 0.1, 120), 0.1, (16, 1, 3, 3), group=16)
    product = net.product(
        net.op("Flatten", net.op("GlobalAveragePool", net.quantized(hidden, 0.3, 128))), (16, 10)
    )
    model = Model(
        "open",
        str(
            save(
                tmp_path / "open.onnx", net.graph(product, {"x": ["n", 3, 8, 8]}, {"y": ["n", 10]})
            )
        ),
    )
    assert all(spec.open for spec in importers.import_model(model, cache).inputs)
    x = numbers.uniform(-4, 4, (1, 3, 8, 8)).astype(np.float32)
    _, found = answer(model, profile, x)
    [expected] = built_here(model, cache, x)
    assert found[0].shape == (1, 10)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


def test_a_build_for_a_board_of_little_memory_is_taken_apart_as_what_it_is(context, kept, cache):
    def body(emit, x, w):
        return emit(relax.op.nn.conv2d(x, w, padding=1))

    weight = numbers.standard_normal((256, 48, 3, 3)).astype(np.float32)
    prepared = kept({"x": np.zeros((1, 48, 32, 32), "float32")}, body, {"w": weight})
    for memory_mb, transformed in ((None, True), (1, False)):
        profile = replace(ARM["aarch64"], memory_mb=memory_mb)
        built = find_or_build_model(context, prepared, profile, cache)
        index = json.loads((built.parameters / INDEX).read_text())
        assert bool(index["metadata"]) == transformed
        assert build_reference_kernels(prepared, built, profile, {}).steps


def test_a_tuned_build_is_taken_apart_by_the_records_of_its_cpu_model(context, cache, tmp_path):
    w = (0.05 * numbers.standard_normal((64, 64, 3, 3))).astype(np.float32)
    net = graph(
        [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        {"x": [1, 64, 28, 28]},
        {"y": [1, 64, 28, 28]},
        {"w": w},
    )
    model = Model("tuned", str(save(tmp_path / "tuned.onnx", net)))
    profile, other = ARM["aarch64"], ARM["armv7"]
    records = TuningRecordStore(tmp_path / "records.sqlite")
    prepared = prepare_model(context, model, HOST, cache)
    core, tasks = cpu_model_key_and_tuning_tasks(prepared, profile, records)
    [task] = [task for task in tasks if task.workload.startswith("convolution")]
    slower = next(
        one for one in task.candidates if one.choice["method"] != task.default.choice["method"]
    )
    tuned, not_this = (
        record(one, task.workload, choice)
        for one, choice in ((profile, slower.choice), (other, task.default.choice))
    )
    records.keep(tuned)
    built = find_or_build_model(context, prepared, profile, cache, records)
    recorded = {one.core: {one.workload: one.choice} for one in (not_this, tuned)}
    parts = build_reference_kernels(prepared, built, profile, recorded)
    assert core == tuned.core != not_this.core and parts.steps
    with pytest.raises(BuildError, match="is not of this model"):
        build_reference_kernels(prepared, built, profile, {})
