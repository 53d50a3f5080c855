"""LSTM, GRU and RNN of ONNX: every attribute that exporters write gives ONNX Runtime's answer on
farm's own build; the rest is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import forked_commands
import numpy as np
import onnx
import pytest
from host_build import answers, assert_agrees
from onnx import TensorProto, helper, numpy_helper

from farm import importers
from farm.errors import ModelError
from farm.types import Model

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, DEPTH = 5, 3, 7


def layer(cell, path, hidden=10, direction="forward", extra="", fed=False, layout=0, **attributes):
    """A model of one layer. `extra` names what it has of B (bias), L (lengths), S (first states)
    and P (peepholes).
    """
    random = np.random.default_rng(3)
    directions, gates = (2 if direction == "bidirectional" else 1), GATES[cell]

    def normal(*shape):
        return (0.4 * random.standard_normal(shape)).astype(np.float32)

    first = (BATCH, directions, hidden) if layout else (directions, BATCH, hidden)
    values = {
        "W": normal(directions, gates * hidden, DEPTH),
        "R": normal(directions, gates * hidden, hidden),
    }
    optional = {
        "B": ("B", "B", normal(directions, 2 * gates * hidden)),
        "L": ("L", "L", np.array([5, 2, 4], np.int32)),
        "H": ("S", "H", normal(*first)),
        "C": ("S" if cell == "LSTM" else "-", "C", normal(*first)),
        "P": ("P", "P", normal(directions, 3 * hidden)),
    }
    names = ["X", "W", "R"]
    for name, (letter, _, value) in optional.items():
        names.append(name if letter in extra else "")
        if letter in extra:
            values[name] = value
    outputs = ["Y", "Y_h", "Y_c"] if cell == "LSTM" else ["Y", "Y_h"]
    node = helper.make_node(
        cell,
        names[: 8 if cell == "LSTM" else 6],
        outputs,
        hidden_size=hidden,
        direction=direction,
        layout=layout,
        **attributes,
    )
    inputs = [
        helper.make_tensor_value_info(
            "X", TensorProto.FLOAT, [BATCH, STEPS, DEPTH] if layout else [STEPS, BATCH, DEPTH]
        )
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in values.items()]
    if fed:
        inputs += [
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            for tensor in tensors
        ]
    shown = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT, list("abcd")[: 4 if name == "Y" else 3]
        )
        for name in outputs
    ]
    body = helper.make_graph([node], "layer", inputs, shown, [] if fed else tensors)
    onnx.save(
        helper.make_model(body, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), path
    )
    return path


def agree(path: Path) -> None:
    model = Model("layer", str(path))
    imported = importers.import_model(model, path.parent)
    if "L" in imported.example:
        imported.example["L"][:] = [5, 2, 4]
    assert_agrees(imported, atol=2e-6, rtol=0)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "case",
    [
        {},
        {"direction": "reverse", "extra": "BS"},
        {"direction": "bidirectional", "extra": "BS", "hidden": 16},
        {"direction": "bidirectional", "extra": "BLS", "hidden": 37},
        {"direction": "bidirectional", "extra": "BLS", "fed": True},
    ],
    ids=str,
)
def test_a_layer_computes_what_onnxruntime_does(cell, case, tmp_path):
    agree(layer(cell, tmp_path / "layer.onnx", **case))


@pytest.mark.parametrize(
    ("cell", "case"),
    [
        ("GRU", {"extra": "BLS", "linear_before_reset": 1, "direction": "bidirectional"}),
        ("GRU", {"linear_before_reset": 1}),
        ("GRU", {"extra": "BS", "linear_before_reset": 1, "fed": True}),
        ("LSTM", {"extra": "BSP", "direction": "bidirectional"}),
        ("LSTM", {"extra": "B", "activations": ["Tanh", "Sigmoid", "Relu"]}),
        ("RNN", {"extra": "B", "activations": ["Relu", "Tanh"], "direction": "bidirectional"}),
    ],
    ids=str,
)
def test_what_only_one_kind_of_layer_has_is_right_too(cell, case, tmp_path):
    agree(layer(cell, tmp_path / "layer.onnx", **case))


@pytest.mark.parametrize(
    ("cell", "case"),
    [
        ("LSTM", {"hidden": 110, "extra": "BLS"}),
        ("LSTM", {"hidden": 110, "extra": "BSP", "direction": "reverse"}),
        ("GRU", {"hidden": 128, "extra": "BLS"}),
        ("GRU", {"hidden": 128, "linear_before_reset": 1}),
        ("RNN", {"hidden": 200, "extra": "BLS"}),
    ],
    ids=str,
)
def test_threads_that_share_the_units_of_a_wide_layer_compute_what_one_does(cell, case, tmp_path):
    path = layer(cell, tmp_path / "layer.onnx", **case)
    imported = importers.import_model(Model("layer", str(path)), tmp_path)
    assert "parallel_barrier_when_finish" in imported.module.script()
    if "L" in imported.example:
        imported.example["L"][:] = [5, 2, 4]
    assert_agrees(imported, atol=5e-5, rtol=0)
    done = forked_commands.run(["check", "-q", "--guard", str(path), "--json"])
    assert done.returncode == 0 and json.loads(done.stdout)["guard"]["faulty"] == [], done.stderr


def test_a_narrow_layer_and_one_of_two_directions_have_no_barriers(tmp_path):
    for case in ({}, {"hidden": 128, "direction": "bidirectional"}):
        path = layer("LSTM", tmp_path / "layer.onnx", **case)
        imported = importers.import_model(Model("layer", str(path)), tmp_path)
        assert "parallel_barrier_when_finish" not in imported.module.script()


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_batch_first_is_the_same_with_axes_exchanged(cell, tmp_path, monkeypatch):
    """ONNX Runtime lacks layout=1, so the reference is the layer of layout=0."""
    steps_first = importers.import_model(
        Model("a", str(layer(cell, tmp_path / "a.onnx", extra="B", direction="bidirectional"))),
        tmp_path,
    )
    monkeypatch.setattr("farm.importers.onnx.load._session", lambda *_: None)
    model = Model(
        "b", str(layer(cell, tmp_path / "b.onnx", extra="B", direction="bidirectional", layout=1))
    )
    batch_first = importers.import_model(model, tmp_path)
    batch_first.example["X"][:] = steps_first.example["X"].transpose(1, 0, 2)
    expected, *states = steps_first.reference(steps_first.example)
    ours, *our_states = answers(batch_first)
    np.testing.assert_allclose(ours, expected.transpose(2, 0, 1, 3), atol=2e-6)
    for one, other in zip(our_states, states, strict=True):
        np.testing.assert_allclose(one, other.transpose(1, 0, 2), atol=2e-6)


@pytest.mark.parametrize(
    ("cell", "attributes", "word"),
    [
        ("LSTM", {"clip": 1.0}, "clip"),
        ("LSTM", {"input_forget": 1}, "input_forget"),
        ("GRU", {"activations": ["Sigmoid", "Softsign"]}, "softsign"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(cell, attributes, word, tmp_path):
    with pytest.raises(ModelError) as error:
        importers.import_model(
            Model("m", str(layer(cell, tmp_path / "layer.onnx", **attributes))), tmp_path
        )
    assert cell in error.value.what and word in error.value.why
