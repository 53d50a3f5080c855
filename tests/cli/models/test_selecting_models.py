"""A model that selects by value, through the command line: a run has as many rows as there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from farm_processes import Farm
from onnx_models import save_selecting, selection_examples


@pytest.fixture
def model(farm: Farm) -> Path:
    return save_selecting(farm.folder / "selecting.onnx")


@pytest.mark.parametrize("device", ["host", "pi3", "rk3399"])
def test_each_input_gives_the_rows_that_it_has(farm: Farm, model: Path, device: str) -> None:
    for sample in selection_examples():
        np.save(farm.folder / "x.npy", sample)
        done = farm.run(
            *("run", "--device", device, str(model)),
            *("--input", "x.npy", "--output", "y.npz", "--quiet"),
        )
        assert done.code == 0, done.err
        with np.load(farm.folder / "y.npz") as found:
            np.testing.assert_array_equal(found["y"], sample[sample > 0.5])
            np.testing.assert_array_equal(found["points"], np.argwhere(sample > 0.5))


def test_a_deployed_model_gives_the_rows_that_there_are(farm: Farm, model: Path) -> None:
    assert farm.run("deploy", "--device", "host", str(model)).code == 0
    for sample in selection_examples():
        np.save(farm.folder / "x.npy", sample)
        done = farm.run("run", "--device", "host", "selecting", "--input", "x.npy")
        assert done.code == 0, done.err
        assert f"y: float32 [{(sample > 0.5).sum()}]" in done.out


def test_layers_and_times_of_its_kernels_are_shown(farm: Farm, model: Path) -> None:
    bisected = farm.run("bisect", "--device", "host", str(model))
    assert bisected.code == 0, bisected.err
    assert "no layer of selecting differs on host" in bisected.out
    profiled = farm.run("profile", "--device", "host", str(model), "--seconds", "0.2")
    assert profiled.code == 0, profiled.err
    assert "SliceToDynamic" in profiled.out


def test_a_gpu_has_no_code_for_it_and_the_error_names_the_kernel(farm: Farm, model: Path) -> None:
    done = farm.run("check", str(model), "--profile", "cuda-sm90")
    assert done.code == 4, done.out + done.err
    assert "kernel non_zero has no code for a GPU" in done.err
