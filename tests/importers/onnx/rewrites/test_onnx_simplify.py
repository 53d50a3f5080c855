"""ONNX graphs that say things in a roundabout way import all the same; what TVM converts wrong is
right, or refused by name.
"""

from __future__ import annotations

from pathlib import Path

import host_build
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from farm import importers
from farm.errors import ModelError
from farm.types import Model

node = helper.make_node


def answers(path: Path, **inputs: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Ours and ONNX Runtime's, on the example or on these inputs."""
    model = Model("test", str(path))
    imported = importers.import_model(model, path.parent)
    imported.example.update(inputs)
    return host_build.answers(imported), imported.reference(imported.example)


def same(path: Path, **inputs: np.ndarray) -> None:
    for ours, theirs in zip(*answers(path, **inputs), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=1e-6)


def test_shapes_computed_by_operators_are_constants(onnx_file):
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Mul", ["batch", "two"], ["half"]),
        node("Concat", ["half", "rest"], ["wanted"], axis=0),
        node("Reshape", ["x", "wanted"], ["y"]),
    ]
    weights = {
        "zero": np.array([0], np.int64),
        "two": np.array([2], np.int64),
        "rest": np.array([-1], np.int64),
    }
    same(onnx_file(nodes, {"x": [2, 3, 4]}, {"y": [4, 6]}, weights))


@pytest.mark.parametrize("batch", [2, "n"])
def test_halves_of_halves_are_constants_where_each_shape_depends_on_the_bounds_before(
    batch, onnx_file
):
    """As torch exports `chunk`: the shape of a half is that of a slice whose end is computed. An
    open batch stays open.
    """

    def half(given: str, made: str) -> list[object]:
        names = {name: f"{made}_{name}" for name in ("shape", "length", "more", "half")}
        return [
            node("Shape", [given], [names["shape"]]),
            node("Gather", [names["shape"], "one"], [names["length"]], axis=0),
            node("Add", [names["length"], "one"], [names["more"]]),
            node("Div", [names["more"], "two"], [names["half"]]),
            node("Slice", [given, "zero", names["half"], "one"], [made]),
        ]

    nodes = [*half("x", "first"), node("Relu", ["first"], ["middle"]), *half("middle", "y")]
    weights = {
        name: np.array([value], np.int64) for name, value in (("zero", 0), ("one", 1), ("two", 2))
    }
    path = onnx_file(nodes, {"x": [batch, 8, 3]}, {"y": [batch, 2, 3]}, weights)
    same(path, x=np.random.default_rng(3).standard_normal((2, 8, 3)).astype("float32"))
    assert importers.import_model(Model("test", str(path)), path.parent).inputs[0].open == (
        batch == "n"
    )


@pytest.mark.parametrize("yes", [True, False])
def test_a_branch_that_a_constant_chooses_is_the_graph(yes, onnx_file):
    ends = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2, 3])]
    branches = {
        "then_branch": helper.make_graph([node("Relu", ["x"], ["inner"])], "then", [], ends),
        "else_branch": helper.make_graph([node("Neg", ["x"], ["inner"])], "else", [], ends),
    }
    same(
        onnx_file(
            [node("If", ["yes"], ["y"], **branches)],
            {"x": [2, 3]},
            {"y": [2, 3]},
            {"yes": np.array(yes)},
        )
    )


def test_shapes_that_follow_from_a_branchs_constants_are_known(onnx_file):
    """The branch is folded before it is chosen, and has its constants as initializers then."""
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    index = numpy_helper.from_array(np.array([1], np.int64), "index")
    squeezed = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)]
    inner = {
        "then_branch": helper.make_graph([node("Squeeze", ["wide", "axes"], ["r"])], "a", [], []),
        "else_branch": helper.make_graph([node("Identity", ["wide"], ["r"])], "b", [], []),
    }
    for branch in inner.values():
        branch.output.add().CopyFrom(helper.make_tensor_value_info("r", TensorProto.FLOAT, None))
    nodes = [
        node("Unsqueeze", ["x", "axes"], ["wide"]),
        node("Shape", ["wide"], ["shape"]),
        node("Gather", ["shape", "index"], ["extent"]),
        node("Equal", ["extent", "axes"], ["one"]),
        node("If", ["one"], ["narrow"], **inner),
        node("Conv", ["narrow", "w"], ["inner"]),
    ]
    branches = {
        "then_branch": helper.make_graph(nodes, "then", [], squeezed, [axes, index]),
        "else_branch": helper.make_graph([node("Relu", ["x"], ["inner"])], "else", [], squeezed),
    }
    weights = {"yes": np.array(True), "w": np.ones((2, 2, 1), np.float32)}
    same(
        onnx_file(
            [node("If", ["yes"], ["y"], **branches)], {"x": [1, 2, 3]}, {"y": [1, 2, 3]}, weights
        )
    )


def test_outputs_that_are_known_from_shapes_are_constants(onnx_file):
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Mul", ["shape", "two"], ["twice"]),
        node("Shape", ["x"], ["middle"], start=1, end=-1),
        node("Size", ["x"], ["size"]),
        node("Relu", ["x"], ["y"]),
    ]
    outputs = {
        "shape": (TensorProto.INT64, [4]),
        "y": [2, 3, 5, 4],
        "twice": (TensorProto.INT64, [4]),
        "middle": (TensorProto.INT64, [2]),
        "size": (TensorProto.INT64, []),
    }
    same(onnx_file(nodes, {"x": [2, 3, 5, 4]}, outputs, {"two": np.array([2], np.int64)}))


