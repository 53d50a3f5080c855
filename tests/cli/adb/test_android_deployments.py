"""What stays on an Android board: releases that run without a build, that are rolled back, and that
are removed; and profiles of them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from android_board import AndroidBoard
from android_board_checks import assert_nothing_is_left, configure
from farm_processes import DIGITS, QUICK, Farm, is_convolution
from onnx import numpy_helper

import farm as package

ZOO = Path(package.__file__).parent / "zoo" / "digits"


def other_weights(farm: Farm) -> None:
    """The model of the same code with other weights."""
    model = onnx.load(ZOO / "digits.onnx")
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(
                numpy_helper.from_array(
                    numpy_helper.to_array(tensor) * np.float32(0.5), tensor.name
                )
            )
    onnx.save(model, farm.folder / "digits.onnx")


def outputs(farm: Farm) -> np.ndarray[Any, Any]:
    """What `farm run` gives for a handwritten digit."""
    done = farm.run("run", "--input", "x.npy", "--output", "out.npz", "--device", "board", "digits")
    assert done.code == 0, done.err
    with np.load(farm.folder / "out.npz") as kept:
        (result,) = (kept[name] for name in kept.files)
    return np.asarray(result)


@pytest.mark.parametrize(("profile", "launcher"), [("x86", ""), ("pixel2", "qemu-aarch64")])
def test_a_phone_keeps_releases_and_runs_them_alone(
    farm: Farm, phone: AndroidBoard, emulators: None, profile: str, launcher: str
) -> None:
    options = f'options = {{ launcher = "{launcher}", threads = 1 }}\n' if launcher else ""
    board = f'[devices.board]\nprofile = "{profile}"\nurl = "{phone.url}"\n{options}' + QUICK
    image = farm.folder / "x.npy"
    np.save(
        image, np.load(ZOO / "digits-test.npz")["inputs"][:1].reshape(1, 1, 8, 8).astype("float32")
    )
    farm.configure(board + DIGITS)
    assert (
        farm.run("deploy", "--device", "board", "digits", "--json").json["runs"][0]["samples"][
            "release"
        ]
        == 1
    )
    first = outputs(farm)
    other_weights(farm)
    farm.configure(board + '[models.digits]\nsource = "digits.onnx"\n')
    assert (
        farm.run("deploy", "--device", "board", "digits", "--json").json["runs"][0]["samples"][
            "release"
        ]
        == 2
    )
    assert not np.allclose(outputs(farm), first)
    assert farm.run("rollback", "--device", "board", "digits").code == 0
    assert np.array_equal(outputs(farm), first)
    assert_nothing_is_left(farm, phone)
    if not launcher:  # as its own shell would start it
        assert farm.run("provision", "--device", "board").code == 0
        command = [
            phone.kept / "farm-agent",
            "run",
            "digits",
            "--input",
            image,
            "--output",
            "alone",
        ]
        subprocess.run(command, cwd=farm.folder, capture_output=True, check=True)
        (file,) = (farm.folder / "alone").glob("*.npy")
        assert np.array_equal(np.load(file), first), "the very bits, with no host around"
    removed = farm.run("provision", "--device", "board", "--remove")
    assert removed.code == 0, removed.err
    assert [path.name for path in phone.kept.rglob("*")] == [], removed.out
    assert_nothing_is_left(farm, phone)


def test_a_profile_of_a_phone(farm: Farm, phone: AndroidBoard) -> None:
    configure(farm, phone.url)
    done = farm.run("profile", "--device", "board", "digits", "--seconds", "0.2", "--json")
    assert done.code == 0, done.err
    steps = done.json["steps"]
    assert done.json["agreement"]["right"] and sum(map(is_convolution, steps)) == 3
    assert_nothing_is_left(farm, phone)


def test_a_large_model_goes_to_a_phone_beside_the_agents_channel(
    farm: Farm, phone: AndroidBoard
) -> None:
    weights = np.random.default_rng(0).standard_normal((1024, 1024)).astype("float32")
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1024]) for name in "xy"
    )
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph(
        [node], "large", [x], [y], [numpy_helper.from_array(weights, "w")]
    )
    onnx.save(
        onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
        ),
        farm.folder / "large.onnx",
    )
    configure(farm, phone.url)
    done = farm.run("deploy", "--device", "board", "large.onnx", "--json")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["samples"]["agreement"]["right"] and run["samples"]["uploaded"] >= weights.nbytes
    assert "dd of=" in (phone.folder / "adbd.log").read_text()
    assert_nothing_is_left(farm, phone)
