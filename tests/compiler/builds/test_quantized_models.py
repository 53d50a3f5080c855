"""Models that are quantized compute in integers: the same to the bit on every machine, and what
ONNX Runtime makes of them.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import save
from operator_compute_dtypes import types_of
from qdq_models import Network, residual_network
from relax_models import HOST
from target_profiles import ARM
from tvm import relax

from farm import executor, importers
from farm.checked_model_import import prepare_model
from farm.compiler import host_run
from farm.compiler.build import find_or_build_model
from farm.compiler.graph.quantization.quantized_arithmetic import (
    FACTOR_BITS,
    QuantizationParameters,
    ScaledAccumulators,
    round_mantissa,
)
from farm.processes import subprocesses
from farm.types import Device, Model

numbers = np.random.default_rng(9)
SAMPLES = numbers.uniform(-4, 4, (8, 1, 3, 12, 12)).astype(np.float32)


@pytest.fixture
def model(tmp_path):
    return Model("integers", str(save(tmp_path / "integers.onnx", residual_network())))


@pytest.fixture
def imported(model, cache):
    return importers.import_model(model, cache)


def test_convolutions_and_products_are_of_integers(imported):
    assert types_of(imported, "relax.nn.conv2d") == [("uint8", "int32")] * 3
    assert types_of(imported, "relax.matmul") == [("uint8", "int32")]
    assert types_of(imported, "relax.sum") == [("int32", "int32")]
    assert types_of(imported, "relax.nn.max_pool2d") == [("uint8", "uint8")]
    assert types_of(imported, "relax.quantize") == types_of(imported, "relax.dequantize") == []


def test_the_answer_is_onnx_runtimes_but_for_a_few_steps(imported):
    run = host_run.compile_host_runner(imported.module, imported.weights, HOST)
    ours = np.concatenate([run([x])[0] for x in SAMPLES])
    theirs = np.concatenate([imported.reference({"x": x})[0] for x in SAMPLES])
    assert np.abs(theirs).max() > 5  # else anything would be near
    assert np.abs(ours - theirs).max() < 0.02 * np.abs(theirs).max()


@pytest.mark.parametrize("per_channel", [True, False])
def test_a_bias_is_added_to_the_sums(per_channel, tmp_path, cache):
    net = Network()
    hidden = net.quantized(
        net.convolution(net.quantized("x", 0.03, 0), 0.03, (8, 3, 1, 1), per_channel), 0.1, 0
    )
    body = net.graph(hidden, {"x": [1, 3, 4, 4]}, {"y": [1, 8, 4, 4]})
    imported = importers.import_model(Model("m", str(save(tmp_path / "m.onnx", body))), cache)
    assert types_of(imported, "relax.add") == [("int32", "int32")]


def test_a_bias_may_be_the_first_operand(tmp_path, cache):
    net = Network()
    product = net.product(net.quantized("x", 0.03, 0), (12, 8))
    net.nodes[-1].input[:] = list(reversed(net.nodes[-1].input))
    body = net.graph(net.quantized(product, 0.1, 0), {"x": [4, 12]}, {"y": [4, 8]})
    imported = importers.import_model(Model("m", str(save(tmp_path / "m.onnx", body))), cache)
    assert types_of(imported, "relax.add") == [("int32", "int32")]


@pytest.mark.parametrize("kind", ARM)
def test_a_board_computes_the_same_to_the_bit(kind, model, imported, context, cache, agents):
    architecture = str(ARM[kind].agent)
    if not subprocesses.first_installed_program(
        emulator := {"armv7": "qemu-arm", "aarch64": "qemu-aarch64"}[architecture]
    ):
        pytest.skip(f"{emulator} is not installed")
    run = host_run.compile_host_runner(imported.module, imported.weights, HOST)
    prepared = prepare_model(context, model, HOST, cache)
    artifact = find_or_build_model(context, prepared, ARM[kind], cache)
    board = Device("board", ARM[kind], "qemu:")
    for x in SAMPLES[:3]:
        [answer] = executor.infer(context, board, artifact, agents(architecture), {"x": x}, 60.0)
        assert answer.tobytes() == run([x])[0].tobytes()


def test_the_weights_are_kept_as_bytes(model, context, cache):
    artifact = find_or_build_model(context, prepare_model(context, model, HOST, cache), HOST, cache)
    weights = 16 * 3 * 9 + 16 * 9 + 8 * 8 + 24 * 10
    assert (
        sum(path.stat().st_size for path in artifact.parameters.glob("*.bin"))
        < 2.5 * weights + 1000
    )


def test_what_is_not_quantized_again_stays_float32(tmp_path, cache):
    net = Network()
    hidden = net.convolution(net.quantized("x", 0.03, 119), 0.03, (8, 3, 1, 1))
    body = net.graph(net.op("Sigmoid", hidden), {"x": [1, 3, 4, 4]}, {"y": [1, 8, 4, 4]})
    imported = importers.import_model(Model("m", str(save(tmp_path / "m.onnx", body))), cache)
    x = numbers.uniform(-4, 4, (1, 3, 4, 4)).astype(np.float32)
    assert types_of(imported, "relax.nn.conv2d") == [("uint8", "int32")]
    np.testing.assert_allclose(
        host_run.compile_host_runner(imported.module, imported.weights, HOST)([x])[0],
        imported.reference({"x": x})[0],
        atol=1e-5,
    )


def assert_convolution_of(net, weight, channels, computed, tmp_path, cache):
    """The convolution of a quantized image of so many channels to 8 has these types, and is right.

    `computed` are the types of its input and of its sums.
    """
    shape = [1, channels, 4, 4]
    made = net.op("Conv", net.quantized("x", 0.03, 119), weight)
    body = net.graph(made, {"x": shape}, {"y": [1, 8, 4, 4]})
    imported = importers.import_model(Model("m", str(save(tmp_path / "m.onnx", body))), cache)
    x = numbers.uniform(-4, 4, shape).astype(np.float32)
    assert types_of(imported, "relax.nn.conv2d") == [computed]
    np.testing.assert_allclose(
        host_run.compile_host_runner(imported.module, imported.weights, HOST)([x])[0],
        imported.reference({"x": x})[0],
        atol=1e-4 if computed[1] == "float32" else 1e-5,
    )


def test_a_weight_with_another_zero_point_than_0_is_computed_in_float32(tmp_path, cache):
    net = Network()
    inputs = [
        net.weight("w", numbers.integers(0, 255, (8, 3, 1, 1), dtype=np.uint8)),
        net.weight("s", np.float32(0.01)),
    ]
    weight = net.op("DequantizeLinear", *inputs, net.weight("z", np.uint8(7)))
    assert_convolution_of(net, weight, 3, ("float32", "float32"), tmp_path, cache)


def test_bytes_without_a_sign_are_a_weight_of_integers_if_their_zero_point_is_their_middle(
    tmp_path, cache
):
    net = Network()
    inputs = [
        net.weight("w", numbers.integers(0, 256, (8, 3, 1, 1), dtype=np.uint8)),
        net.weight("s", np.float32(0.01)),
        net.weight("z", np.uint8(128)),
    ]
    weight = net.op("DequantizeLinear", *inputs)
    assert_convolution_of(net, weight, 3, ("uint8", "int32"), tmp_path, cache)


def test_a_sum_of_more_products_than_32_bits_hold_is_of_floats(tmp_path, cache):
    net = Network()
    inputs = [
        net.weight("w", np.full((70_000, 2), 127, np.int8)),
        net.weight("s", np.float32(0.001)),
        net.weight("z", np.int8(0)),
    ]
    made = net.op("MatMul", net.quantized("x", 0.01, 0), net.op("DequantizeLinear", *inputs))
    body = net.graph(made, {"x": [1, 70_000]}, {"y": [1, 2]})
    imported = importers.import_model(Model("m", str(save(tmp_path / "m.onnx", body))), cache)
    x = np.full((1, 70_000), 9, np.float32)  # 255 steps of 0.01
    run = host_run.compile_host_runner(imported.module, imported.weights, HOST)
    np.testing.assert_allclose(run([x])[0], 70_000 * 2.55 * 0.127, rtol=2e-3)


@pytest.mark.parametrize("zero", [0, 100])
def test_a_quantized_vector_is_what_its_scale_and_zero_point_say(zero, tmp_path, cache):
    net = Network()
    inputs = [
        net.weight("v", numbers.integers(0, 256, 12, dtype=np.uint8)),
        net.weight("s", np.float32(0.02)),
        net.weight("z", np.uint8(zero)),
    ]
    made = net.op("Mul", "x", net.op("DequantizeLinear", *inputs))
    body = net.graph(made, {"x": [4, 12]}, {"y": [4, 12]})
    imported = importers.import_model(Model("m", str(save(tmp_path / "m.onnx", body))), cache)
    x = numbers.uniform(-3, 3, (4, 12)).astype(np.float32)
    run = host_run.compile_host_runner(imported.module, imported.weights, HOST)
    np.testing.assert_allclose(run([x])[0], imported.reference({"x": x})[0], rtol=1e-6)


def test_a_weight_with_a_scale_for_each_input_channel_is_computed_in_float32(tmp_path, cache):
    net = Network()
    weight, _ = net.quantized_weight((8, 8, 1, 1), 1, True)
    assert_convolution_of(net, weight, 8, ("float32", "float32"), tmp_path, cache)


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul"])
def test_two_tensors_of_other_scales_meet_in_a_third(operator, tmp_path, cache):
    net = Network()
    met = net.op(operator, net.quantized("x", 0.03, 119), net.quantized("z", 0.05, 7))
    body = net.graph(net.quantized(met, 0.1, 60), {"x": [4, 30], "z": [4, 30]}, {"y": [4, 30]})
    imported = importers.import_model(Model("m", str(save(tmp_path / "m.onnx", body))), cache)
    given = {
        "x": numbers.uniform(-3, 3, (4, 30)).astype(np.float32),
        "z": numbers.uniform(0, 6, (4, 30)).astype(np.float32),
    }
    run = host_run.compile_host_runner(imported.module, imported.weights, HOST)
    [ours], [theirs] = run(list(given.values())), imported.reference(given)
    assert np.unique(theirs).size > 30
    assert np.abs(ours - theirs).max() <= 0.101


def test_rounding_is_half_to_even_and_stays_within_the_bounds(tmp_path, cache):
    net = Network()
    y = net.quantized("x", 0.5, 10)
    imported = importers.import_model(
        Model("m", str(save(tmp_path / "m.onnx", net.graph(y, {"x": [7]}, {"y": [7]})))), cache
    )
    x = np.array([0.25, 0.75, -0.25, 1.25, 1e9, -1e9, 0], np.float32)
    [answer] = host_run.compile_host_runner(imported.module, imported.weights, HOST)([x])
    np.testing.assert_array_equal(answer, [0, 1, 0, 1, 122.5, -5, 0])


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((), [0, 1, 0, 100, 0, 0]),
        ((-1.0, 4.0), [-1, 1, -0.5, 4, 0, -1]),
        ((-1000.0, 4.0), [-5, 1, -0.5, 4, 0, -3]),
    ],
    ids=["Relu", "Clip", "Clip from above"],
)
def test_bounds_between_two_quantizations_of_one_scale_hold(bounds, expected, tmp_path, cache):
    """The integers stay as they are but for the bounds."""
    net = Network()
    given = [net.weight(f"bound{at}", np.float32(bound)) for at, bound in enumerate(bounds)]
    bounded = net.op("Clip" if bounds else "Relu", net.quantized("x", 0.5, 10), *given)
    body = net.graph(net.quantized(bounded, 0.5, 10), {"x": [6]}, {"y": [6]})
    imported = importers.import_model(Model("m", str(save(tmp_path / "m.onnx", body))), cache)
    x = np.array([-7, 1, -0.5, 100, 0, -3], np.float32)
    [answer] = host_run.compile_host_runner(imported.module, imported.weights, HOST)([x])
    np.testing.assert_array_equal(answer, expected)
    np.testing.assert_array_equal(imported.reference({"x": x})[0], expected)


def test_a_bound_of_more_axes_than_the_data_gives_the_result_its_axes(tmp_path, cache):
    net = Network()
    bound = net.weight("bound", np.full((1, 1), 4, np.float32))
    bounded = net.op("Min", net.quantized("x", 0.5, 10), bound)
    body = net.graph(net.quantized(bounded, 0.5, 10), {"x": [6]}, {"y": [1, 6]})
    imported = importers.import_model(Model("m", str(save(tmp_path / "m.onnx", body))), cache)
    x = np.array([-7, 1, -0.5, 100, 0, -3], np.float32)
    [answer] = host_run.compile_host_runner(imported.module, imported.weights, HOST)([x])
    np.testing.assert_array_equal(answer, imported.reference({"x": x})[0])
    assert answer.shape == (1, 6)


@pytest.mark.parametrize(
    ("inner", "outer", "expected"), [("Clip", "Relu", 0.0), ("Relu", "Clip", -1.0)]
)
def test_of_two_bounds_that_leave_nothing_the_last_holds(inner, outer, expected, tmp_path, cache):
    net = Network()
    bounded = net.quantized("x", 0.5, 10)
    for operator in (inner, outer):
        bounds = (-1000, -1) if operator == "Clip" else ()
        given = [net.weight("bound", np.float32(bound)) for bound in bounds]
        bounded = net.op(operator, bounded, *given)
    body = net.graph(net.quantized(bounded, 0.5, 10), {"x": [4]}, {"y": [4]})
    imported = importers.import_model(Model("m", str(save(tmp_path / "m.onnx", body))), cache)
    x = np.array([-4, -1, 0.5, 7], np.float32)
    [answer] = host_run.compile_host_runner(imported.module, imported.weights, HOST)([x])
    np.testing.assert_array_equal(answer, np.full(4, expected))
    np.testing.assert_array_equal(imported.reference({"x": x})[0], answer)


def test_a_factor_times_a_step_is_exact_in_float32():
    for factor in numbers.uniform(1e-4, 40, 200):
        shortened = round_mantissa(float(factor))
        assert abs(shortened / factor - 1) <= 2.0**-FACTOR_BITS
        for step in (-255, -1, 127, 255):
            assert float(np.float32(shortened) * np.float32(step)) == shortened * step


def test_a_bias_too_large_for_the_sums_is_not_added_to_them():
    sums = ScaledAccumulators(relax.Var("v"), np.int32(0), np.float64(1e-9))
    assert sums.plus(np.array([3.0])) is None and sums.plus(np.array([0.5])) is not None
    channels = ScaledAccumulators(relax.Var("v"), np.int32(0), np.array([1e-9, 1e-3]))
    assert channels.plus(np.array([3.0, 3.0])) is None, "one channel is enough"
    assert channels.plus(np.array([0.5, 3.0])) is not None


def test_the_bounds_of_a_clamp_are_integers_of_the_scale():
    assert QuantizationParameters(0.05, 3, "uint8").bounds(0.0, 6.0) == (3, 123)
    assert QuantizationParameters(0.05, -128, "int8").bounds(-np.inf, np.inf) == (-128, 127)
