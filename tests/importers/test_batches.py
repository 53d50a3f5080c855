"""Which batches stay open, through the import and the check of it, and what is said where one does not."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from onnx import helper
from this_machine import HOST

from farm import prepare
from farm.errors import ModelError
from farm.importers.feed import read_inputs
from farm.parallel import Desk
from farm.types import Model, Preprocess, TensorSpec, batch_in_words

RELU = helper.make_node("Relu", ["x"], ["y"])
ADD = helper.make_node("Add", ["x", "y"], ["z"])


@pytest.fixture
def prepared(tmp_path, cache):
    def once(path):
        return prepare.prepare(Desk(tmp_path / "scratch"), Model("model", str(path)), HOST, cache)

    return once


@pytest.fixture
def arrays(tmp_path):
    def keep(**named):
        np.savez(tmp_path / "inputs.npz", **named)
        return tmp_path / "inputs.npz"

    return keep


def test_a_batch_of_one_symbol_stays_open_and_is_measured_at_one(onnx_file, load, agree):
    imported = load(onnx_file([ADD], {"x": ["n", 3], "y": ["n", 3]}, {"z": ["n", 3]}))
    assert imported.inputs == (TensorSpec("x", (1, 3), "float32", True), TensorSpec("y", (1, 3), "float32", True))
    assert imported.outputs == (TensorSpec("z", (1, 3), "float32", True),) and not imported.fixed
    agree(imported)


@pytest.mark.parametrize("other", [["m", 3], [3, "n"]], ids=["two symbols", "another axis of the symbol"])
def test_a_batch_that_is_no_batch_of_all_inputs_is_one(other, onnx_file, load, agree):
    imported = load(onnx_file([ADD], {"x": ["n", 3], "y": other}, {"z": [None, 3]}))
    assert [spec.open for spec in imported.inputs] == [False, False]
    agree(imported)


def test_a_shape_that_is_said_closes_the_batch(onnx_file, load):
    imported = load(onnx_file([RELU], {"x": ["n", 3]}, {"y": ["n", 3]}), x=(4, 3))
    assert imported.inputs == (TensorSpec("x", (4, 3), "float32"),)


def test_a_program_exported_with_an_open_batch_keeps_it(tmp_path, load, agree):
    network = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval()
    program = torch.export.export(network, (torch.zeros(2, 2, 4, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "model.pt2")
    imported = load(tmp_path / "model.pt2")
    assert [(spec.shape, spec.open) for spec in (*imported.inputs, *imported.outputs)] == [((1, 2, 4, 4), True), ((1, 3), True)]
    agree(imported)


def test_a_model_that_works_for_a_batch_of_one_only_is_fixed_and_says_why(onnx_file, prepared):
    shape = np.array([1, 16], "int64")
    reshape = helper.make_node("Reshape", ["x", "shape"], ["y"])
    made = prepared(onnx_file([reshape], {"x": ["n", 4, 4]}, {"y": [1, 16]}, {"shape": shape}))
    assert made.inputs == (TensorSpec("x", (1, 4, 4), "float32"),)
    assert made.fixed and made.fixed in batch_in_words(made.inputs, made.fixed)


def test_an_open_model_is_prepared_once_and_says_what_is_measured(onnx_file, prepared):
    made = prepared(onnx_file([RELU], {"x": ["n", 3]}, {"y": ["n", 3]}))
    assert made.inputs[0].open and not made.fixed
    assert "measured at 1" in batch_in_words(made.inputs, made.fixed)


def test_inputs_of_any_one_batch_are_read(arrays):
    specs = (TensorSpec("x", (1, 3), "float32", True), TensorSpec("y", (1, 2), "float32", True))
    path = arrays(x=np.zeros((5, 3), "float32"), y=np.zeros((5, 2), "float32"))
    assert {name: array.shape for name, array in read_inputs(path, specs, Preprocess()).items()} == {"x": (5, 3), "y": (5, 2)}


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [((5, 3), (4, 2), "not of one batch"), ((5, 4), (5, 2), r"\[any, 3\]"), ((0, 3), (0, 2), r"\[any, 3\]"), ((), (1, 2), r"\[any, 3\]")],
)
def test_inputs_that_are_of_no_batch_are_refused(x, y, words, arrays):
    specs = (TensorSpec("x", (1, 3), "float32", True), TensorSpec("y", (1, 2), "float32", True))
    with pytest.raises(ModelError) as caught:
        read_inputs(arrays(x=np.zeros(x, "float32"), y=np.zeros(y, "float32")), specs, Preprocess())
    assert re.search(words, f"{caught.value.what} {caught.value.why}")
