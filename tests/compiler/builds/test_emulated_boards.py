"""Models on boards: built for ARM of 32 and 64 bits, run by the agent under qemu, compared with
ONNX Runtime.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import graph, node, save
from relax_models import HOST
from target_profiles import ARM

from farm import executor
from farm.checked_model_import import prepare_model
from farm.compiler.build import find_or_build_model
from farm.processes import subprocesses
from farm.types import BuildWithAgent, Device, MeasurementSettings, Model

numbers = np.random.default_rng(6)


def draw(*shape: int) -> np.ndarray:
    return numbers.standard_normal(shape).astype("float32")


NETWORK = graph(
    [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Clip", ["a", "low", "high"], ["b"]),
        node("Conv", ["b", "d"], ["c"], pads=[1, 1, 1, 1], group=16),
        node("Sigmoid", ["c"], ["e"]),
        node("Mul", ["c", "e"], ["f"]),
        node("Flatten", ["f"], ["g"]),
        node("MatMul", ["g", "m"], ["h"]),
        node("Softmax", ["h"], ["y"]),
    ],
    {"x": [1, 3, 16, 16]},
    {"y": [1, 24]},
    {
        "w": draw(16, 3, 3, 3),
        "d": draw(16, 1, 3, 3),
        "m": 0.1 * draw(1024, 24),
        "low": np.float32(0),
        "high": np.float32(6),
    },
)
CONVOLUTIONS = graph(  # sums of many steps; rows and channels that fill no tiles
    [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "d"], ["c"], pads=[1, 1, 1, 1]),
        node("Conv", ["b", "u"], ["e"]),
        node("Add", ["c", "e"], ["f"]),
        node("Relu", ["f"], ["y"]),
    ],
    {"x": [1, 12, 43, 43]},
    {"y": [1, 64, 22, 22]},
    {"w": draw(64, 12, 3, 3), "d": 0.1 * draw(64, 64, 3, 3), "u": draw(64, 64, 1, 1)},
)
MANY_CHANNELS = graph(  # several blocks of channels at a time, in tiles that reach beyond the image
    [
        node("Conv", ["x", "w", "bias"], ["a"], pads=[1, 1, 1, 1]),
        node("Add", ["a", "z"], ["b"]),
        node("Relu", ["b"], ["y"]),
    ],
    {"x": [1, 64, 7, 9], "z": [1, 256, 7, 9]},
    {"y": [1, 256, 7, 9]},
    {"w": 0.1 * draw(256, 64, 3, 3), "bias": draw(256)},
)
WINDOWS = graph(  # rows that fill no tiles, padding that differs on each side, steps and gaps
    [
        node("Conv", ["x", "a"], ["b"], pads=[1, 1, 1, 1], group=12),
        node("Relu", ["b"], ["c"]),
        node("Conv", ["c", "d", "bias"], ["e"], pads=[0, 0, 1, 1], strides=[2, 2], group=12),
        node("Clip", ["e", "low", "high"], ["f"]),
        node("Conv", ["f", "g"], ["h"], pads=[2, 2, 2, 2], dilations=[2, 2], group=12),
        node("MaxPool", ["h"], ["i"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Conv", ["i", "j"], ["y"], pads=[4, 1, 0, 3], group=12),
    ],
    {"x": [1, 12, 19, 23]},
    {"y": [1, 12, 9, 10]},
    {
        **{name: 0.5 * draw(12, 1, 3, 3) for name in "adg"},
        "j": draw(12, 1, 5, 5),
        "bias": draw(12),
        "low": np.float32(0),
        "high": np.float32(6),
    },
)
# tiles of several rows on cores in order, that fill the image; many of them beside one another, or
# few
ROWS_OF_WINDOWS = graph(
    [
        node("Conv", ["x", "a", "bias"], ["b"], pads=[1, 1, 1, 1], group=12),
        node("Clip", ["b", "low", "high"], ["c"]),
        node("Conv", ["c", "d"], ["e"], pads=[0, 2, 1, 0], group=12),
        node("Add", ["e", "x"], ["f"]),
        node("Conv", ["f", "g", "bias"], ["h"], pads=[2, 0, 0, 0], group=12),
        node("Sigmoid", ["h"], ["i"]),
        node("Mul", ["h", "i"], ["y"]),
    ],
    {"x": [2, 12, 14, 24]},
    {"y": [2, 12, 15, 12]},
    {
        "a": draw(12, 1, 3, 3),
        "d": draw(12, 1, 2, 3),
        "g": draw(12, 1, 2, 13),
        "bias": draw(12),
        "low": np.float32(0),
        "high": np.float32(6),
    },
)
DEPTH_FIRST = graph(  # two convolutions and the windows over their results; bands of rows
    [
        node("Conv", ["x", "w"], ["a"]),
        node("Clip", ["a", "low", "high"], ["b"]),
        node("Conv", ["b", "d"], ["c"], pads=[1, 1, 1, 1], group=32),
        node("Conv", ["c", "u", "bias"], ["e"]),
        node("Sigmoid", ["e"], ["f"]),
        node("Mul", ["e", "f"], ["g"]),
        node("Conv", ["g", "v", "bias"], ["h"], pads=[2, 2, 2, 2], strides=[2, 2], group=48),
        node("Clip", ["h", "low", "high"], ["y"]),
    ],
    {"x": [1, 12, 56, 56]},
    {"y": [1, 48, 28, 28]},
    {
        "w": draw(32, 12, 1, 1),
        "d": draw(32, 1, 3, 3),
        "u": 0.3 * draw(48, 32, 1, 1),
        "v": draw(48, 1, 5, 5),
        "bias": draw(48),
        "low": np.float32(0),
        "high": np.float32(6),
    },
)
ATTENTION = graph(  # tokens and channels that fill no vectors, on any board
    [
        node("Conv", ["x", "w"], ["a"], strides=[2, 2], group=2),
        node("ConvTranspose", ["a", "u"], ["b"], strides=[2, 2]),
        node("Sigmoid", ["b"], ["c"]),
        node("Mul", ["b", "c"], ["d"]),
        node("Reshape", ["d", "tokens"], ["e"]),
        node("LayerNormalization", ["e", "gain", "bias"], ["f"]),
        node("MatMul", ["f", "q"], ["g"]),
        node("Transpose", ["g"], ["h"], perm=[0, 2, 1]),
        node("MatMul", ["g", "h"], ["i"]),
        node("Softmax", ["i"], ["j"]),
        node("MatMul", ["j", "g"], ["k"]),
        node("Erf", ["k"], ["l"]),
        node("Tanh", ["l"], ["y"]),
    ],
    {"x": [1, 6, 5, 5]},
    {"y": [1, 7, 11]},
    {
        "w": draw(16, 3, 2, 2),
        "u": draw(16, 7, 2, 2),
        "q": 0.3 * draw(16, 11),
        "gain": draw(16),
        "bias": draw(16),
        "tokens": np.array([1, 7, 16]),
    },
)
CODES = graph(  # products with a weight of few bits, of few rows and of many, and with a cache
    [
        node("DequantizeLinear", ["codes", "steps", "middle"], ["w"], axis=1),
        node("MatMul", ["few", "w"], ["a"]),
        node("MatMul", ["many", "w"], ["b"]),
        node("Transpose", ["cache"], ["keys"], perm=[0, 2, 1]),
        node("MatMul", ["query", "keys"], ["c"]),
    ],
    {"few": [3, 64], "many": [18, 64], "query": [2, 1, 32], "cache": [2, 40, 32]},
    {"a": [3, 48], "b": [18, 48], "c": [2, 1, 40]},
    {
        "codes": numbers.integers(0, 256, (64, 48)).astype("uint8"),
        "steps": (0.01 * (1 + numbers.random(48))).astype("float32"),
        "middle": numbers.integers(100, 150, 48).astype("uint8"),
    },
)
ARITHMETIC = graph(  # what a 32-bit core needs library functions for
    [
        node("Div", ["i", "i3"], ["quotient"]),
        node("Mod", ["i", "i3"], ["rest"]),
        node("Cast", ["i"], ["single"], to=onnx.TensorProto.FLOAT),
        node("Cast", ["i"], ["double"], to=onnx.TensorProto.DOUBLE),
        node("Mul", ["x", "big"], ["scaled"]),
        node("Cast", ["scaled"], ["integer"], to=onnx.TensorProto.INT64),
        node("Cast", ["x"], ["half"], to=onnx.TensorProto.FLOAT16),
        node("Erf", ["x"], ["erf"]),
        node("Resize", ["image", "", "scales"], ["resized"], mode="linear"),
    ],
    {"i": ("int64", [9]), "x": [9], "image": [1, 2, 3, 3]},
    {
        **{name: ("int64", [9]) for name in ("quotient", "rest", "integer")},
        "single": [9],
        "double": ("float64", [9]),
        "half": ("float16", [9]),
        "erf": [9],
        "resized": [1, 2, 6, 6],
    },
    {"i3": np.int64(-3), "big": np.float32(2**40), "scales": np.array([1, 1, 2, 2], "float32")},
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of all tests here: a model is imported and checked once, and built for each board."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("architecture", ARM)
@pytest.mark.parametrize(
    ("body", "rules"),
    [
        (NETWORK, {"depth_first", "dense", "softmax"}),
        (CONVOLUTIONS, {"convolution", "winograd"}),
        (MANY_CHANNELS, {"winograd"}),
        (WINDOWS, {"depthwise", "max_pool"}),
        (ROWS_OF_WINDOWS, {"depthwise"}),
        (DEPTH_FIRST, {"depth_first"}),
        (ATTENTION, {"convolution", "interleaved", "layer_norm", "dense", "product", "softmax"}),
        (CODES, {"block_quantized_few_rows", "block_quantized_many_rows", "dot_products"}),
        (ARITHMETIC, set()),
    ],
    ids=[
        "network",
        "convolutions",
        "many channels",
        "windows",
        "rows of windows",
        "depth first",
        "attention",
        "codes",
        "arithmetic",
    ],
)
def test_an_emulated_board_gives_the_same_answers(
    body, rules, architecture, tmp_path, context, cache, agents
):
    agent = ARM[architecture].agent
    emulator = {"armv7": "qemu-arm", "aarch64": "qemu-aarch64"}[agent]
    if not subprocesses.first_installed_program(emulator):
        pytest.skip(f"{emulator} is not installed")
    model, profile = Model("model", str(save(tmp_path / "model.onnx", body))), ARM[architecture]
    prepared = prepare_model(context, model, HOST, cache)
    artifact = find_or_build_model(context, prepared, profile, cache)
    assert {kernel.rule for kernel in artifact.kernels} - {"general", "transpose"} == rules
    board = Device("board", profile, "qemu:")
    samples = executor.measure_job(
        context,
        board,
        BuildWithAgent(model, prepared, artifact, agents(agent)),
        MeasurementSettings.once(),
    )
    assert samples.agreement.right, samples.agreement
