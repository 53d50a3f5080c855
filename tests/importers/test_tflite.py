"""TFLite files: what comes out computes what LiteRT does; what is none, or holds what cannot be
imported, is refused in words.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

from host_profile import HOST
from operator_compute_dtypes import types_of
from PIL import Image
from tflite_models import Graph

from farm import importers
from farm.compiler import host_run
from farm.errors import ModelError
from farm.importers import summary
from farm.inputs.read import read_inputs
from farm.types import Model, PreprocessSettings, TensorSpec
from farm.types.layer_variable_names import layer_name_of_variable

FILES = Path(__file__).parent.parent / "data"  # tools/make-tflite-test-models
SAME, VALID = 0, 1  # padding
RELU, RELU_N1_TO_1, RELU6 = 1, 2, 3
numbers = np.random.default_rng(4)


def draw(*shape: int) -> np.ndarray:
    return numbers.standard_normal(shape).astype(np.float32)


def snr_db(ours: np.ndarray, theirs: np.ndarray) -> float:
    signal, noise = (
        np.square(theirs, dtype=np.float64).sum(),
        np.square(ours.astype(np.float64) - theirs).sum(),
    )
    return float(10 * np.log10(signal / noise)) if noise else np.inf


def both(imported, example=None):
    """Our answers and LiteRT's."""
    example = example or imported.example
    ours = host_run.compile_host_runner(imported.module, imported.weights, HOST)(
        [example[spec.name] for spec in imported.inputs]
    )
    theirs = imported.reference(example)
    assert [(one.shape, one.dtype) for one in ours] == [(one.shape, one.dtype) for one in theirs]
    assert [(spec.shape, spec.dtype) for spec in imported.outputs] == [
        (one.shape, one.dtype.name) for one in theirs
    ]
    return ours, theirs


