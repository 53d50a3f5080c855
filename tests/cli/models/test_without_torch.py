"""farm without PyTorch, which only models from PyTorch need: everything else works, and they get
one clear error.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from farm_processes import Farm

HIDDEN = "import sys\nsys.modules['torch'] = None  # as if it were not installed\n"


@pytest.fixture
def without(fresh: Farm) -> Farm:
    """A farm in which nothing is imported yet, and in whose processes torch cannot be."""
    (fresh.folder / "hidden").mkdir()
    (fresh.folder / "hidden/sitecustomize.py").write_text(HIDDEN)
    fresh.environment = {"PYTHONPATH": str(fresh.folder / "hidden")}
    return fresh


def test_models_in_onnx_and_tflite_are_imported_checked_and_run(without: Farm) -> None:
    shutil.copy(Path(__file__).parents[2] / "data/small-float.tflite", without.folder)
    done = without.run("deploy", "--device", "host", "digits", "small-float.tflite", "--json")
    assert done.code == 0, done.err
    assert [run["samples"]["agreement"]["right"] for run in done.json["runs"]] == [True, True]
    assert without.run("check", "digits", "--profile", "rasp3b").code == 0


@pytest.mark.parametrize(
    "words",
    [("deploy", "--device", "host"), ("check",), ("compile",)],
    ids=["deploy", "check", "compile"],
)
@pytest.mark.parametrize("source", ["python:farm.zoo:resnet18", "net.pt2"])
def test_a_model_from_torch_gets_one_error_with_the_command(
    without: Farm, words: tuple[str, ...], source: str
) -> None:
    (without.folder / "net.pt2").write_bytes(b"PK\x03\x04 an archive")
    done = without.run(*words, source)
    assert done.code in (1, 3), done.err
    shown = done.out + done.err
    assert "without PyTorch" in shown and "pip install 'tvm-farm[torch]'" in shown
    assert "Traceback" not in shown
