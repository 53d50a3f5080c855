"""farm bisect: a fault planted into a build of MobileNetV2 is found on an emulated board, and said to be what it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from farm_running import Farm

from farm import config, prepare
from farm.compiler import build, lower, parameters, schedules
from farm.parallel import Desk
from farm.store import RecordStore

SHAPE = (1, 3, 32, 32)  # the whole network, on a small image
NET = ("python:farm.zoo:mobilenet_v2", "--shape", "image:1,3,32,32")
SCALED, HOLLOW = 9, 30  # the convolutions into whose weights the faults go


@pytest.fixture
def kept(farm: Farm, emulators: None) -> Iterator[Path]:
    """The kept build for the board, which is as it was when the test is over."""
    done = farm.run("compile", *NET, "--profile", "rk3399", "--json", seconds=300)
    folder = farm.cache / "artifacts" / done.json["digest"]
    shard = folder / "parameters" / parameters.SHARD
    before = shard.read_bytes()
    yield folder
    shard.write_bytes(before)


def convolutions(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """The steps of a build that are convolutions, with their numbers."""
    steps = json.loads((folder / build.GRAPH).read_text())["steps"]
    return [(number, step) for number, step in enumerate(steps) if "convolution" in step["kernel"] and "depthwise" not in step["kernel"]]


def plant(folder: Path, which: int, change: Any) -> int:
    """Change the weights of a convolution in the build; the number of its layer."""
    graph = json.loads((folder / build.GRAPH).read_text())
    number, step = convolutions(folder)[which]
    name = next(name for name in step["inputs"] if name in graph["parameters"])
    values = parameters.read(folder / "parameters")
    place = f"{parameters.PREFIX}_{graph['parameters'].index(name)}"
    offset = sum(value.nbytes for other, value in values.items() if int(other.split("_")[1]) < int(place.split("_")[1]))
    content = bytearray((folder / "parameters" / parameters.SHARD).read_bytes())
    changed = change(values[place].copy())
    content[offset : offset + changed.nbytes] = changed.tobytes()
    (folder / "parameters" / parameters.SHARD).write_bytes(content)
    return number


def test_a_wrong_scale_and_nan_are_found_in_their_layers(farm: Farm, kept: Path) -> None:
    def hollow(weights: np.ndarray) -> np.ndarray:
        weights.reshape(-1)[0] = np.nan
        return weights

    scaled = plant(kept, SCALED, lambda weights: (weights * 1.1).astype(np.float32))
    nan = plant(kept, HOLLOW, hollow)
    done = farm.run("bisect", "--device", "rk3399", *NET, "--json", seconds=300)
    assert done.code == 7, done.err
    found = done.json
    layers = found["layers"]
    assert found["first_bad"] == scaled and [number for number, layer in enumerate(layers) if layer["bad"]] == [scaled, nan]
    assert layers[scaled]["snr_db"] < 40 and layers[scaled]["damaged"]  # 10 % of the branch that is added
    assert layers[nan]["not_finite"] == "NaN" and layers[nan]["damaged"]
    assert layers[scaled]["name"].startswith("features.") and not found["whole"]["right"]
    assert f"layer {scaled}, {layers[scaled]['name']}" in found["findings"][0] and str(kept) in found["findings"][1]
    assert sum(bool(layer["name"]) for layer in layers) >= len(layers) - 2


def test_a_kernel_whose_code_is_wrong_is_found(farm: Farm, emulators: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass cuts the activations of one kernel off at 3 instead of 6; the build is kept where the command finds it."""
    import tvm

    real, changed = schedules.schedule, set[str]()

    def faulty(module: Any, core: Any) -> Any:
        module, kernels = real(module, core)
        variable = next(one for one, _ in module.functions_items() if one.name_hint.startswith("fused_depthwise4"))
        content = json.loads(tvm.ir.save_json(module[variable]))
        for one in content["nodes"]:
            if one["type"] == "ir.FloatImm" and one["data"]["value"] == 6.0:
                one["data"]["value"] = 3.0
        module.update_func(variable, tvm.ir.load_json(json.dumps(content)))
        changed.add(variable.name_hint)
        return module, kernels

    fleet = config.load(farm.folder / "devices.toml")
    model, profile = replace(fleet.model(NET[0]), shapes={"image": SHAPE}), fleet.profile("rk3399")
    desk = Desk(tmp_path)
    prepared = prepare.prepare(desk, model, fleet.profile("x86"), farm.cache)
    folder = farm.cache / "artifacts" / build.artifact_digest(prepared, profile)
    shutil.rmtree(folder, ignore_errors=True)
    monkeypatch.setattr(lower.schedules, "schedule", faulty)
    build.build(desk, prepared, profile, farm.cache, RecordStore(farm.data / "records.sqlite"))
    try:
        done = farm.run("bisect", "--device", "rk3399", *NET, "--json", seconds=300)
    finally:
        shutil.rmtree(folder)
    layers = done.json["layers"]
    bad = {layer["kernel"] for layer in layers if layer["bad"]}
    assert done.code == 7 and bad == changed and not any(layer["damaged"] for layer in layers)
    assert "its code is, or the board" in done.json["findings"][1]


def test_where_nothing_differs_it_says_so(farm: Farm) -> None:
    done = farm.run("bisect", "--device", "host", "digits")
    assert done.code == 0 and "no layer of digits differs on host, and the whole answer is right" in done.out
    assert "Relu_2" in done.out and "Gemm_14" in done.out
