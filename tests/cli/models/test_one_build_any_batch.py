"""A model with an open batch, through the command line: built once for a device, run there with any
batch.
"""

from __future__ import annotations

from pathlib import Path

import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest
from farm_processes import Farm
from onnx import TensorProto, helper, numpy_helper

from farm.views.schema import schema

numbers = np.random.default_rng(3)


@pytest.fixture
def model(farm: Farm) -> Path:
    """A convolution, a mean and a product: small.onnx, of [batch, 3, 12, 12]."""
    weights = {
        "w": numbers.standard_normal((20, 3, 3, 3)) / 5,
        "f": numbers.standard_normal((20, 7)) / 4,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["l"]),
        helper.make_node("MatMul", ["l", "f"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, 12, 12]), ("y", ["n", 7]))
    ]
    tensors = [
        numpy_helper.from_array(weight.astype("float32"), name) for name, weight in weights.items()
    ]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], tensors)
    path = farm.folder / "small.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


def agrees(farm: Farm, path: Path, device: str, name: str, batch: int) -> None:
    """Whether a run of a batch gives what ONNX Runtime does."""
    x = numbers.standard_normal((batch, 3, 12, 12)).astype("float32")
    np.save(farm.folder / "x.npy", x)
    done = farm.run(
        "run", "--device", device, name, "--input", "x.npy", "--output", "y.npz", "--quiet"
    )
    assert done.code == 0, done.err
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    np.testing.assert_allclose(np.load(farm.folder / "y.npz")["y"], expected, atol=1e-5)


def test_one_build_runs_every_batch_on_this_machine_and_on_emulated_boards(
    farm: Farm, model: Path, emulators: None
) -> None:
    for device in ("host", "pi3", "rk3399"):
        agrees(farm, model, device, "small.onnx", 1)
        built = set((farm.cache / "artifacts").iterdir())
        for batch in (2, 7):
            agrees(farm, model, device, "small.onnx", batch)
        assert set((farm.cache / "artifacts").iterdir()) == built


def test_sums_by_groups_of_a_core_in_order_take_any_batch(
    farm: Farm, model: Path, emulators: None
) -> None:
    farm.configure('[devices.a53]\nprofile = "rasp3b-64"\nurl = "qemu:"\n')
    for batch in (1, 7):
        agrees(farm, model, "a53", "small.onnx", batch)


def test_a_deployed_model_takes_any_batch_and_refuses_another_shape(
    farm: Farm, model: Path
) -> None:
    deployed = farm.run("deploy", "--device", "host", "small.onnx")
    assert deployed.code == 0, deployed.err
    agrees(farm, model, "host", "small", 3)
    np.save(farm.folder / "x.npy", np.zeros((3, 4, 12, 12), "float32"))
    refused = farm.run("run", "--device", "host", "small", "--input", "x.npy")
    assert "[any, 3, 12, 12]" in refused.error["why"]


def test_check_and_compile_tell_of_the_open_batch(farm: Farm, model: Path) -> None:
    assert (
        "[any, 3, 12, 12]" in (checked := farm.run("check", "small.onnx")).out
        and "measured at 1" in checked.out
    )
    assert "measured at 1" in farm.run("compile", "small.onnx").out
    assert "batch" not in farm.run("compile", "small.onnx", "--shape", "x:2,3,12,12").out


def test_a_bench_has_a_build_and_a_row_for_each_batch(
    farm: Farm, model: Path, emulators: None
) -> None:
    done = farm.run(
        "bench", "--device", "host", "--device", "pi3", "small.onnx", "--batch", "1,8", "--json"
    )
    assert done.code == 0, done.err
    jsonschema.Draft202012Validator(schema("bench")).validate(done.json)
    runs = done.json["runs"]
    assert [(run["device"], run["model"], run["batch"]) for run in runs] == [
        (device, f"small.batch{batch}", batch) for device in ("host", "pi3") for batch in (1, 8)
    ]
    for run in runs[:2]:
        assert run["inferences_per_s"] == pytest.approx(
            1e3 * run["batch"] / run["latency"]["p50_ms"]
        )
        assert run["power_w"] is None, "no CPU tells it"
    assert {run["inferences_per_s"] for run in runs[2:]} == {None}, "an emulator's figures are none"
    assert len({run["artifact_digest"] for run in runs}) == 4
    shown = farm.run("bench", "--device", "host", "small.onnx", "--batch", "8").out
    assert "inf/s" in shown and "mJ/inf" not in shown


def test_a_batch_that_a_model_does_not_take_fails_in_its_row_only(farm: Farm) -> None:
    done = farm.run("bench", "--device", "host", "digits", "--batch", "1,8", "--json")
    one, eight = done.json["runs"]
    assert done.code == 1 and one["verdict"] in ("STABLE", "NOISY") and one["inferences_per_s"] > 0
    assert eight["failure"]["what"] == "digits.onnx cannot be built for a batch of 8"
    assert "export it with an open batch" in eight["failure"]["fix"]


@pytest.mark.parametrize("words", ["0", "two", "1,", "-8"])
def test_what_is_no_batch_is_a_mistake_of_usage(farm: Farm, words: str) -> None:
    done = farm.run("bench", "--device", "host", "digits", "--batch", words)
    assert done.code == 2 and "--batch" in done.error["error"]
