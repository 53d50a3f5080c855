"""Weights of float16: half the file, the same answers to the bit, and no kernel that would be
slower for it reads them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from onnx_models import graph, node, save
from relax_models import CPUS, HOST, lowered, module, runner
from target_profiles import ARM
from tvm import relax, tirx

from farm import executor
from farm.checked_model_import import prepare_model
from farm.compiler import host_run, parameter_files
from farm.compiler.build import find_or_build_model
from farm.compiler.codegen.executable import compile_executable
from farm.compiler.graph.precision import fp16_weights
from farm.compiler.lower import lower_module, resolve_target
from farm.compiler.parameter_files import ON_LOAD
from farm.processes import subprocesses
from farm.types import BuildWithAgent, Device, MeasurementSettings, Model, Profile, QuantizeSettings

numbers = np.random.default_rng(16)


def halved(*shape: int) -> np.ndarray:
    return (0.1 * numbers.standard_normal(shape)).astype("float16")


WEIGHTS = {
    "table": halved(1000, 512),
    "w": halved(512, 512),
    "filters": halved(16, 8, 5, 5),
    "kernel": halved(512, 16),
}
INPUTS = {
    "ids": np.array([3], "int64"),
    "image": numbers.standard_normal((1, 8, 20, 20)).astype("float32"),
}


def network(emit, ids, image, table, w, filters, kernel):
    """An embedding and products of one row, which wait for memory, and a convolution, which does
    not.
    """
    wide = [emit(relax.op.astype(one, "float32")) for one in (table, w, filters, kernel)]
    row = emit(relax.op.take(wide[0], ids, axis=0))
    hidden = emit(relax.op.nn.relu(emit(relax.op.matmul(row, wide[1]))))
    seen = emit(relax.op.mean(emit(relax.op.nn.conv2d(image, wide[2], padding=2)), axis=[2, 3]))
    return relax.op.add(emit(relax.op.matmul(hidden, wide[3])), seen)


def expected() -> np.ndarray:
    row = WEIGHTS["table"].astype("float64")[INPUTS["ids"]]
    hidden = np.maximum(row @ WEIGHTS["w"].astype("float64"), 0) @ WEIGHTS["kernel"].astype(
        "float64"
    )
    padded = np.pad(INPUTS["image"], [(0, 0), (0, 0), (2, 2), (2, 2)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(2, 3))
    return (
        hidden + np.einsum("nchwyx,ocyx->no", windows, WEIGHTS["filters"].astype("float64")) / 400
    )


@pytest.mark.parametrize("cpu", CPUS)
def test_weights_are_kept_as_float16_and_answers_are_those_of_float32(cpu):
    profile = Profile("host", {"kind": "llvm", "mcpu": cpu}, "")
    made = lowered(INPUTS, network, WEIGHTS, cpu)
    assert (
        sorted(value.dtype.name for value in made.parameters if value.nbytes > 1024)
        == ["float16"] * 4
    )
    [answer] = host_run.compile_host_runner(
        module(INPUTS, network, WEIGHTS), list(WEIGHTS.values()), profile
    )(list(INPUTS.values()))
    np.testing.assert_allclose(answer, expected(), rtol=1e-4, atol=1e-5)


def test_kernels_that_wait_for_memory_read_float16_where_the_cpu_converts_it():
    made = lowered(INPUTS, network, WEIGHTS, "x86-64-v3")
    read = {
        kernel.name.split("_half")[0]: kernel.halves for kernel in made.kernels if kernel.halves
    }
    assert read["take"] == read["fused_dense_relu"] == "in the kernel"
    assert [where for name, where in read.items() if "winograd" in name] == ["when loaded"]
    old = lowered(INPUTS, network, WEIGHTS, "x86-64")
    assert {kernel.halves for kernel in old.kernels} == {"", "when loaded"}


@pytest.mark.parametrize("cpu", CPUS)
def test_one_build_for_an_open_batch_is_right_for_every_batch(cpu):
    def body(emit, x, w, kernel):
        wide = [emit(relax.op.astype(one, "float32")) for one in (w, kernel)]
        return relax.op.matmul(emit(relax.op.nn.relu(emit(relax.op.matmul(x, wide[0])))), wide[1])

    weights = {name: WEIGHTS[name] for name in ("w", "kernel")}
    made = lowered(
        {"x": relax.TensorType((tirx.Var("batch", "int64"), 512), "float32")}, body, weights, cpu
    )
    assert ("in the kernel" in {kernel.halves for kernel in made.kernels}) == (cpu != "x86-64")
    answer = runner(made, cpu)
    for batch in (1, 2, 3, 7):
        x = numbers.standard_normal((batch, 512)).astype("float32")
        right = np.maximum(x.astype("float64") @ weights["w"].astype("float64"), 0) @ weights[
            "kernel"
        ].astype("float64")
        np.testing.assert_allclose(answer([x])[0], right, rtol=1e-4, atol=1e-5)


def test_what_is_widened_when_loaded_is_the_same_to_the_bit(tmp_path):
    every = np.arange(1 << 16, dtype="uint16").view("float16")
    weight = every[np.isfinite(every)].astype("float32").reshape(-1, 64)
    given = module(
        {"x": weight},
        lambda emit, x, w: relax.op.add(x, emit(relax.op.astype(w, "float32"))),
        {"w": weight.astype("float16")},
    )
    target = resolve_target(
        Profile("old", {"kind": "llvm", "mcpu": "x86-64"}, "")
    )  # converts nothing in kernels
    made = lower_module(given, [weight.astype("float16")], target, {})
    parameter_files.write_parameters(tmp_path / "parameters", made.parameters)
    tvm.get_global_func(
        "vm.builtin.tensor_cache.clear"
    )()  # of what other tests have left in this process
    tvm.get_global_func("vm.builtin.tensor_cache.load")(str(tmp_path / "parameters"), 1, 0)
    machine = relax.VirtualMachine(compile_executable(made.module, target), tvm.cpu())
    machine.set_input(ON_LOAD)
    machine.invoke_stateful(ON_LOAD)
    [found] = tvm.get_global_func("vm.builtin.param_array_from_cache")(parameter_files.PREFIX, -1)
    assert made.parameters[0].dtype == np.float16
    assert (found.numpy().view("uint32") == weight.view("uint32")).all()


@pytest.mark.parametrize(
    "value",
    [np.float32(1 / 3), np.float32(1e5), np.float32(1e-9), np.float32("inf"), np.float32("nan")],
    ids=str,
)
def test_a_constant_that_float16_would_change_stays_as_it_is(value):
    constant = np.ones((40, 40), "float32")
    assert fp16_weights.fp16_if_exact(constant) is not None
    constant[-1, -1] = value
    assert fp16_weights.fp16_if_exact(constant) is None
    assert fp16_weights.fp16_if_exact(np.ones(8, "float32")) is None  # too small to gain


def test_a_model_of_float32_is_built_as_ever():
    weights = {name: value.astype("float32") for name, value in WEIGHTS.items()}
    made = lower_module(
        module(INPUTS, network, weights), list(weights.values()), resolve_target(HOST), {}
    )
    assert all(value.dtype != np.float16 for value in made.parameters) and not any(
        kernel.halves for kernel in made.kernels
    )


NETWORK = graph(
    [
        node("Gather", ["table", "ids"], ["row"]),
        node("MatMul", ["row", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "kernel"], ["c"]),
        node("Conv", ["image", "filters"], ["d"], pads=[2, 2, 2, 2]),
        node("GlobalAveragePool", ["d"], ["e"]),
        node("Flatten", ["e"], ["f"]),
        node("Add", ["c", "f"], ["y"]),
    ],
    {"ids": ("int64", [1]), "image": [1, 8, 20, 20]},
    {"y": [1, 16]},
    {name: value.astype("float32") * np.float32(1.0001) for name, value in WEIGHTS.items()},
)


@pytest.mark.parametrize("architecture", ARM)
def test_an_emulated_board_computes_with_halved_weights(
    architecture, tmp_path: Path, context, cache, agents
):
    agent = ARM[architecture].agent
    emulator = {"armv7": "qemu-arm", "aarch64": "qemu-aarch64"}[agent]
    if not subprocesses.first_installed_program(emulator):
        pytest.skip(f"{emulator} is not installed")
    source = str(save(tmp_path / "model.onnx", NETWORK))
    model, profile = (
        Model("model", source, quantize=QuantizeSettings(dtype="float16")),
        ARM[architecture],
    )
    prepared = prepare_model(context, model, HOST, cache)
    assert prepared.precision == "float16"
    artifact = find_or_build_model(context, prepared, profile, cache)
    plain = find_or_build_model(
        context, prepare_model(context, Model("plain", source), HOST, cache), profile, cache
    )
    sizes = [(one.parameters / parameter_files.SHARD).stat().st_size for one in (artifact, plain)]
    assert sizes[0] < 0.51 * sizes[1]
    assert {kernel.halves for kernel in artifact.kernels} == {"", "when loaded"}
    samples = executor.measure_job(
        context,
        Device("board", profile, "qemu:"),
        BuildWithAgent(model, prepared, artifact, agents(agent)),
        MeasurementSettings.once(),
    )
    assert samples.agreement.right and samples.agreement.snr_db > 60, samples.agreement
