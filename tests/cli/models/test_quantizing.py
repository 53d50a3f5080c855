"""farm quantize: from a float model and samples to a file that every command takes, and to words
about what that did.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner, Result

from farm import zoo
from farm.cli import cli
from farm.errors import FarmError
from farm.views.schema import schema


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("FARM_CACHE", "FARM_DATA", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)

    def run(command: str, *arguments: str) -> Result:
        return CliRunner().invoke(cli, [command, "-q", *arguments])

    return run


def test_a_model_is_quantized_reported_and_then_used_like_any_other(farm, tmp_path):
    done = farm(
        "quantize",
        "digits",
        "--data",
        str(zoo.digits().dataset),
        "--samples",
        "30",
        "-o",
        "d.int8",
        "--json",
    )
    assert done.exit_code == 0, (done.output, done.exception)
    said = json.loads(done.stdout)
    assert (said["schema"], said["total"], said["float_correct"]) == ("farm/quantize/1", 360, 357)
    jsonschema.Draft202012Validator(schema("quantize")).validate(said)
    assert (
        said["correct"] >= 355
        and said["bytes"] < said["float_bytes"]
        and said["layers"][0]["snr_db"] > 10
    )
    compiled = farm("compile", "d.int8", "--json")
    assert compiled.exit_code == 0, (compiled.output, compiled.exception)
    assert any(kernel["rule"].endswith("int8") for kernel in json.loads(compiled.stdout)["kernels"])
    checked = farm("check", "d.int8", "--json")
    assert (
        checked.exit_code == 0 and "quantize" in json.loads(checked.stdout)["outline"]["operators"]
    )


def test_weights_are_halved_without_data_and_the_file_is_used_like_any_other(farm, tmp_path):
    done = farm("quantize", "digits", "--to", "float16", "-o", "d.float16")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "99.17 % float, 99.17 % float16 (+0.00 points) of 360 labelled samples" in done.stdout
    share, ratio_db = (
        re.search(words, done.stdout)
        for words in (r"MB float16 \((\d+)%\)", r"outputs +([\d.]+) dB")
    )
    assert share and int(share[1]) < 80 and ratio_db and float(ratio_db[1]) > 60
    listed = farm("compile", "d.float16", "--json")
    assert listed.exit_code == 0, (listed.output, listed.exception)
    assert "when loaded" in {kernel["halves"] for kernel in json.loads(listed.stdout)["kernels"]}
    exported = farm("export", "d.float16", "--profile", "x86", "--format", "parts", "-o", "parts")
    assert exported.exit_code == 0, (exported.output, exported.exception)
    tensors = json.loads((tmp_path / "parts" / "d.float16.json").read_text())["graph"]["tensors"]
    with np.load(tmp_path / "parts" / "d.float16.npz") as kept:
        assert {name: kept[name].dtype.name for name in kept.files} == {
            name: tensors[name]["dtype"] for name in kept.files
        }
    checked = json.loads(farm("check", "d.float16", "--profile", "rasp3b", "--json").stdout)
    assert checked["loaded_bytes"] > 1.8 * checked["outline"]["parameter_bytes"]  # widened there


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["digits", "-o", "d.onnx"], "does not end in .int8"),
        (["digits", "--to", "float16", "-o", "d.int8"], "does not end in .float16"),
        (
            ["digits", "--to", "float16", "--samples", "9", "-o", "d.float16"],
            "--samples says how to calibrate",
        ),
        (["digits", "--data", "other.npz", "-o", "nowhere/d.int8"], "cannot be written"),
        (["digits", "--data", "nowhere", "-o", "d.int8"], "no file or folder"),
        (["digits", "--data", "empty", "-o", "d.int8"], "holds no samples"),
        (["digits", "--data", "other.npz", "-o", "d.int8"], "do not fit"),
        (["resnet18", "-o", "d.int8"], "no data to quantize"),
        (["resnet18", "-o", "d.float16"], "does not end in .int8"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(arguments, what, farm, tmp_path):
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "other.npz", inputs=np.zeros((3, 1, 9, 9), np.float32))
    done = farm("quantize", *arguments)
    assert isinstance(done.exception, FarmError) and what in str(done.exception)
    assert not [*tmp_path.glob("*.int8"), *tmp_path.glob("*.float16")]
