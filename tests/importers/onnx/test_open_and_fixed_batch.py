"""Which batches stay open, through the import and the check of it, and what is said where one does
not.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from host_profile import HOST
from onnx import helper

from farm import checked_model_import, importers
from farm.errors import ModelError
from farm.inputs.read import read_inputs
from farm.processes.workers import TaskContext
from farm.types import Model, PreprocessSettings, TensorSpec, describe_open_batch

RELU = helper.make_node("Relu", ["x"], ["y"])
ADD = helper.make_node("Add", ["x", "y"], ["z"])


@pytest.fixture
def prepared(tmp_path, cache):
    def once(path):
        return checked_model_import.prepare_model(
            TaskContext(tmp_path / "scratch"), Model("model", str(path)), HOST, cache
        )

    return once


@pytest.fixture
def arrays(tmp_path):
    def keep(**named):
        np.savez(tmp_path / "inputs.npz", **named)
        return tmp_path / "inputs.npz"

    return keep


def test_a_batch_of_one_symbol_stays_open_and_is_measured_at_one(onnx_file, load, agree):
    imported = load(onnx_file([ADD], {"x": ["n", 3], "y": ["n", 3]}, {"z": ["n", 3]}))
    assert imported.inputs == (
        TensorSpec("x", (1, 3), "float32", True),
        TensorSpec("y", (1, 3), "float32", True),
    )
    assert imported.outputs == (TensorSpec("z", (1, 3), "float32", True),) and not imported.fixed
    agree(imported)


@pytest.mark.parametrize(
    "other", [["m", 3], [3, "n"]], ids=["two symbols", "another axis of the symbol"]
)
def test_a_batch_that_is_no_batch_of_all_inputs_is_one(other, onnx_file, load, agree):
    imported = load(onnx_file([ADD], {"x": ["n", 3], "y": other}, {"z": [None, 3]}))
    assert [spec.open for spec in imported.inputs] == [False, False]
    agree(imported)


def test_a_shape_that_is_said_closes_the_batch(onnx_file, load):
    imported = load(onnx_file([RELU], {"x": ["n", 3]}, {"y": ["n", 3]}), x=(4, 3))
    assert imported.inputs == (TensorSpec("x", (4, 3), "float32"),)


def test_a_program_exported_with_an_open_batch_keeps_it(tmp_path, load, agree):
    network = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 3)
    ).eval()
    program = torch.export.export(
        network, (torch.zeros(2, 2, 4, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, tmp_path / "model.pt2")
    imported = load(tmp_path / "model.pt2")
    assert [(spec.shape, spec.open) for spec in (*imported.inputs, *imported.outputs)] == [
        ((1, 2, 4, 4), True),
        ((1, 3), True),
    ]
    agree(imported)


def test_a_model_that_works_for_a_batch_of_one_only_is_fixed_and_says_why(onnx_file, prepared):
    shape = np.array([1, 16], "int64")
    reshape = helper.make_node("Reshape", ["x", "shape"], ["y"])
    made = prepared(onnx_file([reshape], {"x": ["n", 4, 4]}, {"y": [1, 16]}, {"shape": shape}))
    assert made.inputs == (TensorSpec("x", (1, 4, 4), "float32"),)
    assert made.fixed and made.fixed in describe_open_batch(made.inputs, made.fixed)


def test_an_open_model_is_prepared_once_and_says_what_is_measured(onnx_file, prepared):
    made = prepared(onnx_file([RELU], {"x": ["n", 3]}, {"y": ["n", 3]}))
    assert made.inputs[0].open and not made.fixed
    assert "measured at 1" in describe_open_batch(made.inputs, made.fixed)


def test_inputs_of_any_one_batch_are_read(arrays):
    specs = (TensorSpec("x", (1, 3), "float32", True), TensorSpec("y", (1, 2), "float32", True))
    path = arrays(x=np.zeros((5, 3), "float32"), y=np.zeros((5, 2), "float32"))
    assert {
        name: array.shape for name, array in read_inputs(path, specs, PreprocessSettings()).items()
    } == {"x": (5, 3), "y": (5, 2)}


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ((5, 3), (4, 2), "not of one batch"),
        ((5, 4), (5, 2), r"\[any, 3\]"),
        ((0, 3), (0, 2), r"\[any, 3\]"),
        ((), (1, 2), r"\[any, 3\]"),
    ],
)
def test_inputs_that_are_of_no_batch_are_refused(x, y, words, arrays):
    specs = (TensorSpec("x", (1, 3), "float32", True), TensorSpec("y", (1, 2), "float32", True))
    with pytest.raises(ModelError) as caught:
        read_inputs(
            arrays(x=np.zeros(x, "float32"), y=np.zeros(y, "float32")), specs, PreprocessSettings()
        )
    assert re.search(words, f"{caught.value.what} {caught.value.why}")


@pytest.fixture
def of_batch(cache):
    return lambda source, batch, **more: importers.import_model(
        Model("model", str(source), batch=batch, **more), cache
    )


def test_a_batch_that_is_asked_for_closes_an_open_one(onnx_file, of_batch, agree):
    path = onnx_file([ADD], {"x": ["n", 3], "y": ["n", 3]}, {"z": ["n", 3]})
    for batch in (1, 8):
        imported = of_batch(path, batch)
        assert {spec.shape for spec in (*imported.inputs, *imported.outputs)} == {
            (batch, 3)
        } and not imported.open
        agree(imported)


def test_a_batch_is_asked_for_beside_shapes_that_a_file_leaves_open(onnx_file, of_batch):
    imported = of_batch(
        onnx_file([RELU], {"x": ["n", "length"]}, {"y": ["n", "length"]}), 8, shapes={"x": (1, 5)}
    )
    assert imported.inputs == (TensorSpec("x", (8, 5), "float32"),)


def test_a_module_of_python_is_exported_for_the_batch(tmp_path, of_batch, agree, monkeypatch):
    lines = """
