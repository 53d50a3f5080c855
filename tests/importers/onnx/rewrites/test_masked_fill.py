"""`x[mask] = number` as torch exports it: NonZero and ScatterND become a Where."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from farm.importers.onnx.rewrites.masked_fill import masked_fills_to_where

SHAPE = [3, 4, 2]
MINUS_ONE = np.array([-1], np.int64)


def writes(mask, value, reduction="none"):
    """The nodes that write a value to `x` where `mask` is true; the result is `y`."""
    return [
        helper.make_node("NonZero", [mask], ["found"]),
        helper.make_node("Transpose", ["found"], ["points"]),
        helper.make_node("Reshape", [mask, "minus_one"], ["flat"]),
        helper.make_node("Cast", ["flat"], ["numbers"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["numbers"], ["count"]),
        helper.make_node("Expand", [value, "count"], ["many"]),
        helper.make_node("Reshape", ["many", "minus_one"], ["updates"]),
        helper.make_node("ScatterND", ["x", "points", "updates"], ["y"], reduction=reduction),
    ]


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_a_number_is_written_where_a_mask_is_true(shape, onnx_file, load, agree):
    nodes = [helper.make_node("Less", ["x", "bound"], ["mask"]), *writes("mask", "value")]
    weights = {
        "bound": np.float32(0.2),
        "value": np.full(shape, 7, np.float32),
        "minus_one": MINUS_ONE,
    }
    imported = load(onnx_file(nodes, {"x": SHAPE}, {"y": SHAPE}, weights, opset=18))
    assert not imported.data_dependent
    agree(imported)


def test_a_number_that_is_computed_is_written(onnx_file, load, agree):
    nodes = [
        helper.make_node("Less", ["x", "bound"], ["mask"]),
        helper.make_node("ReduceMax", ["x"], ["value"], keepdims=0),
        *writes("mask", "value"),
    ]
    weights = {"bound": np.float32(0.2), "minus_one": MINUS_ONE}
    agree(load(onnx_file(nodes, {"x": SHAPE}, {"y": SHAPE}, weights, opset=18)))


def test_a_mask_of_the_first_axes_writes_rows():
    """Updates of one number a row are no ScatterND; those of torch repeat it along the row."""
    rows = [
        helper.make_node("NonZero", ["mask"], ["found"]),
        helper.make_node("Transpose", ["found"], ["points"]),
        helper.make_node("Expand", ["value", "row"], ["updates"]),
        helper.make_node("ScatterND", ["x", "points", "updates"], ["y"]),
    ]
    given = model(rows, {"value": np.float32(7), "row": np.array([2, *SHAPE[1:]], np.int64)})
    made = masked_fills_to_where(given)
    assert [node.op_type for node in made.graph.node] == ["Constant", "Reshape", "Where"]
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    mask = np.array([True, False, True])
    assert same_answers(given, made, {"x": x, "mask": mask})


def test_numbers_other_than_0_are_true():
    given = model(
        [
            helper.make_node("NonZero", ["mask"], ["found"]),
            helper.make_node("Transpose", ["found"], ["points"]),
            helper.make_node("Expand", ["value", "two"], ["updates"]),
            helper.make_node("ScatterND", ["x", "points", "updates"], ["y"]),
        ],
        {"value": np.float32(7), "two": np.array([2], np.int64)},
        mask=(TensorProto.INT32, SHAPE),
    )
    made = masked_fills_to_where(given)
    assert [node.op_type for node in made.graph.node] == ["Cast", "Where"]
    mask = np.zeros(SHAPE, np.int32)
    mask[0, 1, 1], mask[2, 3, 0] = 2, -1
    assert same_answers(given, made, {"x": np.ones(SHAPE, np.float32), "mask": mask})


def test_points_that_are_not_turned_are_no_mask():
    """Of a mask with as many true places as axes, NonZero's result is square."""
    nodes = writes("mask", "value")
    nodes[1] = helper.make_node("Transpose", ["found"], ["points"], perm=[0, 1])
    weights = {"value": np.float32(1), "minus_one": MINUS_ONE}
    given = model(nodes, weights, mask=(TensorProto.BOOL, SHAPE))
    assert masked_fills_to_where(given) is given


@pytest.mark.parametrize(
    ("weights", "reduction"),
    [
        ({"value": np.arange(2, dtype=np.float32)}, "none"),
        ({"value": np.float32(1)}, "add"),
        ({"value": np.ones((1, 1, 1, 1), np.float32)}, "none"),
    ],
    ids=["numbers that differ", "numbers that are added", "a number of more axes"],
)
def test_other_writes_stay_as_they_are(weights, reduction):
    given = model(
        writes("mask", "value", reduction),
        weights | {"minus_one": MINUS_ONE},
        mask=(TensorProto.BOOL, SHAPE),
    )
    assert masked_fills_to_where(given) is given


def test_places_that_are_read_elsewhere_too_stay():
    nodes = [*writes("mask", "value"), helper.make_node("Size", ["found"], ["size"])]
    given = model(
        nodes,
        {"value": np.float32(1), "minus_one": MINUS_ONE},
        mask=(TensorProto.BOOL, SHAPE),
        outputs={"size": (TensorProto.INT64, [])},
    )
    made = masked_fills_to_where(given)
    assert [node.op_type for node in made.graph.node] == ["NonZero", "Where", "Size"]


def model(nodes, weights, mask=(TensorProto.BOOL, SHAPE[:1]), outputs=None):
    outputs = {"y": (TensorProto.FLOAT, SHAPE)} | (outputs or {})
    graph = helper.make_graph(
        nodes,
        "writes",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE),
            helper.make_tensor_value_info("mask", *mask),
        ],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def same_answers(one, other, inputs):
    import onnxruntime

    first, second = (
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, inputs)
        for each in (one, other)
    )
    return all(np.array_equal(left, right) for left, right in zip(first, second, strict=True))
