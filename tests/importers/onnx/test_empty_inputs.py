"""An input without elements: the cache of a decoder before its first token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import host_build
import numpy as np
import pytest
from onnx import TensorProto, helper

from farm import importers
from farm.errors import ModelError
from farm.importers.onnx.summary import summarize
from farm.types import Model

node = helper.make_node
CACHE = ["batch", 2, "past", 4]


@pytest.fixture
def decoder(onnx_file: Callable[..., Path]) -> Path:
    """Attention over two caches, past_k and past_v, and the tokens x; the mask's length is open."""
    nodes = [
        node("Concat", ["past_k", "x"], ["k"], axis=2),
        node("Concat", ["past_v", "x"], ["v"], axis=2),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["x", "kt"], ["scores"]),
        node("Shape", ["past_k"], ["extents"]),
        node("Gather", ["extents", "two"], ["length"]),
        node("Cast", ["length"], ["position"], to=TensorProto.FLOAT),
        node("Add", ["scores", "position"], ["moved"]),
        node("Add", ["moved", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["y"]),
    ]
    return onnx_file(
        nodes,
        {"x": ["batch", 2, "tokens", 4], "past_k": CACHE, "past_v": CACHE, "mask": ["total"]},
        {"y": ["batch", 2, "tokens", 4], "k": ["batch", 2, "total", 4]},
        {"two": np.asarray(2)},
    )


def model(path: Path, **shapes: tuple[int, ...]) -> Model:
    return Model("decoder", str(path), shapes=shapes)


@pytest.mark.parametrize("past", [0, 3])
def test_a_cache_of_no_positions_is_left_out_of_the_build(decoder, tmp_path, past):
    shapes = {"x": (1, 2, 5, 4), "past_k": (1, 2, past, 4), "mask": (past + 5,)}
    imported = importers.import_model(model(decoder, **shapes), tmp_path)
    fed = [spec.name for spec in imported.inputs]
    assert fed == (["x", "past_k", "past_v", "mask"] if past else ["x", "mask"])
    host_build.assert_agrees(imported)


def test_the_outline_of_a_file_has_the_inputs_that_are_fed(decoder):
    stated = model(decoder, x=(1, 2, 5, 4), past_k=(1, 2, 0, 4), mask=(5,))
    assert [line.split()[0] for line in summarize(stated).inputs] == ["x", "mask"]


def test_a_model_whose_inputs_are_all_empty_is_refused(onnx_file, tmp_path):
    path = onnx_file([node("Relu", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]})
    with pytest.raises(ModelError, match="has no input left"):
        importers.import_model(model(path, x=(0, 4)), tmp_path)


def test_an_extent_below_zero_is_refused(decoder, tmp_path):
    with pytest.raises(ModelError, match="no axis can be shorter than 0"):
        importers.import_model(model(decoder, past_k=(1, 2, -1, 4)), tmp_path)


def test_an_extent_that_the_file_fixes_cannot_be_zero(onnx_file, tmp_path):
    path = onnx_file([node("Relu", ["x"], ["y"])], {"x": [3, 4]}, {"y": [3, 4]})
    with pytest.raises(ModelError, match="fixes axis 0 to 3"):
        importers.import_model(model(path, x=(0, 4)), tmp_path)


@pytest.mark.parametrize("name", ["model.tflite", "model.pt2", "model.pt"])
def test_other_formats_take_no_empty_input(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"not read")
    with pytest.raises(ModelError, match="the input x would have no elements"):
        importers.import_model(model(path, x=(1, 0)), tmp_path)
