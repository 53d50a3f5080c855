"""Fingerprints of files: they change with whatever the model depends on, and cost no framework."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import numpy as np
import onnx
import pytest
from onnx import helper

from farm import importers
from farm.errors import ModelError
from farm.importers import fingerprints
from farm.types import Model


@pytest.fixture
def external(graph, tmp_path):
    """A model with its weights in weights.bin."""
    model = graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [2, 3]},
        {"y": [2, 9]},
        {"w": np.ones((3, 9), np.float32)},
    )
    onnx.save(
        model,
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return Model("m", str(tmp_path / "model.onnx"))


@pytest.fixture
def model(onnx_file):
    return Model(
        "m",
        str(onnx_file([helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 2]}, {"y": ["n", 2]})),
    )


def test_a_fingerprint_is_a_digest_of_the_content_not_of_the_names(model, cache, tmp_path):
    key = importers.import_fingerprint(model, cache)
    assert key is not None and len(key) == 64 and int(key, 16)
    copy = tmp_path / "copy.onnx"
    copy.write_bytes((tmp_path / "model.onnx").read_bytes())
    assert importers.import_fingerprint(Model("other", str(copy)), cache) == key


def test_bytes_and_shapes_count(model, cache, tmp_path):
    key = importers.import_fingerprint(model, cache)
    assert importers.import_fingerprint(replace(model, shapes={"x": (3, 2)}), cache) != key
    with (tmp_path / "model.onnx").open("ab") as file:
        file.write(b"\0")
    assert importers.import_fingerprint(model, cache) != key


def test_element_types_count(model, cache):
    asked = (model, replace(model, dtypes={"": "float16"}), replace(model, dtypes={"x": "float16"}))
    assert len({importers.import_fingerprint(one, cache) for one in asked}) == 3


def test_values_of_inputs_count(model, cache):
    key = importers.import_fingerprint(model, cache)
    one, two = (
        importers.import_fingerprint(replace(model, values={"x": value}), cache) for value in (1, 2)
    )
    assert len({key, one, two}) == 3


def test_external_weights_count(external, cache, tmp_path):
    key = importers.import_fingerprint(external, cache)
    data = tmp_path / "weights.bin"
    data.write_bytes(b"\1" + data.read_bytes()[1:])
    assert importers.import_fingerprint(external, cache) != key


def test_missing_external_weights_are_reported(external, cache, tmp_path):
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="external weights"):
        importers.import_fingerprint(external, cache)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_missing_file_is_reported_at_once(suffix, cache, tmp_path):
    with pytest.raises(ModelError, match="no file"):
        importers.import_fingerprint(Model("m", str(tmp_path / f"m{suffix}")), cache)


def test_no_framework_is_imported(tmp_path):
    (tmp_path / "m.pt2").write_bytes(b"anything")
    code = f"""
import sys
from pathlib import Path
from farm import importers, zoo
from farm.types import Model
cache = Path({str(tmp_path)!r})
assert importers.import_fingerprint(zoo.digits(), cache)
assert importers.import_fingerprint(Model("m", {str(tmp_path / "m.pt2")!r}), cache)
assert importers.import_fingerprint(Model("m", "python:farm.zoo:resnet18"), cache) is None
import farm.inputs.read
print([name for name in ("tvm", "torch", "onnx", "onnxruntime") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_packages_of_a_source_are_those_that_python_finds_for_its_imports(tmp_path):
    names = [
        "PIL",
        "click",
        "google",
        "json",
        "nothing_of_this_name",
        "numpy",
        "six",
        "torch",
        "yaml",
    ]
    source = tmp_path / "source.py"
    source.write_text("".join(f"import {name}.part\n" for name in names))
    fingerprints.record_dependencies("python:source:net", tmp_path, [source])
    (record,) = (tmp_path / "python-sources").iterdir()
    owners = metadata.packages_distributions()
    expected = sorted({owner for name in names for owner in owners.get(name, [])})
    assert {"numpy", "torch"} < set(expected)
    assert json.loads(record.read_text())["packages"] == expected