class Trying(Graph):
    """A graph of many operators on the same inputs, each with an output of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.rows = self.tensor("image", [1, 9, 8, 4]), self.tensor("rows", [3, 6])
        self.outputs: list[int] = []

    def tried(self, name, inputs, shape, options="", dtype="float32", **fields):
        made = self.tensor(f"{name} {len(self.outputs)}", shape, dtype)
        self.op(name, inputs, [made], options, **fields)
        self.outputs.append(made)
        return made

    def numbers(self, *values, dtype="int32"):
        return self.constant(f"numbers {len(self._tensors)}", np.array(values, dtype))


def convolutions(graph: Trying) -> None:
    x = graph.image
    for padding, activation, stride, dilation in (
        (SAME, RELU6, 2, 1),
        (VALID, RELU, 1, 2),
        (SAME, RELU_N1_TO_1, 1, 1),
    ):
        weight, bias = (
            graph.constant(f"w{activation}", draw(5, 3, 3, 4)),
            graph.constant(f"b{activation}", draw(5)),
        )
        sides = [-(-side // stride) if padding == SAME else side - 2 * dilation for side in (9, 8)]
        how = {
            "padding": padding,
            "fusedActivationFunction": activation,
            "strideH": stride,
            "strideW": stride,
        }
        dilations = {"dilationHFactor": dilation, "dilationWFactor": dilation}
        graph.tried(
            "CONV_2D", [x, weight, bias], [1, *sides, 5], "Conv2DOptions", **how, **dilations
        )
    strides = {"strideH": 2, "strideW": 2}
    for times in (1, 2):
        inputs = [
            x,
            graph.constant(f"d{times}", draw(1, 3, 3, 4 * times)),
            graph.constant(f"db{times}", draw(4 * times)),
        ]
        how = {"padding": SAME, "depthMultiplier": times, **strides}
        graph.tried(
            "DEPTHWISE_CONV_2D", inputs, [1, 5, 4, 4 * times], "DepthwiseConv2DOptions", **how
        )
    inputs = [graph.numbers(1, 18, 16, 3), graph.constant("t", draw(3, 2, 2, 4)), x]
    graph.tried(
        "TRANSPOSE_CONV", inputs, [1, 18, 16, 3], "TransposeConvOptions", padding=SAME, **strides
    )
    window = {"filterHeight": 3, "filterWidth": 3, **strides}
    for name, padding, sides in (
        ("AVERAGE_POOL_2D", SAME, (5, 4)),
        ("MAX_POOL_2D", VALID, (4, 3)),
        ("AVERAGE_POOL_2D", VALID, (4, 3)),
    ):
        graph.tried(name, [x], [1, *sides, 4], "Pool2DOptions", padding=padding, **window)


def images(graph: Trying) -> None:
    x = graph.image
    for half, corners in ((True, False), (False, True), (False, False)):
        size, how = graph.numbers(13, 5), {"halfPixelCenters": half, "alignCorners": corners}
        graph.tried("RESIZE_BILINEAR", [x, size], [1, 13, 5, 4], "ResizeBilinearOptions", **how)
        graph.tried(
            "RESIZE_NEAREST_NEIGHBOR",
            [x, size],
            [1, 13, 5, 4],
            "ResizeNearestNeighborOptions",
            **how,
        )
    widths = graph.numbers([0, 0], [1, 2], [0, 3], [0, 0])
    graph.tried("PAD", [x, widths], [1, 12, 11, 4], "PadOptions")
    graph.tried("MIRROR_PAD", [x, widths], [1, 12, 11, 4], "MirrorPadOptions", mode=0)
    graph.tried("MEAN", [x, graph.numbers(1, 2)], [1, 4], "ReducerOptions", keepDims=False)
    graph.tried("REDUCE_MAX", [x, graph.numbers(-1)], [1, 9, 8, 1], "ReducerOptions", keepDims=True)
    graph.tried("DEPTH_TO_SPACE", [x], [1, 18, 16, 1], "DepthToSpaceOptions", blockSize=2)
    even = graph.tried(
        "SLICE",
        [x, graph.numbers(0, 1, 0, 0), graph.numbers(1, 8, 8, 4)],
        [1, 8, 8, 4],
        "SliceOptions",
    )
    graph.tried("SPACE_TO_DEPTH", [even], [1, 4, 4, 16], "SpaceToDepthOptions", blockSize=2)
    graph.tried("PRELU", [x, graph.constant("alpha", draw(1, 1, 4))], [1, 9, 8, 4])
    norm = {"radius": 1, "bias": 1.0, "alpha": 0.5, "beta": 0.7}
    graph.tried(
        "LOCAL_RESPONSE_NORMALIZATION",
        [x],
        [1, 9, 8, 4],
        "LocalResponseNormalizationOptions",
        **norm,
    )
    graph.tried(
        "ADD",
        [x, graph.constant("sum", draw(4))],
        [1, 9, 8, 4],
        "AddOptions",
        fusedActivationFunction=RELU,
    )


def rows(graph: Trying) -> None:
    x = graph.rows
    weight, bias = graph.constant("dense", draw(5, 6)), graph.constant("dense bias", draw(5))
    graph.tried(
        "FULLY_CONNECTED",
        [x, weight, bias],
        [3, 5],
        "FullyConnectedOptions",
        fusedActivationFunction=RELU,
    )
    graph.tried("FULLY_CONNECTED", [x, weight, -1], [3, 5], "FullyConnectedOptions")
    for name in (
        "EXP",
        "TANH",
        "LOGISTIC",
        "ELU",
        "HARD_SWISH",
        "ABS",
        "FLOOR",
        "NEG",
        "SIN",
        "SQUARE",
        "RELU",
        "RELU6",
        "ROUND",
    ):
        graph.tried(name, [x], [3, 6])
    graph.tried("GELU", [x], [3, 6], "GeluOptions", approximate=False)
    graph.tried("LEAKY_RELU", [x], [3, 6], "LeakyReluOptions", alpha=0.2)
    graph.tried("SOFTMAX", [x], [3, 6], "SoftmaxOptions", beta=1.0)
    graph.tried("LOG_SOFTMAX", [x], [3, 6], "LogSoftmaxOptions")
    graph.tried("L2_NORMALIZATION", [x], [3, 6], "L2NormOptions")
    for name in ("SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"):
        options = {"SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}.get(name, "")
        graph.tried(name, [x, graph.constant(f"{name} by", 1 + np.abs(draw(6)))], [3, 6], options)
    graph.tried("TRANSPOSE", [x, graph.numbers(1, 0)], [6, 3], "TransposeOptions")
    graph.tried("CONCATENATION", [x, x], [3, 12], "ConcatenationOptions", axis=-1)
    graph.tried("GATHER", [x, graph.numbers(2, 0, 1, 1)], [4, 6], "GatherOptions", axis=0)
    graph.tried("PACK", [x, x], [3, 2, 6], "PackOptions", axis=1, valuesCount=2)
    graph.tried("RESHAPE", [x, graph.numbers(2, 9)], [2, 9], "ReshapeOptions", newShape=[2, 9])
    masks = {"beginMask": 1, "endMask": 2, "shrinkAxisMask": 0}
    inputs = [x, graph.numbers(0, 1), graph.numbers(2, 0), graph.numbers(1, 2)]
    graph.tried("STRIDED_SLICE", inputs, [2, 3], "StridedSliceOptions", **masks)
    last = [x, graph.numbers(-1, 0), graph.numbers(0, 6), graph.numbers(1, 1)]
    graph.tried(
        "STRIDED_SLICE", last, [6], "StridedSliceOptions", beginMask=0, endMask=0, shrinkAxisMask=1
    )
    graph.tried("ARG_MAX", [x, graph.numbers(1)], [3], "ArgMaxOptions", dtype="int64", outputType=4)
    graph.tried("CAST", [x], [3, 6], "CastOptions", dtype="int32", inDataType=0, outDataType=2)
    graph.tried(
        "GREATER",
        [x, graph.constant("nothing", np.zeros(6, np.float32))],
        [3, 6],
        "GreaterOptions",
        dtype="bool",
    )
    graph.tried("SUM", [x, graph.numbers(0)], [6], "ReducerOptions", keepDims=False)
    graph.tried(
        "CUMSUM",
        [x, graph.constant("along", np.array(1, np.int32))],
        [3, 6],
        "CumsumOptions",
        exclusive=False,
        reverse=False,
    )
    graph.tried(
        "BATCH_MATMUL",
        [x, graph.constant("other", draw(6, 2))],
        [3, 2],
        "BatchMatMulOptions",
        adjX=False,
        adjY=False,
    )
    graph.tried("REVERSE_V2", [x, graph.numbers(1)], [3, 6], "ReverseV2Options")
    graph.tried("TILE", [x, graph.numbers(2, 1)], [6, 6], "TileOptions")
    left, right = (graph.tensor(side, [3, 3]) for side in ("left", "right"))
    graph.op(
        "SPLIT",
        [graph.constant("across", np.array(1, np.int32)), x],
        [left, right],
        "SplitOptions",
        numSplits=2,
    )
    lines = [graph.tensor(f"line {number}", [6]) for number in range(3)]
    graph.op("UNPACK", [x], lines, "UnpackOptions", num=3, axis=0)
    graph.outputs += [left, right, *lines]
    graph.tried(
        "EXPAND_DIMS",
        [x, graph.constant("where", np.array(1, np.int32))],
        [3, 1, 6],
        "ExpandDimsOptions",
    )


@pytest.mark.parametrize("add", [convolutions, images, rows])
def test_operators_compute_what_litert_does(add, tmp_path, load):
    graph = Trying()
    add(graph)
    inputs = [graph.rows] if add is rows else [graph.image]
    imported = load(graph.save(tmp_path / "many.tflite", inputs, graph.outputs))
    for spec, one, other in zip(imported.outputs, *both(imported), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5, err_msg=spec.name)


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        ([3, 1, 2048], (1, 2048)),
        ([2, 5, 1, 64], (1, 64)),
        ([4, 32], (4, 32)),
        ([2, 128, 16], (128, 16)),
        ([3, 1, 100], (1, 128)),
        ([3, 6, 200], (4, 128)),
    ],
    ids=["long", "frames", "two axes", "long columns", "padded", "cut"],
)
def test_a_fourier_transform_and_what_follows_are_right(shape, lengths, tmp_path, load):
    graph = Graph()
    height, width = lengths
    sums = [*shape[:-2], height, width // 2 + 1]
    flat = [extent for place, extent in enumerate(sums) if extent != 1 or place != len(sums) - 2]
    x, transform = graph.tensor("x", shape), graph.tensor("sums", sums, "complex64")
    size = graph.constant("lengths", np.array(lengths, np.int32))
    graph.op("RFFT2D", [x, size], [transform])
    shown = [graph.tensor(name, sums) for name in ("size", "real", "imaginary")]
    for name, result in zip(("COMPLEX_ABS", "REAL", "IMAG"), shown, strict=True):
        graph.op(name, [transform], [result])
    kept = graph.tensor("kept", flat, "complex64")
    if flat == sums:
        target = graph.constant("shape", np.array(flat, np.int32))
        graph.op("RESHAPE", [transform, target], [kept], "ReshapeOptions", newShape=flat)
    else:
        graph.op("SQUEEZE", [transform], [kept], "SqueezeOptions", squeezeDims=[-2])
    numbers_of_parts = graph.tensor("cast", flat)
    graph.op("CAST", [kept], [numbers_of_parts], "CastOptions", inDataType=8, outDataType=0)
    outputs = [*shown, numbers_of_parts]
    imported = load(graph.save(tmp_path / "transform.tflite", [x], outputs))
    for ours, theirs in zip(*both(imported), strict=True):
        assert snr_db(ours, theirs) > 110


@pytest.mark.parametrize("adjoint", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("batches", [([2], [2]), ([3, 2], [3, 2]), ([1, 2], [2])])
def test_a_product_of_computed_matrices_is_right(batches, adjoint, tmp_path, load):
    graph = Graph()
    shapes = [[*batches[0], 3, 4], [*batches[1], 4, 5]]
    shapes = [
        [*shape[:-2], *(reversed(shape[-2:]) if turned else shape[-2:])]
        for shape, turned in zip(shapes, adjoint, strict=True)
    ]
    x = [graph.tensor(name, shape) for name, shape in zip("ab", shapes, strict=True)]
    factors = [graph.tensor(f"{name}2", shape) for name, shape in zip("ab", shapes, strict=True)]
    for one, factor in zip(x, factors, strict=True):
        graph.op("ABS", [one], [factor])
    y = graph.tensor("y", [*batches[0], 3, 5])
    options = dict(zip(("adjX", "adjY"), adjoint, strict=True))
    graph.op("BATCH_MATMUL", factors, [y], "BatchMatMulOptions", **options)
    ours, theirs = both(load(graph.save(tmp_path / "product.tflite", x, [y])))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)


@pytest.mark.parametrize("has_buffer", [True, False])
def test_a_constant_without_elements_needs_no_data(has_buffer, tmp_path, load):
    """The shape of a scalar: converters write it so, and LiteRT reads it."""
    graph = Graph()
    x, scalar, y = graph.tensor("x", [1]), graph.tensor("scalar", []), graph.tensor("y", [3])
    axes = (
        graph.constant("no axes", np.zeros(0, np.int32))
        if has_buffer
        else graph.tensor("no axes", [0], "int32")
    )
    graph.op("RESHAPE", [x, axes], [scalar])
    graph.op("MUL", [scalar, graph.constant("w", draw(3))], [y], "MulOptions")
    ours, theirs = both(load(graph.save(tmp_path / "scalar.tflite", [x], [y])))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)


@pytest.mark.parametrize(("name", "least_db"), [("float", 100), ("half", 100), ("weights", 25)])
def test_a_network_of_tensorflow_agrees(name, least_db, load):
    imported = load(FILES / f"small-{name}.tflite")
    assert imported.engine.startswith("litert ") and [
        (one.name, one.shape) for one in imported.inputs
    ] == [("image", (1, 16, 16, 3))]
    ours, theirs = both(imported, {"image": numbers.random((1, 16, 16, 3)).astype(np.float32)})
    assert snr_db(ours[0], theirs[0]) > least_db and theirs[0].std() > 0.02


def test_a_quantized_network_of_tensorflow_computes_in_integers(load):
    imported = load(FILES / "small-int8.tflite")
    assert (imported.inputs[0].dtype, imported.outputs[0].dtype) == ("uint8", "uint8")
    assert types_of(imported, "relax.nn.conv2d") == [("int8", "int32")] * 4
    assert types_of(imported, "relax.matmul") == [("int8", "int32")]
    ours, theirs = both(imported)
    assert snr_db(ours[0], theirs[0]) > 30 and len(np.unique(theirs[0])) > 3


def test_an_lstm_of_bytes_agrees(load):
    imported = load(FILES / "recurrent-int8.tflite")
    for _ in range(4):
        sequence = numbers.standard_normal((1, 6, 4)).astype(np.float32)
        ours, theirs = both(imported, {"sequence": sequence})
        np.testing.assert_allclose(ours[0], theirs[0], atol=2 * np.ptp(theirs[0]) / 64)


def test_an_lstm_of_bytes_with_tiny_states_is_refused(tmp_path, load):
    content = (FILES / "recurrent-int8.tflite").read_bytes()
    scale = struct.pack("<f", 2.0**-13)
    assert content.count(scale) == 1
    (tmp_path / "tiny.tflite").write_bytes(content.replace(scale, struct.pack("<f", 2.0**-16)))
    with pytest.raises(ModelError, match="LiteRT itself"):
        load(tmp_path / "tiny.tflite")


def test_an_image_is_the_same_to_a_quantized_network_as_to_that_of_floats(tmp_path, load):
    Image.fromarray(numbers.integers(0, 256, (16, 16, 3), np.uint8)).save(tmp_path / "noise.png")
    answers = []
    for name in ("float", "int8"):
        imported = load(FILES / f"small-{name}.tflite")
        assert (imported.inputs[0].scale > 0) == (name == "int8")
        fed = read_inputs(tmp_path / "noise.png", imported.inputs, PreprocessSettings(stated=True))
        answers.append(both(imported, fed)[0][0])
    assert snr_db(answers[1] / 256, answers[0]) > 20


def test_layers_have_the_names_and_values_of_the_file(load):
    imported = load(FILES / "small-float.tflite")
    found = list(imported.layers(imported.example))
    assert [operator for _, operator, _ in found][-2:] == ["FULLY_CONNECTED", "SOFTMAX"]
    np.testing.assert_array_equal(found[-1][2], imported.reference(imported.example)[0])
    bindings = [
        binding for block in imported.module["main"].body.blocks for binding in block.bindings
    ]
    assert {layer_name_of_variable(binding.var.name) for binding in bindings} >= {
        name for name, _, _ in found
    }


def flattened(tmp_path) -> Path:
    """A batch that is open, flattened as Keras does it: the shape of a tensor is taken apart and
    put together.
    """
    graph = Graph()
    x = graph.tensor("x", [1, 2, 3], open_to=[-1, 2, 3])
    shape, count, whole = (
        graph.tensor("shape", [3], "int32"),
        graph.tensor("count", [], "int32"),
        graph.tensor("whole", [2], "int32"),
    )
    flat, y = (
        graph.tensor("flat", [1, 6], open_to=[-1, 6]),
        graph.tensor("y", [1, 4], open_to=[-1, 4]),
    )
    at = [
        graph.constant(name, np.array([value], np.int32))
        for name, value in (("begin", 0), ("end", 1), ("step", 1))
    ]
    graph.op("SHAPE", [x], [shape], "ShapeOptions", outType=2)
    graph.op("STRIDED_SLICE", [shape, *at], [count], "StridedSliceOptions", shrinkAxisMask=1)
    graph.op(
        "PACK",
        [count, graph.constant("six", np.array(6, np.int32))],
        [whole],
        "PackOptions",
        valuesCount=2,
    )
    graph.op("RESHAPE", [x, whole], [flat])
    graph.op(
        "FULLY_CONNECTED", [flat, graph.constant("w", draw(4, 6)), -1], [y], "FullyConnectedOptions"
    )
    return graph.save(tmp_path / "flat.tflite", [x], [y])


@pytest.mark.parametrize("batch", [1, 5])
def test_a_batch_that_is_left_open_is_one_or_what_is_said(batch, tmp_path, load):
    imported = load(flattened(tmp_path), **({"x": (batch, 2, 3)} if batch > 1 else {}))
    assert imported.inputs == (TensorSpec("x", (batch, 2, 3), "float32"),) and bool(
        imported.fixed
    ) == (batch == 1)
    ours, theirs = both(imported)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [({"x": (1, 2, 4)}, "has ['any', 2, 3] there"), ({"y": (1, 2)}, "has no input 'y'")],
)
def test_a_shape_that_does_not_fit_is_refused(shapes, words, tmp_path, load):
    with pytest.raises(ModelError) as caught:
        load(flattened(tmp_path), **shapes)
    assert words in str(caught.value)


def refused(tmp_path, **named) -> Graph:
    graph = Graph()
    x, y, z = (
        graph.tensor("x", [4]),
        graph.tensor("y", [4]),
        graph.tensor("z", [4], scale=named.get("scale")),
    )
    graph.op(named["name"], [x], [y], custom=named.get("custom", ""))
    graph.op("RELU", [y], [z])
    return graph.save(tmp_path / "refused.tflite", [x], [z])


def test_operators_that_cannot_be_imported_are_named_up_front(tmp_path, load):
    path = refused(tmp_path, name="CUSTOM", custom="FlexErf")
    with pytest.raises(
        ModelError, match="uses 1 operator that cannot be imported: custom FlexErf"
    ) as caught:
        load(path)
    assert "custom FlexErf x1 (y)" in caught.value.why and "tf2onnx" in caught.value.fix
    said = summary.summarize_onnx_or_tflite_file(Model("m", str(path)))
    assert said.operators == {"custom FlexErf": 1, "RELU": 1} and [
        one.nodes for one in said.problems
    ] == [("y",)]


@pytest.mark.parametrize(("scale", "zero"), [(0.2, 3), (0.1, 4)])
def test_a_quantized_tensor_where_tvm_has_none_is_refused(scale, zero, tmp_path, load):
    graph = Graph()
    x, y = (
        graph.tensor("x", [1, 2, 3, 4], "int8", 0.1, 3),
        graph.tensor("y", [1, 3, 2, 4], "int8", scale, zero),
    )
    graph.op(
        "TRANSPOSE",
        [x, graph.constant("axes", np.array([0, 2, 1, 3], np.int32))],
        [y],
        "TransposeOptions",
    )
    with pytest.raises(ModelError, match="TRANSPOSE of tensors of several scales"):
        load(graph.save(tmp_path / "scales.tflite", [x], [y]))


def test_scales_that_tvm_does_not_read_are_refused(tmp_path, load):
    graph = Graph()
    x, y = graph.tensor("x", [1, 6], "int8", 0.1, 3), graph.tensor("y", [1, 2], "int8", 0.1, 3)
    weight = graph.constant("w", np.ones((2, 6), np.int8), scale=[0.1, 0.2], zero=1)
    graph.op("FULLY_CONNECTED", [x, weight, -1], [y], "FullyConnectedOptions", version=4)
    path = graph.save(tmp_path / "zeros.tflite", [x], [y])
    with pytest.raises(ModelError, match=r"FULLY_CONNECTED .*zero points") as caught:
        load(path)
    assert (
        summary.summarize_onnx_or_tflite_file(Model("m", str(path))).problems
        and "tf2onnx" in caught.value.fix
    )


def test_two_tensors_of_one_name_are_refused(tmp_path, load):
    graph = Graph()
    x, y, z = graph.tensor("x", [4]), graph.tensor("same", [4]), graph.tensor("same", [4])
    graph.op("EXP", [x], [y])
    graph.op("RELU", [y], [z])
    with pytest.raises(ModelError, match="two tensors have one name"):
        load(graph.save(tmp_path / "same.tflite", [x], [z]))


@pytest.mark.parametrize("cut", [3, 20, 500, -200, -1])
def test_a_file_that_is_cut_off_or_none_is_refused(cut, tmp_path, load):
    path = tmp_path / "cut.tflite"
    path.write_bytes(
        (FILES / "small-float.tflite").read_bytes()[:cut]
        if cut > 3 or cut < -1
        else b"PK\x03\x04 and more"
    )
    with pytest.raises(ModelError, match="TFLite file"):
        load(path)


def test_without_its_packages_the_error_says_what_to_install(monkeypatch, load):
    monkeypatch.setitem(sys.modules, "tflite", None)
    with pytest.raises(ModelError) as caught:
        load(FILES / "small-float.tflite")
    assert "pip install 'tvm-farm[tflite]'" in caught.value.fix


def test_types_are_the_files(tmp_path):
    with pytest.raises(ModelError, match="fixes its element types"):
        importers.import_model(
            Model("m", str(FILES / "small-float.tflite"), dtypes={"": "float16"}), tmp_path
        )
