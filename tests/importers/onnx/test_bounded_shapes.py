"""Models whose extents depend on values: as in ONNX Runtime, whatever the values are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from host_build import assert_agrees_with_onnxruntime
from onnx import TensorProto, helper
from onnx_models import graph, node, save

from farm import importers
from farm.errors import ModelError
from farm.types import Model

RANDOM = np.random.default_rng(7)
ROWS, COLUMNS = 6, 4


def examples():
    """Inputs x [6, 4] and keep [6]: no rows, all rows, one, the last, and some."""
    masks = [np.zeros(ROWS, bool), np.ones(ROWS, bool), np.arange(ROWS) == 2]
    masks += [np.arange(ROWS) == ROWS - 1, RANDOM.random(ROWS) < 0.5]
    return [
        {"x": RANDOM.standard_normal((ROWS, COLUMNS)).astype(np.float32), "keep": mask}
        for mask in masks
    ]


EXAMPLES = examples()
INPUTS = {"x": [ROWS, COLUMNS], "keep": ("bool", [ROWS])}
# v: the rows of x that are kept, [n, 4]; at: their numbers, [n]; n: how many they are, [1]
SELECTION = [
    node("NonZero", ["keep"], ["places"]),
    node("Squeeze", ["places", "zero"], ["at"]),
    node("Gather", ["x", "at"], ["v"], axis=0),
    node("Shape", ["v"], ["shape"]),
    node("Slice", ["shape", "zero", "one", "zero"], ["n"]),
]


def table_of(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, COLUMNS])


CONSTANTS = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "minus_one": np.array([-1]),
    "minus_two": np.array([-2]),
    "four": np.array([4]),
    "five": np.array([5]),
    "end": np.array([2**63 - 1]),
    "half": np.array(0.5, np.float32),
    "w": RANDOM.standard_normal((COLUMNS, 3)).astype(np.float32),
    "row": RANDOM.standard_normal((2, COLUMNS)).astype(np.float32),
}
CASES = {
    "the places": [node("Identity", ["places"], ["y"])],
    "how many they are": [node("Identity", ["n"], ["y"])],
    "how many they are, as a number": [
        node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "half"], ["y"]),
    ],
    "elementwise": [node("Mul", ["v", "half"], ["h"]), node("Add", ["h", "v"], ["y"])],
    "rows of a product": [node("MatMul", ["v", "w"], ["p"]), node("Softmax", ["p"], ["y"])],
    "rows of a Gemm": [node("Gemm", ["v", "w"], ["y"])],
    "columns of a product": [
        node("Transpose", ["v"], ["t"]),
        node("MatMul", ["row", "t"], ["y"]),
    ],
    "a sum of products over the rows": [
        node("Transpose", ["v"], ["t"]),
        node("MatMul", ["t", "v"], ["y"]),
    ],
    "a softmax over the rows": [node("Softmax", ["v"], ["y"], axis=0)],
    "a sum over the rows": [node("ReduceSum", ["v", "zero"], ["y"], keepdims=0)],
    "a product over the rows": [node("ReduceProd", ["v"], ["y"], axes=[0])],
    "the sum of the squares of all": [node("ReduceSumSquare", ["v"], ["y"])],
    "a sum over the columns": [node("ReduceSum", ["v", "one"], ["y"], keepdims=0)],
    "the numbers of the best of each row": [node("ArgMax", ["v"], ["y"], axis=1, keepdims=0)],
    "running sums": [node("CumSum", ["v", "zero_scalar"], ["y"])],
    "the first rows": [node("Slice", ["v", "zero", "two", "zero"], ["y"])],
    "the rows from the second on": [node("Slice", ["v", "one", "end", "zero"], ["y"])],
    "all rows but the last": [node("Slice", ["v", "zero", "minus_one", "zero"], ["y"])],
    "the last two rows": [node("Slice", ["v", "minus_two", "end", "zero"], ["y"])],
    "every second row": [node("Slice", ["v", "zero", "end", "zero", "two"], ["y"])],
    "columns": [node("Slice", ["v", "one", "end", "one"], ["y"])],
    "a part of x as long as the rows": [node("Slice", ["x", "zero", "n", "zero"], ["y"])],
    "the rest of x": [node("Slice", ["x", "n", "end", "zero"], ["y"])],
    "the rest of x before the rows, which are six together": [
        node("Slice", ["x", "n", "end", "zero"], ["rest"]),
        node("Concat", ["rest", "v"], ["y"], axis=0),
    ],
    "rows behind all that there are": [node("Slice", ["v", "six", "end", "zero"], ["y"])],
    "all elements in one row": [node("Reshape", ["v", "minus_one"], ["y"])],
    "pairs": [
        node("Reshape", ["v", "pairs"], ["p"]),
        node("Mul", ["p", "half"], ["y"]),
    ],
    "a flat table": [
        node("Unsqueeze", ["v", "zero"], ["u"]),
        node("Flatten", ["u"], ["y"], axis=2),
    ],
    "more axes": [node("Unsqueeze", ["v", "ends"], ["y"])],
    "rows behind other rows": [node("Concat", ["row", "v"], ["y"], axis=0)],
    "rows before other rows": [node("Concat", ["v", "row"], ["y"], axis=0)],
    "the rows twice, and others": [node("Concat", ["v", "v", "row", "v"], ["y"], axis=0)],
    "columns side by side": [node("Concat", ["v", "v"], ["y"], axis=1)],
    "pieces of columns": [
        node("Split", ["v", "sizes"], ["a", "b"], axis=1),
        node("Concat", ["b", "a"], ["y"], axis=1),
    ],
    "rows padded to a constant number": [
        node("Sub", ["six", "n"], ["missing"]),
        node("Concat", ["zero", "zero", "missing", "zero"], ["pads"], axis=0),
        node("Pad", ["v", "pads", "half"], ["y"]),
    ],
    "rows padded by one before and two behind": [
        node("Pad", ["v", "pads_const", "half"], ["y"]),
    ],
    "elements padded in one row": [
        node("Reshape", ["v", "minus_one"], ["flat"]),
        node("Sub", ["six", "n"], ["missing"]),
        node("Mul", ["missing", "four"], ["places_missing"]),
        node("Concat", ["zero", "places_missing"], ["pads"], axis=0),
        node("Pad", ["flat", "pads"], ["padded"]),
        node("Reshape", ["padded", "table"], ["y"]),
    ],
    "zeros of their number": [node("ConstantOfShape", ["n"], ["y"])],
    "their numbers from zero on": [
        node("Squeeze", ["n", "zero"], ["count"]),
        node("Range", ["zero_scalar", "count", "one_scalar"], ["y"]),
    ],
    "a row for each": [
        node("Concat", ["n", "four"], ["wanted"], axis=0),
        node("Slice", ["row", "zero", "one", "zero"], ["single"]),
        node("Expand", ["single", "wanted"], ["e"]),
        node("Add", ["e", "v"], ["y"]),
    ],
    "a row repeated": [
        node("Concat", ["n", "one"], ["times"], axis=0),
        node("Tile", ["row", "times"], ["y"]),
    ],
    "rows in the order of a column": [
        node("Gather", ["v", "one_scalar"], ["column"], axis=1),
        node("TopK", ["column", "n"], ["best", "order"]),
        node("Gather", ["v", "order"], ["y"], axis=0),
    ],
    "the three best at most": [
        node("Gather", ["v", "one_scalar"], ["column"], axis=1),
        node("Min", ["n", "three"], ["k"]),
        node("TopK", ["column", "k"], ["y", "order"], largest=0),
    ],
    "those of the rows that begin with a positive number": [
        node("Gather", ["v", "zero_scalar"], ["column"], axis=1),
        node("Greater", ["column", "nothing"], ["more"]),
        node("NonZero", ["more"], ["again"]),
        node("Transpose", ["again"], ["points"]),
        node("GatherND", ["v", "points"], ["y"]),
    ],
    "positive elements": [
        node("Greater", ["v", "nothing"], ["more"]),
        node("NonZero", ["more"], ["again"]),
        node("Transpose", ["again"], ["points"]),
        node("GatherND", ["v", "points"], ["y"]),
    ],
    "compressed": [node("Compress", ["x", "keep"], ["y"], axis=0)],
    "elements of rows": [
        node("Shape", ["v"], ["s"]),
        node(
            "ConstantOfShape",
            ["s"],
            ["zeros"],
            value=helper.make_tensor("z", TensorProto.INT64, [1], [2]),
        ),
        node("GatherElements", ["v", "zeros"], ["y"], axis=1),
    ],
    "written into x": [
        node("Unsqueeze", ["at", "one"], ["points"]),
        node("Mul", ["v", "half"], ["h"]),
        node("ScatterND", ["x", "points", "h"], ["y"]),
    ],
    "added to rows of x, several to one": [
        node("Div", ["at", "two"], ["shared"]),
        node("Unsqueeze", ["shared", "one"], ["points"]),
        node("ScatterND", ["x", "points", "v"], ["y"], reduction="add"),
    ],
    "added to rows of x, by the index of each element": [
        node("Div", ["at", "two"], ["shared"]),
        node("Unsqueeze", ["shared", "one"], ["points"]),
        node("Shape", ["v"], ["s"]),
        node("Expand", ["points", "s"], ["all_points"]),
        node("ScatterElements", ["x", "all_points", "v"], ["y"], axis=0, reduction="add"),
    ],
    "multiplied into rows of x": [
        node("Unsqueeze", ["at", "one"], ["points"]),
        node("ScatterND", ["x", "points", "v"], ["y"], reduction="mul"),
    ],
    "written into a column": [
        node("Gather", ["v", "zero_scalar"], ["column"], axis=1),
        node("Gather", ["x", "one_scalar"], ["whole"], axis=1),
        node("ScatterElements", ["whole", "at", "column"], ["y"], axis=0),
    ],
    "vectors with one element": [
        node("OneHot", ["at", "six", "on_off"], ["y"]),
    ],
    "vectors with one element, as columns": [
        node("OneHot", ["at", "six", "on_off"], ["y"], axis=0),
    ],
    "a choice by their number": [
        node("Greater", ["n", "two"], ["many"]),
        helper.make_node(
            "If",
            ["many"],
            ["y"],
            then_branch=helper.make_graph(
                [node("Slice", ["v", "zero", "two", "zero"], ["some"])],
                "then",
                [],
                [table_of("some")],
            ),
            else_branch=helper.make_graph(
                [node("Concat", ["v", "row"], ["more_rows"], axis=0)],
                "else",
                [],
                [table_of("more_rows")],
            ),
        ),
    ],
    "a choice of nothing": [
        node("ReduceProd", ["shape"], ["size"], keepdims=0),
        node("Equal", ["size", "zero_scalar"], ["none"]),
        helper.make_node(
            "If",
            ["none"],
            ["y"],
            then_branch=helper.make_graph(
                [node("Identity", ["empty"], ["no_rows"])],
                "then",
                [],
                [table_of("no_rows")],
            ),
            else_branch=helper.make_graph(
                [node("Neg", ["v"], ["negative"])],
                "else",
                [],
                [table_of("negative")],
            ),
        ),
    ],
}
MORE = {
    "zero_scalar": np.array(0),
    "one_scalar": np.array(1),
    "three": np.array([3]),
    "six": np.array([6]),
    "nothing": np.array(0, np.float32),
    "pairs": np.array([-1, 2]),
    "ends": np.array([0, 3]),
    "sizes": np.array([1, 3]),
    "table": np.array([6, 4]),
    "pads_const": np.array([1, 0, 2, 0]),
    "on_off": np.array([0, 1], np.float32),
    "sizes_of_rows": np.array([2, 4]),
    "empty": np.zeros((0, COLUMNS), np.float32),
}
# No rows have no greatest, no mean, and no place of the greatest
OF_SOME_ROWS = {
    "the greatest of the rows": [node("ReduceMax", ["v"], ["y"], axes=[0])],
    "the least of all": [node("ReduceMin", ["v"], ["y"], keepdims=0)],
    "the mean of the rows": [node("ReduceMean", ["v"], ["y"], axes=[0])],
    "the mean of all": [node("ReduceMean", ["v"], ["y"], keepdims=0)],
    "where the greatest are": [node("ArgMax", ["v"], ["y"], axis=0)],
    "the last row": [node("Gather", ["v", "minus_one"], ["y"], axis=0)],
    "rows counted from the end": [
        node("Neg", ["one"], ["back"]),
        node("Gather", ["v", "back"], ["y"], axis=0),
    ],
}


def model_of(tail, tmp_path, outputs=("y",), opset=17, selection=SELECTION):
    nodes = [*selection, *tail]
    read = {name for one in nodes for name in one.input}
    for one in nodes:
        for attribute in one.attribute:
            read |= {name for inner in attribute.g.node for name in inner.input}
    constants = {name: value for name, value in (CONSTANTS | MORE).items() if name in read}
    body = graph(nodes, INPUTS, {}, constants)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    known = {one.name: one for one in onnx.shape_inference.infer_shapes(model).graph.value_info}
    for name in outputs:
        model.graph.output.append(known[name])
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("tail", CASES.values(), ids=CASES)
def test_what_is_computed_of_selected_rows_is_as_in_onnx_runtime(tail, cache, tmp_path):
    assert_agrees_with_onnxruntime(model_of(tail, tmp_path), cache, EXAMPLES)


@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        ("written into x", "scatter_rows"),
        ("added to rows of x, several to one", "add_rows"),
        ("added to rows of x, by the index of each element", "add_rows"),
    ],
)
def test_whole_rows_are_written_and_added_row_by_row(case, kernel, cache, tmp_path):
    path = model_of(CASES[case], tmp_path)
    module = importers.import_model(Model("m", str(path)), cache).module
    assert f"def {kernel}(" in module.script()


@pytest.mark.parametrize("tail", OF_SOME_ROWS.values(), ids=OF_SOME_ROWS)
def test_what_is_reduced_of_at_least_one_row_is_as_in_onnx_runtime(tail, cache, tmp_path):
    assert_agrees_with_onnxruntime(model_of(tail, tmp_path), cache, EXAMPLES[1:])


def test_the_spec_of_an_output_has_the_most_rows_and_says_so(cache, tmp_path):
    path = model_of([node("Identity", ["v"], ["y"]), node("Neg", ["x"], ["z"])], tmp_path, "yz")
    rows, whole = assert_agrees_with_onnxruntime(path, cache, EXAMPLES).outputs
    assert (rows.shape, rows.bounded) == ((ROWS, COLUMNS), True)
    assert (whole.shape, whole.bounded) == ((ROWS, COLUMNS), False)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_what_older_and_newer_opsets_write_is_as_in_onnx_runtime(opset, cache, tmp_path):
    axes_are_inputs = opset >= 13
    tail = [
        node("Unsqueeze", ["v", "one"], ["u"])
        if axes_are_inputs
        else node("Unsqueeze", ["v"], ["u"], axes=[1]),
        node("ReduceMean", ["u", "one"], ["m"], keepdims=0)
        if opset >= 18
        else node("ReduceMean", ["u"], ["m"], axes=[1], keepdims=0),
        node("ReduceSum", ["m", "zero"], ["s"])
        if axes_are_inputs
        else node("ReduceSum", ["m"], ["s"], axes=[0]),
        node("Softmax", ["m"], ["p"], axis=1),
        node("Add", ["p", "s"], ["y"]),
    ]
    selection = list(SELECTION)
    if not axes_are_inputs:
        selection[1] = node("Squeeze", ["places"], ["at"], axes=[0])
    assert_agrees_with_onnxruntime(
        model_of(tail, tmp_path, opset=opset, selection=selection), cache, EXAMPLES
    )


def test_a_padding_of_some_axes_is_as_in_onnx_runtime(cache, tmp_path):
    tail = [
        node("Sub", ["six", "n"], ["missing"]),
        node("Concat", ["zero", "missing"], ["pads"], axis=0),
        node("Pad", ["v", "pads", "half", "zero"], ["y"]),
    ]
    assert_agrees_with_onnxruntime(model_of(tail, tmp_path, opset=18), cache, EXAMPLES)


@pytest.mark.parametrize("dtype", ["bool", "float32", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 1, 5)], ids=str)
def test_the_places_of_what_is_not_zero_are_those_of_onnx_runtime(shape, dtype, cache, tmp_path):
    body = graph(
        [node("NonZero", ["x"], ["y"])], {"x": (dtype, list(shape))}, {"y": ("int64", [None, None])}
    )
    inputs = [
        {"x": RANDOM.integers(0, 2, shape).astype(dtype)},
        {"x": np.zeros(shape, dtype)},
        {"x": np.ones(shape, dtype)},
    ]
    assert_agrees_with_onnxruntime(save(tmp_path / "model.onnx", body), cache, inputs)


def boxes_and_scores(batch, classes, count, centers=False):
    low = RANDOM.random((batch, count, 2)) * 10
    size = RANDOM.random((batch, count, 2)) * 6
    boxes = np.concatenate([low, size if centers else low + size], 2)
    if not centers:  # any two opposite corners
        flipped = RANDOM.random((batch, count)) < 0.3
        boxes[flipped] = boxes[flipped][:, [2, 3, 0, 1]]
    scores = RANDOM.random((batch, classes, count))
    return {"boxes": boxes.astype(np.float32), "scores": scores.astype(np.float32)}


@pytest.mark.parametrize("centers", [False, True], ids=["corners", "centers"])
@pytest.mark.parametrize(
    ("batch", "classes", "count", "limit", "overlap", "threshold"),
    [
        (1, 1, 40, 2**63 - 1, 0.3, None),
        (1, 1, 40, 5, 0.5, 0.4),
        (2, 3, 25, 4, 0.2, 0.1),
        (1, 5, 9, 100, 0.0, 0.5),
        (2, 2, 12, 3, 1.0, 0.99),
        (1, 2, 6, 0, 0.5, None),
        (1, 1, 6, 3, 0.5, 2.0),
    ],
)
def test_non_max_suppression_selects_what_onnx_runtime_does(
    batch, classes, count, limit, overlap, threshold, centers, cache, tmp_path
):
    names = ["boxes", "scores", "limit", "overlap"] + ["threshold"] * (threshold is not None)
    constants = {"limit": np.array([limit]), "overlap": np.array([overlap], np.float32)}
    if threshold is not None:
        constants["threshold"] = np.array([threshold], np.float32)
    body = graph(
        [node("NonMaxSuppression", names, ["y"], center_point_box=int(centers))],
        {"boxes": [batch, count, 4], "scores": [batch, classes, count]},
        {"y": ("int64", [None, 3])},
        constants,
    )
    inputs = [boxes_and_scores(batch, classes, count, centers) for _ in range(5)]
    assert_agrees_with_onnxruntime(save(tmp_path / "model.onnx", body), cache, inputs)


def test_a_score_that_equals_the_threshold_is_too_low(cache, tmp_path):
    constants = {
        "limit": np.array([9]),
        "overlap": np.array([0.5], np.float32),
        "threshold": np.array([0.25], np.float32),
    }
    body = graph(
        [node("NonMaxSuppression", ["boxes", "scores", *constants], ["y"])],
        {"boxes": [1, 12, 4], "scores": [1, 1, 12]},
        {"y": ("int64", [None, 3])},
        constants,
    )
    inputs = boxes_and_scores(1, 1, 12)
    inputs["scores"][0, 0, ::2] = 0.25
    assert_agrees_with_onnxruntime(save(tmp_path / "model.onnx", body), cache, [inputs])


def test_limits_of_non_max_suppression_may_be_inputs(cache, tmp_path):
    body = graph(
        [node("NonMaxSuppression", ["boxes", "scores", "limit", "overlap", "threshold"], ["y"])],
        {
            "boxes": [1, 30, 4],
            "scores": [1, 2, 30],
            "limit": ("int64", [1]),
            "overlap": [1],
            "threshold": [1],
        },
        {"y": ("int64", [None, 3])},
    )
    inputs = [
        boxes_and_scores(1, 2, 30)
        | {
            "limit": np.array([limit]),
            "overlap": np.array([overlap], np.float32),
            "threshold": np.array([0.3], np.float32),
        }
        for limit, overlap in ((3, 0.1), (1000, 0.5), (0, 0.5), (7, 0.9))
    ]
    assert_agrees_with_onnxruntime(save(tmp_path / "model.onnx", body), cache, inputs)


def test_a_detector_that_drops_low_scores_first_is_as_in_onnx_runtime(cache, tmp_path):
    # as ultralytics writes it: boxes above a score, suppressed, and padded to a fixed number
    body = graph(
        [
            node("Greater", ["scores", "half"], ["more"]),
            node("NonZero", ["more"], ["places"]),
            node("Transpose", ["places"], ["points"]),
            node("GatherND", ["boxes", "points"], ["some"]),
            node("GatherND", ["scores", "points"], ["their"]),
            node("Unsqueeze", ["some", "zero"], ["b"]),
            node("Unsqueeze", ["their", "axes"], ["s"]),
            node("NonMaxSuppression", ["b", "s", "limit", "overlap"], ["kept"]),
            node("Gather", ["kept", "two"], ["numbers"], axis=1),
            node("Slice", ["numbers", "zero", "eight", "zero"], ["first"]),
            node("Gather", ["some", "first"], ["found"], axis=0),
            node("Shape", ["found"], ["shape"]),
            node("Slice", ["shape", "zero", "one", "zero"], ["n"]),
            node("Sub", ["eight", "n"], ["missing"]),
            node("Concat", ["zero", "zero", "missing", "zero"], ["pads"], axis=0),
            node("Pad", ["found", "pads"], ["y"]),
        ],
        {"boxes": [30, 4], "scores": [30]},
        {"y": [8, 4]},
        {
            "half": np.array(0.5, np.float32),
            "zero": np.array([0]),
            "one": np.array([1]),
            "two": np.array(2),
            "eight": np.array([8]),
            "axes": np.array([0, 1]),
            "limit": np.array([2**63 - 1]),
            "overlap": np.array([0.3], np.float32),
        },
    )
    inputs = []
    for factor in (0.0, 0.4, 0.8, 1.0, 5.0):
        made = boxes_and_scores(1, 1, 30)
        inputs.append({"boxes": made["boxes"][0], "scores": made["scores"][0, 0] * factor})
    imported = assert_agrees_with_onnxruntime(
        save(tmp_path / "model.onnx", body),
        cache,
        [{name: value.astype(np.float32) for name, value in one.items()} for one in inputs],
    )
    assert not imported.outputs[0].bounded


REFUSED = {
    "Add: the extents of its inputs depend on values": [
        node("Not", ["keep"], ["others"]),
        node("NonZero", ["others"], ["other_places"]),
        node("Add", ["places", "other_places"], ["y"]),
    ],
    "Trilu: the extents of its inputs depend on values": [node("Trilu", ["v"], ["y"])],
    "Split: the extents of its inputs depend on values": [
        node("Split", ["v", "sizes_of_rows"], ["y", "z"], axis=0)
    ],
    "Unique: the size of its result depends": [node("Unique", ["x"], ["y"])],
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_rule_for_dynamic_extents_is_refused_with_the_node(what, cache, tmp_path):
    path = model_of(REFUSED[what], tmp_path)
    with pytest.raises(ModelError) as raised:
        importers.import_model(Model("model", str(path)), cache)
    operator, reason = what.split(": ")
    assert operator in raised.value.what and reason in raised.value.what
    assert raised.value.why and raised.value.fix


@pytest.mark.parametrize("operator", ["SliceToDynamic", "ScatterRows", "Unheard"])
def test_a_file_that_has_the_imports_own_operators_is_refused(operator, cache, tmp_path):
    # they trust the counts that they are given
    foreign = helper.make_node(operator, ["x", "n"], ["y"], domain="farm", axes=[0])
    body = graph([foreign], {"x": [4], "n": ("int64", [1])}, {"y": [None]})
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("farm", 1)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(body, opset_imports=opsets, ir_version=8), path)
    with pytest.raises(ModelError) as raised:
        importers.import_model(Model("model", str(path)), cache)
    assert f"farm::{operator}" in raised.value.what
