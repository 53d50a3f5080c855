"""farm bisect: a fault planted into a build of a MobileNetV2 is found on an emulated board, and
said to be what it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from farm_processes import Farm

from farm.compiler import artifact, parameter_files

NET = ("python:short:build_mobilenet_v2", "--shape", "image:1,3,32,32")
SHORT = """
from farm.zoo import mobilenet

mobilenet._STAGES = mobilenet._STAGES[:2] + ((6, 32, 2, 2),)  # without the deeper ones
build_mobilenet_v2 = mobilenet.build_mobilenet_v2
"""
SCALED, HOLLOW = 9, 10  # the convolutions into whose weights the faults go


@pytest.fixture
def kept(farm: Farm, emulators: None) -> Iterator[Path]:
    """The kept build for the board, which is as it was when the test is over."""
    (farm.folder / "short.py").write_text(SHORT)
    done = farm.run("compile", *NET, "--profile", "rk3399", "--json")
    folder = farm.cache / "artifacts" / done.json["digest"]
    shard = folder / "parameters" / parameter_files.SHARD
    before = shard.read_bytes()
    yield folder
    shard.write_bytes(before)


def convolutions(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """The steps of a build that are convolutions, with their numbers."""
    steps = json.loads((folder / artifact.GRAPH).read_text())["steps"]
    return [
        (number, step)
        for number, step in enumerate(steps)
        if "convolution" in step["kernel"]  # also with the windows over its result
    ]


def plant(folder: Path, which: int, change: Any) -> int:
    """Change the weights of a convolution in the build; the number of its layer."""
    graph = json.loads((folder / artifact.GRAPH).read_text())
    number, step = convolutions(folder)[which]
    name = next(name for name in step["inputs"] if name in graph["parameters"])
    values = parameter_files.read_stored_parameters(folder / "parameters")
    place = f"{parameter_files.PREFIX}_{graph['parameters'].index(name)}"
    offset = sum(
        value.nbytes
        for other, value in values.items()
        if int(other.split("_")[1]) < int(place.split("_")[1])
    )
    content = bytearray((folder / "parameters" / parameter_files.SHARD).read_bytes())
    changed = change(values[place].copy())
    content[offset : offset + changed.nbytes] = changed.tobytes()
    (folder / "parameters" / parameter_files.SHARD).write_bytes(content)
    return number


def test_a_wrong_scale_and_nan_are_found_in_their_layers(farm: Farm, kept: Path) -> None:
    def hollow(weights: np.ndarray) -> np.ndarray:
        weights.reshape(-1)[0] = np.nan
        return weights

    scaled = plant(kept, SCALED, lambda weights: (weights * 1.1).astype(np.float32))
    nan = plant(kept, HOLLOW, hollow)
    done = farm.run("bisect", "--device", "rk3399", *NET, "--json")
    assert done.code == 7, done.err
    found = done.json
    layers = found["layers"]
    assert found["first_bad"] == scaled and [
        number for number, layer in enumerate(layers) if layer["bad"]
    ] == [scaled, nan]
    assert (
        layers[scaled]["snr_db"] < 40 and layers[scaled]["damaged"]
    )  # 10 % of the branch that is added
    assert layers[nan]["not_finite"] == "NaN" and layers[nan]["damaged"]
    assert layers[scaled]["name"].startswith("features.") and not found["whole"]["right"]
    assert (
        f"layer {scaled}, {layers[scaled]['name']}" in found["findings"][0]
        and str(kept) in found["findings"][1]
    )
    assert sum(bool(layer["name"]) for layer in layers) >= len(layers) - 2


def test_where_nothing_differs_it_says_so(farm: Farm) -> None:
    done = farm.run("bisect", "--device", "host", "digits")
    assert (
        done.code == 0
        and "no layer of digits differs on host, and the whole answer is right" in done.out
    )
    assert "Relu_2" in done.out and "Gemm_14" in done.out


TWICE = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden) + torch.matmul(hidden, hidden)


def net():
    torch.manual_seed(0)
    return Net().eval(), (torch.ones(8, 8),)
"""


def test_a_tensor_that_a_step_takes_twice_is_there_for_later_steps(farm: Farm) -> None:
    (farm.folder / "twice.py").write_text(TWICE)
    done = farm.run("bisect", "--device", "host", "python:twice:net", "--json")
    assert done.code == 0, done.err
    assert done.json["first_bad"] is None and done.json["whole"]["right"]