IMAGE = {"x": [1, 2, 4, 5]}


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scale", [2.0, 1.6])
@pytest.mark.parametrize(("operator", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
def test_images_are_resized_as_old_opsets_say(operator, opset, scale, mode, onnx_file):
    scales = np.array([1, 1, scale, 2], np.float32)
    made = (
        node(operator, ["x"], ["y"], mode=mode, scales=scales.tolist())
        if opset == 7
        else node(operator, ["x", "s"], ["y"], mode=mode)
    )
    path = onnx_file(
        [made],
        IMAGE,
        {"y": [1, 2, int(4 * scale), 10]},
        {} if opset == 7 else {"s": scales},
        opset=opset,
    )
    if scale == 1.6:  # 6.4 rows of 4
        with pytest.raises(ModelError, match="no whole lengths"):
            answers(path)
    else:
        same(path)


@pytest.mark.parametrize("attributes", [{"alpha": 2.0}, {}], ids=["given", "default"])
def test_an_operator_that_onnx_defines_by_others_becomes_those(attributes, onnx_file):
    same(onnx_file([node("Celu", ["x"], ["y"], **attributes)], {"x": [2, 6]}, {"y": [2, 6]}))


@pytest.mark.parametrize(("operator", "of"), [("ReduceMax", -np.inf), ("ReduceMin", np.inf)])
def test_the_largest_of_nothing_but_infinities_is_infinite(operator, of, onnx_file):
    path = onnx_file(
        [node(operator, ["x"], ["y"], axes=[1], keepdims=0)], {"x": [3, 4]}, {"y": [3]}
    )
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    data[1] = of
    same(path, x=data)


def test_sorting_is_stable_and_needs_no_function_of_the_runtime(onnx_file):
    nodes = [node("TopK", ["x", "k"], ["values", "indices"], axis=1, largest=0)]
    path = onnx_file(
        nodes,
        {"x": [2, 37, 3]},
        {"values": [2, 9, 3], "indices": (TensorProto.INT64, [2, 9, 3])},
        {"k": np.array([9], np.int64)},
    )
    same(path, x=np.random.default_rng(0).integers(0, 6, (2, 37, 3)).astype(np.float32))


@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_isinf_tells_the_infinities_apart(sign, onnx_file):
    path = onnx_file(
        [node("IsInf", ["x"], ["y"], **{f"detect_{sign}": 0})],
        {"x": [4]},
        {"y": (TensorProto.BOOL, [4])},
    )
    same(path, x=np.array([np.inf, -np.inf, 1, np.nan], np.float32))


@pytest.mark.parametrize("operator", ["Sinh", "Cosh"])
def test_hyperbolic_functions_have_code(operator, onnx_file):
    same(onnx_file([node(operator, ["x"], ["y"])], {"x": [3, 5]}, {"y": [3, 5]}))


def test_layer_normalization_gives_its_mean_too(onnx_file):
    nodes = [node("LayerNormalization", ["x", "scale"], ["y", "mean", "inverse"], axis=-1)]
    same(
        onnx_file(
            nodes,
            {"x": [2, 8]},
            {"y": [2, 8], "mean": [2, 1], "inverse": [2, 1]},
            {"scale": np.ones(8, np.float32)},
        )
    )


@pytest.mark.parametrize(
    ("made", "weights", "words"),
    [
        (node("Mod", ["x", "x"], ["y"]), {}, "Mod: fmod=0"),
        (
            node("ConvTranspose", ["x", "w"], ["y"], output_shape=[9, 9]),
            {"w": np.ones((4, 1, 3, 3), np.float32)},
            "output_shape",
        ),
        (
            node("Resize", ["x", "", "s"], ["y"], mode="linear"),
            {"s": np.array([1, 1, 0.6, 0.6], np.float32)},
            "Resize: scales",
        ),
        (
            node("Resize", ["x", "", "s"], ["y"], mode="linear", antialias=1),
            {"s": np.array([1, 1, 0.5, 0.5], np.float32)},
            "antialias=1",
        ),
        (node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E5M2), {}, "float8e5m2"),
        (node("Unique", ["x"], ["y"]), {}, "Unique: the size of its result"),
        (
            node("Dropout", ["x", "ratio", "on"], ["y"]),
            {"ratio": np.float32(0.5), "on": np.bool_(True)},
            "Dropout: training_mode",
        ),
        (
            node("RoiAlign", ["x", "rois", "of"], ["y"], mode="max"),
            {"rois": np.ones((1, 4), np.float32), "of": np.zeros(1, np.int64)},
            "RoiAlign: mode='max'",
        ),
        (
            node("BatchNormalization", ["x", "w", "w", "w", "w"], ["z", "y", ""], training_mode=1),
            {"w": np.ones(4, np.float32)},
            "BatchNormalization: the running mean",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_tvm_converts_wrong_is_refused_by_operator_and_attribute(
    made, weights, words, onnx_file, load
):
    kind = TensorProto.FLOAT8E5M2 if made.op_type == "Cast" else TensorProto.FLOAT
    rank = {"Unique": 1, "BatchNormalization": 1}.get(made.op_type, 4)
    with pytest.raises(ModelError) as error:
        load(
            onnx_file(
                [made],
                {"x": [1, 4, 4, 4]},
                {"y": (kind, [None] * rank)},
                weights,
                20,
            )
        )
    assert words in error.value.what + error.value.why
