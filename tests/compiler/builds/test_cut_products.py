"""Products of which only a part is used: what takes the part writes within its tensor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx_models import node
from small_graphs import Graph, normal, written

TOOLS = Path(__file__).resolve().parents[3] / "tools"
# The answers, each tensor against a guard page: the process ends where one is left.
RUN = (
    "import json, sys; import graph_runner; "
    "print(json.dumps(graph_runner.check(graph_runner.Path(sys.argv[1]), sys.argv[2])))"
)


def cut(rows: int, kept_rows: int, columns: int, kept: int, wanted: int) -> Graph:
    """Products of many widths, of each the first columns, or the first rows and columns."""
    numbers = np.random.default_rng([rows, columns, kept])
    nodes, outputs, constants = [], {}, {"zeros": [0, 0], "axes": [0, 1]}
    for at in range(wanted):
        width = columns + int(numbers.integers(0, 60))
        taken = [
            int(numbers.integers(1, kept_rows + 1)),
            int(numbers.integers(1, min(kept + at, width) + 1)),
        ]
        constants |= {f"w{at}": normal(7, width), f"ends{at}": taken, f"k{at}": normal(taken[1])}
        nodes += [
            node("MatMul", ["x", f"w{at}"], [f"a{at}"]),
            node("Slice", [f"a{at}", "zeros", f"ends{at}", "axes"], [f"b{at}"]),
            node("Add", [f"b{at}", f"k{at}"], [f"c{at}"])
            if at % 3 == 0
            else node("Sigmoid", [f"b{at}"], [f"c{at}"]),
        ]
        outputs[f"c{at}"] = taken
    return nodes, {"x": [rows, 7]}, outputs, constants


def cut_convolution(channels: int, kept: int) -> Graph:
    nodes = [
        node("Conv", ["x", "w"], ["a"], kernel_shape=[1, 1]),
        node("Slice", ["a", "start", "end", "axis"], ["b"]),
        node("Relu", ["b"], ["y"]),
    ]
    constants = {"w": normal(channels, 5, 1, 1), "start": [0], "end": [kept], "axis": [1]}
    return nodes, {"x": [2, 5, 3, 7]}, {"y": [2, kept, 3, 7]}, constants


GRAPHS = {
    "one row": cut(1, 1, 3, 40, 20),
    "a few rows": cut(5, 5, 3, 40, 20),
    "many rows": cut(60, 60, 3, 40, 20),
    **{
        f"{kept} of {channels} channels": cut_convolution(channels, kept)
        for channels, kept in ((40, 22), (100, 9), (150, 51), (33, 1))
    },
}


@pytest.fixture(scope="module")
def guards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("guards") / "guard_pages.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", library, TOOLS / "guard_pages.c", "-ldl"],
        check=True,
    )
    return library


@pytest.mark.parametrize("cpu", ["native", "x86-64-v3"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_first_columns_of_a_product_are_written_within_their_tensor(
    name, cpu, guards, tmp_path
):
    path = written(tmp_path / "graph.onnx", GRAPHS[name])
    environment = {
        **os.environ,
        "LD_PRELOAD": str(guards),
        "GUARD": "end",
        "PYTHONPATH": str(TOOLS),
    }
    ran = subprocess.run(
        [sys.executable, "-c", RUN, path, cpu],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == ["right", ""]
