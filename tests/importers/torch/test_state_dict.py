""".pth files: weights for a module that a function returns; what does not fit is named, and nothing
else is ever unpickled.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from host_build import answers

from farm import importers
from farm.errors import ModelError
from farm.types import Model

NETS = """
import torch

def classifier():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)), (torch.ones(1, 4),)
"""  # noqa: E501


@pytest.fixture
def weights(tmp_path, monkeypatch):
    (tmp_path / "nets_of_weights.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "nets_of_weights", raising=False)
    generator = torch.Generator().manual_seed(6)
    shapes = {"0.weight": (8, 4), "0.bias": (8,), "2.weight": (3, 8), "2.bias": (3,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def model(tmp_path):
    return Model("m", str(tmp_path / "m.pth"), module="python:nets_of_weights:classifier")


def refusal(model, tmp_path, content):
    torch.save(content, model.source)
    with pytest.raises(ModelError) as caught:
        importers.import_model(model, tmp_path)
    return caught.value


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda weights: weights,
        lambda weights: {"epoch": 3, "state_dict": weights},
        lambda weights: {f"module.{name}": value for name, value in weights.items()},
    ],
    ids=["plain", "beside the state of a training", "of DataParallel"],
)
def test_the_module_has_the_weights_of_the_file(wrapped, weights, model, tmp_path):
    torch.save(wrapped(weights), model.source)
    made = importers.import_model(model, tmp_path)
    expected = (
        torch.relu(torch.ones(1, 4) @ weights["0.weight"].T + weights["0.bias"])
        @ weights["2.weight"].T
        + weights["2.bias"]
    )
    np.testing.assert_allclose(made.reference(made.example)[0], expected, atol=1e-5)
    np.testing.assert_allclose(answers(made)[0], expected, atol=1e-5)


def test_missing_and_unexpected_weights_are_named(weights, model, tmp_path):
    weights["2.wieght"] = weights.pop("2.weight")
    error = refusal(model, tmp_path, weights)
    assert (
        "missing are 2.weight" in error.why
        and "unexpected are 2.wieght" in error.why
        and "did you mean" in error.fix
    )


def test_weights_of_another_shape_are_named(weights, model, tmp_path):
    assert (
        "2.bias is [4] instead of [3]"
        in refusal(model, tmp_path, {**weights, "2.bias": torch.zeros(4)}).why
    )


def test_weights_without_a_module_say_how_to_name_one(weights, model, tmp_path):
    error = refusal(replace(model, module=None), tmp_path, weights)
    assert "weights alone are no model" in error.why and "--module pkg.mod:function" in error.fix


@pytest.mark.parametrize("module", [None, "python:nets_of_weights:classifier"])
def test_a_pickled_module_is_refused_with_its_class(module, weights, model, tmp_path):
    error = refusal(replace(model, module=module), tmp_path, torch.nn.Sequential(torch.nn.ReLU()))
    assert "torch.nn.modules.activation.ReLU" in error.why and "unpickled" in error.why


def test_a_module_named_for_a_whole_model_is_refused(weights, model, tmp_path):
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    path = tmp_path / "m.pt2"
    torch.export.save(program, path)
    with pytest.raises(ModelError, match="holds an exported program"):
        importers.import_model(replace(model, source=str(path)), tmp_path)


def test_the_fingerprint_is_of_the_weights_and_of_the_module(weights, model, tmp_path):
    torch.save(weights, model.source)
    assert importers.import_fingerprint(model, tmp_path) is None
    importers.import_model(model, tmp_path)
    key = importers.import_fingerprint(model, tmp_path)
    assert key is not None
    torch.save({**weights, "2.bias": torch.zeros(3)}, model.source)
    assert importers.import_fingerprint(model, tmp_path) not in (key, None)
    (tmp_path / "nets_of_weights.py").write_text(NETS.replace("ReLU", "Tanh"))
    assert importers.import_fingerprint(model, tmp_path) is None


def test_a_module_in_half_precision_is_compared_with_itself(weights, model, tmp_path):
    torch.save(weights, model.source)
    made = importers.import_model(replace(model, dtypes={"": "float16"}), tmp_path)
    assert made.inputs[0].dtype == made.outputs[0].dtype == "float16"
    np.testing.assert_allclose(answers(made)[0], made.reference(made.example)[0], atol=2e-2)


def test_an_input_of_a_module_keeps_its_type(weights, model, tmp_path):
    torch.save(weights, model.source)
    with pytest.raises(ModelError, match="is that of the example"):
        importers.import_model(replace(model, dtypes={"input": "float16"}), tmp_path)


@pytest.mark.parametrize("source", ["net.onnx", "python:nets_of_weights:classifier"])
def test_a_module_is_named_for_files_of_torch_only(source, weights, tmp_path):
    with pytest.raises(ModelError, match="is no file of weights"):
        importers.import_fingerprint(
            Model("net", source, module="python:nets_of_weights:classifier"), tmp_path
        )


@pytest.mark.parametrize(
    ("suffix", "words"), [("pb", "tf2onnx"), ("keras", "format='onnx'"), ("safetensors", "python:")]
)
def test_other_frameworks_files_say_how_to_convert_them(suffix, words, tmp_path):
    with pytest.raises(ModelError) as caught:
        importers.import_model(Model("net", f"net.{suffix}"), tmp_path)
    assert words in caught.value.fix
