"""A model of float16 weights on an NVIDIA GPU: the real agent, and the kernels that TVM makes for
tensor cores, run by the stand-in for
NVIDIA's driver (see `gpu_stand_in_devices`), in which the threads of a warp multiply together. That
GPUs do the same is for tools/bench-gpu."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from farm_processes import Farm
from gpu_stand_in_devices import agent, cache, device, farm, recorded
from onnx import TensorProto, helper, numpy_helper

__all__ = ["cache", "farm"]  # fixtures

MODEL = """
[models.halves]
source = "halves.onnx"
quantize = "float16"

[limits.float16]
max_abs = 1e-3
"""
CHANNELS, CLASSES = 128, 64
WEIGHTS = {
    "w": (CHANNELS, 16, 3, 3),
    "b": (CHANNELS,),
    "v": (CHANNELS, CHANNELS, 1, 1),
    "c": (CHANNELS * 9, CLASSES),
    "d": (CLASSES,),
}
NODES = [
    helper.make_node("Conv", ["x", "w", "b"], ["rows"], pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["rows"], ["kept"]),
    helper.make_node("Conv", ["kept", "v"], ["more"]),
    helper.make_node("Add", ["kept", "more"], ["sum"]),
    helper.make_node("AveragePool", ["sum"], ["means"], kernel_shape=[4, 4], strides=[4, 4]),
    helper.make_node("Flatten", ["means"], ["flat"]),
    helper.make_node("Gemm", ["flat", "c", "d"], ["scores"]),
    helper.make_node("Softmax", ["scores"], ["y"]),
]


def write_model(path: Path) -> None:
    """Two convolutions that fill tensor cores, the second beside what it gets, and layers that go
    elsewhere.
    """
    numbers = np.random.default_rng(7)
    weights = [
        numpy_helper.from_array(
            (numbers.standard_normal(shape) / np.sqrt(max(shape[1:], default=1))).astype("float32"),
            name,
        )
        for name, shape in WEIGHTS.items()
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 16, 12, 12]), ("y", [1, CLASSES]))
    ]
    for number, node in enumerate(NODES):
        node.name = f"/block.{number}/{node.op_type} [é]"  # which no compiler of C takes as a name
    graph = helper.make_graph(NODES, path.stem, ends[:1], ends[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )


@pytest.fixture
def gpu(farm: Farm, cache: Path) -> Farm:
    """A farm whose device gpu0 runs this model's kernels."""
    write_model(farm.folder / "halves.onnx")
    farm.configure(device() + MODEL)
    farm.environment = recorded(farm.folder, cache, "halves")
    return farm


def test_a_model_of_halves_is_right_on_tensor_cores(gpu: Farm, agents) -> None:
    log = gpu.folder / "driver.log"
    with agent(gpu, agents, STAND_IN_LOG=str(log)) as url:
        gpu.configure(device(url=url) + MODEL)
        done = gpu.run("deploy", "--device", "gpu0", "halves", "--json")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert (
        run["samples"]["agreement"]["right"] and 0 < run["samples"]["agreement"]["max_abs"] < 1e-3
    )
    launched = set(re.findall(r"launch (\w+)_kernel ", log.read_text()))
    table = gpu.run("compile", "halves", "--profile", "cuda-sm80", "-v")
    on_tensor_cores = set(re.findall(r"^ *(\w+) +tensor cores", table.out, re.MULTILINE))
    assert len(on_tensor_cores) == 2 and on_tensor_cores <= launched, (table.out, launched)
