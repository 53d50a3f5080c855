"""The trained model that ships: its accuracy is a fact, and its training script makes it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from farm import data, importers, zoo
from farm.inputs.read import read_class_names

CORRECT, TOTAL = 357, 360  # by ONNX Runtime, as recorded in farm/zoo/digits/README.md


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    return importers.import_model(zoo.digits(), tmp_path_factory.mktemp("cache"))


def test_onnxruntime_gets_as_many_right_as_is_recorded(imported):
    model = zoo.digits()
    samples = data.open_labelled_data_set(model.dataset, model, imported.inputs, imported.outputs)
    found = [
        imported.reference(sample.inputs)[0].argmax() == sample.label for sample in samples.read()
    ]
    assert (sum(found), len(found)) == (CORRECT, TOTAL)
    assert f"{CORRECT} of the {TOTAL}" in (Path(model.source).parent / "README.md").read_text()


def test_the_test_set_holds_every_digit_and_the_labels_name_them():
    with np.load(zoo.digits().dataset) as arrays:
        images, labels = arrays["inputs"], arrays["labels"]
    assert (
        set(np.bincount(labels)) <= {35, 36, 37}
        and len(read_class_names(zoo.digits().labels)) == 10
    )
    assert images.shape == (TOTAL, 1, 8, 8) and images.min() == 0 and images.max() == 1
    np.testing.assert_array_equal(images * 16, np.round(images * 16))


def test_batch_norms_are_in_the_file_for_the_farm_to_fold(imported):
    model = onnx.load(zoo.digits().source)
    assert [node.op_type for node in model.graph.node].count("BatchNormalization") == 4
    assert imported.inputs[0].shape == (1, 1, 8, 8) and imported.outputs[0].shape == (1, 10)
    assert [spec.name for spec in (*imported.inputs, *imported.outputs)] == ["image", "scores"]


def test_what_ships_is_small():
    assert sum(file.stat().st_size for file in Path(zoo.digits().source).parent.iterdir()) < 300_000


def test_the_training_script_makes_it_again():
    script = Path(__file__).parents[2] / "tools" / "train-digits"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reproduced" in done.stdout
