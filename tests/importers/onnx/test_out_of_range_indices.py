"""Indices beyond a tensor: NaN, or of integers the nearest, and nothing else is touched. TVM would
read or write what lies behind it.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from host_build import built
from onnx import TensorProto, helper

from farm import importers
from farm.types import Model

BEYOND = (7, 2**40, -9)
TABLE = np.arange(20, dtype=np.float32).reshape(4, 5)
FORMS = {  # of each operator: indices that are all inside, and the place of one that will not be
    "GatherElements": (np.array([[0, 3, -4, 1, 2], [3, -1, 0, 1, 0]]), (1, 2)),
    "GatherND": (np.array([[0, 4], [3, -5], [-1, 2]]), (1, 0)),
    "ScatterElements": (np.array([[0, 3, -4, 1, 2], [3, -2, 1, 2, 0]]), (1, 2)),
    "ScatterND": (np.array([[0, 4], [3, -5], [-2, 2]]), (1, 0)),
}


def network(tmp_path, operator, indices, kind):
    written = operator.startswith("Scatter")
    shape = (
        TABLE.shape
        if written
        else indices.shape
        if operator == "GatherElements"
        else indices.shape[:1]
    )
    given = {"data": (kind, TABLE.shape), "indices": (TensorProto.INT64, indices.shape)}
    if written:
        given["updates"] = (
            kind,
            indices.shape if operator == "ScatterElements" else indices.shape[:1],
        )
    node = helper.make_node(operator, list(given), ["found"])
    inputs = [helper.make_tensor_value_info(name, *of) for name, of in given.items()]
    graph = helper.make_graph(
        [node], operator, inputs, [helper.make_tensor_value_info("found", kind, shape)]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        tmp_path / "m.onnx",
    )
    return importers.import_model(Model("m", str(tmp_path / "m.onnx")), tmp_path)


@pytest.mark.parametrize("operator", FORMS)
def test_what_is_inside_is_onnxs_and_what_is_beyond_is_nan(operator, tmp_path):
    indices, place = FORMS[operator]
    imported = network(tmp_path, operator, indices, TensorProto.FLOAT)
    run, given = built(imported), {"data": TABLE, "indices": indices}
    if operator.startswith("Scatter"):
        given["updates"] = -1 - np.arange(
            np.prod(imported.example["updates"].shape), dtype=np.float32
        ).reshape(imported.example["updates"].shape)
    (expected,) = imported.reference(given)
    np.testing.assert_array_equal(run(list(given.values()))[0], expected)
    for index in BEYOND:
        given["indices"] = indices.copy()
        given["indices"][place] = index
        (found,) = run(list(given.values()))
        assert np.isnan(found).sum() == 1
        assert ((found != expected) <= (np.isnan(found) | (expected < 0))).all(), (
            "else only the place that was meant is another"
        )


@pytest.mark.parametrize("operator", ["GatherElements", "GatherND"])
def test_of_integers_it_is_the_nearest(operator, tmp_path):
    indices, place = FORMS[operator]
    imported = network(tmp_path, operator, indices, TensorProto.INT32)
    run, table = built(imported), TABLE.astype(np.int32)
    indices = np.where(indices < 0, indices + ([4, 5] if operator == "GatherND" else 4), indices)
    for index, nearest in zip(BEYOND, (3, 3, 0), strict=True):
        beyond, there = indices.copy(), indices.copy()
        beyond[place], there[place] = index, nearest
        np.testing.assert_array_equal(run([table, beyond])[0], run([table, there])[0])


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT32])
def test_columns_beyond_a_table_are_nan_or_of_integers_the_nearest(kind, onnx_file, load):
    gather = helper.make_node("Gather", ["data", "indices"], ["found"], axis=1)
    inputs = {"data": (kind, [4, 5]), "indices": (TensorProto.INT64, [3])}
    imported = load(onnx_file([gather], inputs, {"found": (kind, [4, 3])}))
    run, table = built(imported), TABLE.astype(helper.tensor_dtype_to_np_dtype(kind))
    for index, nearest in zip((*BEYOND, 2), (4, 4, 0, 2), strict=True):
        (found,) = run([table, np.array([1, index, -2])])
        expected = table[:, [1, nearest, 3]]
        if kind == TensorProto.FLOAT and index != nearest:
            expected[:, 1] = np.nan
        np.testing.assert_array_equal(found, expected)
