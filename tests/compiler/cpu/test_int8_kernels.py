"""Convolutions and products of 8-bit integers: the very numbers of 64-bit arithmetic, by the
instructions that there are for them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from int8_operator_cases import Case, convolutions, depthwise, module_of, products, rounded
from relax_models import CPUS, compute, const, lowered, module, target
from tvm import relax

sys.path.append(str(Path(__file__).parents[3] / "tools"))

import inner_loops

from farm import executor
from farm.compiler.build import find_or_build_model
from farm.compiler.lower import lower_module, resolve_target
from farm.processes import subprocesses
from farm.types import BuildWithAgent, Device, MeasurementSettings, Model, Profile

generated = settings(max_examples=2, suppress_health_check=list(HealthCheck))
HERE = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
LAYER = Case((1, 64, 14, 14), (96, 64, 3, 3), padding=(1, 1, 1, 1), zero=7)
DENSE = Case((4, 96), (96, 64))


@pytest.mark.parametrize("cpu", [*CPUS, "native"])
def test_sums_and_what_is_made_of_them_are_exact_for_any_shape(cpu):
    @generated
    @given(
        some.tuples(
            some.lists(convolutions(), min_size=4, max_size=6),
            some.lists(depthwise(), min_size=3, max_size=5),
            some.lists(products(), max_size=4),
        )
    )
    def exact(kinds):
        cases = [case for kind in kinds for case in kind]
        inputs, body, weights, expected = module_of(cases)
        answer = compute(inputs, body, weights, cpu)
        assert answer.notes == []
        for case, got, wanted in zip(cases, answer.outputs, expected, strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=repr(case))

    exact()


@pytest.mark.parametrize("case", [LAYER, DENSE], ids=["convolution", "dense"])
def test_bias_factor_and_rounding_are_one_kernel_with_the_sums(case):
    inputs, body, weights, _ = module_of([case])
    kernels = lowered(inputs, body, weights).kernels
    (heavy,) = (kernel for kernel in kernels if kernel.rule in ("convolution_int8", "dense_int8"))
    assert "rounded" in heavy.name
    assert all("rounded" not in kernel.name for kernel in kernels if kernel is not heavy)


@pytest.mark.skipif(not HERE.get("avx512vnni"), reason="this CPU has no AVX-512 VNNI")
@pytest.mark.parametrize("case", [LAYER, DENSE], ids=["convolution", "dense"])
def test_vnni_is_used_where_the_cpu_has_it(case):
    inputs, body, weights, _ = module_of([case])
    low = lowered(inputs, body, weights)
    assert any(kernel.choice.startswith("vnni ") for kernel in low.kernels)
    assert inner_loops.assembly(tvm.compile(low.module, target=target()).mod).count("vpdpbusd") >= 8


@pytest.mark.parametrize(
    "case",
    [Case((1, 256, 7, 7), (256, 256, 3, 3), padding=(1, 1, 1, 1)), Case((64, 256), (256, 512))],
    ids=["convolution", "dense"],
)
def test_the_weights_of_the_next_block_are_fetched_ahead(case):
    if CPUS[-1] == "native":
        pytest.skip("for x86 only")
    inputs, body, weights, expected = module_of([case])
    answer = compute(inputs, body, weights, CPUS[-1])
    assert "llvm.prefetch" in answer.lowered.module.script()
    np.testing.assert_array_equal(answer.outputs[0], expected[0])


@pytest.mark.parametrize("cpu", CPUS)
def test_rounding_is_half_to_even_and_within_bounds_whatever_the_zero_point(cpu):
    values = (
        np.concatenate([np.arange(-300, 301) / 2, [1e9, -1e9, 2.0**31, 127.49999, -0.0]])
        .astype("float32")
        .reshape(2, -1)
    )
    zeros = (0, 1, 100, 255)
    answer = compute(
        {"x": values}, lambda emit, x: [rounded(emit, x, zero) for zero in zeros], {}, cpu
    )
    for zero, got in zip(zeros, answer.outputs, strict=True):
        np.testing.assert_array_equal(got, np.clip(np.round(values) + zero, 0, 255).astype("uint8"))


@pytest.mark.parametrize("cpu", CPUS)
def test_a_product_is_rounded_before_the_rounding_to_whole_numbers(cpu):
    numbers = np.random.default_rng(0)
    values = numbers.integers(-(2**20), 2**20, (64, 1024)).astype("float32")
    factor = np.float32(2**-14 * 1.37)
    values = np.where(
        numbers.random(values.shape) < 0.5, values, np.round(values / factor) * np.float32(0.5)
    ).astype("float32")
    answer = compute(
        {"x": values},
        lambda emit, x: rounded(emit, emit(relax.op.multiply(x, const(factor))), 3),
        {},
        cpu,
    )
    np.testing.assert_array_equal(
        answer.outputs[0], np.clip(np.round(values * factor) + 3, 0, 255).astype("uint8")
    )


def test_an_image_becomes_bytes_by_vectors_of_its_row():
    image = np.random.default_rng(1).standard_normal((2, 3, 13, 37)).astype("float32")

    def body(emit, x):
        whole = rounded(emit, emit(relax.op.multiply(x, const(40.0))), 114)
        padded = emit(relax.op.nn.pad(whole, (0, 0, 0, 0, 1, 2, 3, 1), pad_value=114))
        return emit(relax.op.permute_dims(padded, [0, 2, 3, 1]))

    answer = compute({"x": image}, body)
    expected = np.clip(np.round(image * np.float32(40)) + 114, 0, 255).astype("uint8")
    expected = np.pad(expected, [(0, 0), (0, 0), (1, 2), (3, 1)], constant_values=114).transpose(
        0, 2, 3, 1
    )
    np.testing.assert_array_equal(answer.outputs[0], expected)
    assert "T.vectorized(3)" not in answer.lowered.module.script()


# CPU: architecture, triple, and the instructions that a convolution and a depthwise one must come
# to there
ARM = {
    "cortex-a72": ("aarch64", "aarch64-linux-gnu", {"smull", "smlal", "sadalp"}, {"smlal"}),
    "cortex-a53": ("aarch64", "aarch64-linux-gnu", {"smull", "smlal", "sadalp"}, {"smlal"}),
    "cortex-a76": ("aarch64", "aarch64-linux-gnu", {"sdot"}, {"smlal"}),
    "cortex-a7": (
        "armv7",
        "arm-linux-gnueabihf",
        {"vmull.s8", "vmlal.s8", "vpadal.s16"},
        {"vmlal.s16"},
    ),
}
DEPTHWISE = Case((1, 64, 14, 14), (64, 1, 3, 3), padding=(1, 1, 1, 1), groups=64, zero=7)


def arm(cpu: str) -> Profile:
    architecture, triple, *_ = ARM[cpu]
    described: dict[str, object] = {
        "kind": "llvm",
        "mtriple": triple,
        "mcpu": cpu,
        "mattr": ["+neon"],
    }
    if architecture == "armv7":
        described |= {"mtriple": "armv7l-linux-gnueabihf", "mfloat-abi": "hard"}
    return Profile(cpu, described, triple, agent=architecture)


@pytest.mark.parametrize("cpu", ARM)
@pytest.mark.parametrize("case", [LAYER, DEPTHWISE], ids=["convolution", "depthwise"])
def test_arm_multiplies_by_its_long_instructions_and_spills_nothing(case, cpu):
    inputs, body, weights, _ = module_of([case])
    weights = {
        name: np.maximum(value, -127) if name.startswith("w") else value
        for name, value in weights.items()
    }
    board = resolve_target(arm(cpu))
    low = lower_module(module(inputs, body, weights), list(weights.values()), board, {})
    functions = inner_loops.functions(
        inner_loops.assembly(tvm.compile(low.module, target=board).mod)
    )
    wanted = ARM[cpu][3 if case is DEPTHWISE else 2]
    assert any(wanted <= words(lines) for lines in functions.values())
    if case is LAYER:
        loops = [
            loop
            for lines in functions.values()
            for loop in innermost(lines)
            if wanted <= words(loop)
        ]
        assert [line for line in max(loops, key=len) if "[sp" in line] == []


def words(lines: list[str]) -> set[str]:
    return {line.split()[0] for line in lines}


def innermost(lines: list[str]) -> list[list[str]]:
    """The instructions of each loop without another in it."""
    labels = {line[:-1]: index for index, line in enumerate(lines) if line.endswith(":")}
    found = []
    for index, line in enumerate(lines):
        start = labels.get(line.split()[-1], index) if line.split()[0].startswith("b") else index
        body = lines[start + 1 : index + 1]
        if start < index and not any(one.endswith(":") for one in body):
            found.append(body)
    return found


BOARD_CASES = [
    LAYER,
    DEPTHWISE,
    Case((1, 3, 13, 11), (20, 3, 3, 3), strides=(2, 2), padding=(0, 1, 2, 1), zero=5),
    Case((2, 24, 7, 9), (48, 8, 2, 3), "int8", dilation=(1, 2), groups=3, quantized=False),
    Case(
        (1, 33, 9, 9),
        (33, 1, 5, 5),
        "int8",
        strides=(2, 1),
        padding=(2, 2, 2, 2),
        groups=33,
        zero=128,
    ),
    Case((5, 70), (70, 33), zero=3),
    Case((1, 1280), (1280, 100), quantized=False),
]


@pytest.mark.parametrize("cpu", ["cortex-a72", "cortex-a76", "cortex-a7"])
def test_an_emulated_board_gives_the_very_same_numbers(cpu, context, cache, kept, agents):
    emulator = {"aarch64": "qemu-aarch64", "armv7": "qemu-arm"}[ARM[cpu][0]]
    if not subprocesses.first_installed_program(emulator):
        pytest.skip(f"{emulator} is not installed")
    inputs, body, weights, _ = module_of(BOARD_CASES)
    weights = {
        name: np.maximum(value, -127) if name.startswith("w") else value
        for name, value in weights.items()
    }
    weights["w0"] = np.full_like(
        weights["w0"], -128
    )  # with inputs of 0, less 128, products of which 16 bits do not hold the sum of two
    inputs["x0"][:] = 0
    prepared = kept(inputs, body, weights)
    named = {f"input:{name}": value for name, value in inputs.items()}
    for index, case in enumerate(BOARD_CASES):
        named[f"output:{index}"] = case.exact(
            inputs[f"x{index}"], *(weights[f"{name}{index}"] for name in ("w", "bias", "factor"))
        )
    np.savez(prepared.directory / "reference.npz", **named)
    artifact = find_or_build_model(context, prepared, arm(cpu), cache)
    assert {kernel.rule for kernel in artifact.kernels} == {
        "convolution_int8",
        "depthwise_int8",
        "dense_int8",
        "general",
        "transpose",
    }
    board = Device("board", arm(cpu), "qemu:")
    samples = executor.measure_job(
        context,
        board,
        BuildWithAgent(Model("model", "by hand"), prepared, artifact, agents(ARM[cpu][0])),
        MeasurementSettings.once(),
    )
    assert (samples.agreement.right, samples.agreement.max_abs) == (True, 0)
