"""Loops of TFLite files: those that constants end are unrolled, the others are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

import flatbuffers
from ai_edge_litert import schema_py_generated as schema
from host_build import assert_agrees

from farm import importers
from farm.errors import ModelError
from farm.importers.tflite import unroll
from farm.types import Model

FILES = Path(__file__).parent.parent / "data"  # tools/make-tflite-test-models
LOOPS = FILES / "loops.tflite"


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    """A copy of the file with loops, changed in the schema's object types."""
    model = schema.ModelT.InitFromPackedBuf(LOOPS.read_bytes(), 0)
    change(model)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(builder.Output())
    return path


def loops(model: Any) -> list[Any]:
    names = {value: name for name, value in vars(schema.BuiltinOperator).items()}
    return [
        node
        for node in model.subgraphs[0].operators
        if names[model.operatorCodes[node.opcodeIndex].builtinCode] == "WHILE"
    ]


def set_bounds(runs: int) -> Callable[[Any], None]:
    """Change how often each loop runs: its condition is that a counter is less than a constant."""

    def change(model: Any) -> None:
        for loop in loops(model):
            graph = model.subgraphs[loop.builtinOptions.condSubgraphIndex]
            read = {int(index) for node in graph.operators for index in node.inputs}
            for index in read - {int(index) for index in graph.inputs}:
                tensor = graph.tensors[index]
                if model.buffers[tensor.buffer].data is not None:
                    model.buffers.append(schema.BufferT())
                    model.buffers[-1].data = np.frombuffer(np.int32(runs).tobytes(), np.uint8)
                    tensor.buffer = len(model.buffers) - 1

    return change


def test_recurrent_layers_of_keras_agree_with_litert(tmp_path):
    model = schema.ModelT.InitFromPackedBuf(LOOPS.read_bytes(), 0)
    assert len(loops(model)) == 3
    imported = importers.import_model(Model("loops", str(LOOPS)), tmp_path)
    assert_agrees(imported)
    assert [spec.shape for spec in imported.outputs] == [(1, 6, 3)]
    fresh = {"sequence": np.random.default_rng(5).standard_normal((1, 6, 4)).astype("float32")}
    imported.example.update(fresh)
    assert_agrees(imported)


@pytest.mark.parametrize("runs", [0, 1, 4])
def test_a_loop_runs_as_often_as_its_condition_says(runs, tmp_path):
    path = changed(tmp_path / "some.tflite", set_bounds(runs))
    assert_agrees(importers.import_model(Model("some", str(path)), tmp_path))


def test_a_loop_within_a_loop_is_unrolled_too(tmp_path):
    imported = importers.import_model(Model("m", str(FILES / "nested-loops.tflite")), tmp_path)
    assert_agrees(imported)


def test_all_runs_read_one_copy_of_a_constant(tmp_path):
    weights = [
        importers.import_model(Model("some", str(path)), tmp_path).weights
        for runs in (2, 5)
        for path in [changed(tmp_path / f"{runs}.tflite", set_bounds(runs))]
    ]
    counts = [sum(value.ndim == 2 for value in of_runs) for of_runs in weights]
    assert counts[0] == counts[1]


def test_a_loop_that_data_ends_is_refused(tmp_path):
    with pytest.raises(ModelError) as caught:
        importers.import_model(Model("m", str(FILES / "loop-of-data.tflite")), tmp_path)
    assert "WHILE whose number of runs depends on data" in caught.value.what
    assert "the model of one step" in caught.value.fix


def test_a_loop_of_many_runs_is_refused_before_it_is_copied(tmp_path):
    path = changed(tmp_path / "long.tflite", set_bounds(2**31 - 1))
    with pytest.raises(ModelError, match="more than 5,000 operators"):
        importers.import_model(Model("long", str(path)), tmp_path)


def test_a_loop_without_operators_that_never_ends_is_refused():
    def change(model):
        for loop in loops(model):
            body = model.subgraphs[loop.builtinOptions.bodySubgraphIndex]
            body.operators, body.outputs = [], body.inputs

    model = schema.ModelT.InitFromPackedBuf(LOOPS.read_bytes(), 0)
    change(model)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    with pytest.raises(unroll.TooManyOperatorsError):
        unroll.unroll_loops(bytes(builder.Output()))