import torch

class Net(torch.nn.Module):
    def forward(self, x, matrix):
        return x @ matrix

def net():
    return Net(), (torch.zeros(1, 3), torch.zeros(3, 2))
"""
    (tmp_path / "a_module.py").write_text(lines)
    monkeypatch.chdir(tmp_path)
    imported = of_batch("python:a_module:net", 8)
    assert [spec.shape for spec in imported.inputs] == [(8, 3), (3, 2)]
    assert imported.outputs[0].shape == (8, 2)
    agree(imported)


def test_a_file_that_fixes_its_batch_is_taken_at_that_and_refused_at_others(onnx_file, of_batch):
    path = onnx_file([RELU], {"x": [4, 3]}, {"y": [4, 3]})
    assert of_batch(path, 4).inputs[0].shape == (4, 3)
    with pytest.raises(ModelError, match=r"model.onnx cannot be built for a batch of 8") as caught:
        of_batch(path, 8)
    assert "fixes axis 0 to 4" in caught.value.why and "--batch" in caught.value.fix


def test_outputs_that_do_not_grow_with_the_batch_are_refused(onnx_file, of_batch):
    mean = helper.make_node("ReduceMean", ["x"], ["y"], keepdims=1)
    path = onnx_file([mean], {"x": ["n", 3]}, {"y": [1, 1]})
    with pytest.raises(ModelError) as caught:
        of_batch(path, 8)
    assert "none has as many rows: y [1, 1]" in caught.value.why


def test_the_batch_is_part_of_the_fingerprint(onnx_file, cache):
    path = str(onnx_file([RELU], {"x": ["n", 3]}, {"y": ["n", 3]}))
    assert (
        len(
            {
                importers.import_fingerprint(Model("model", path, batch=batch), cache)
                for batch in (None, 1, 8)
            }
        )
        == 3
    )
