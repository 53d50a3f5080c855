"""Kernels stay within their tensors, write all of them, and compute the same with any number of
threads: products of which only a part is used, and the graphs of `regression_graphs`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm_programs
from onnx_models import node
from regression_graphs import CUT_LOOPS, FOLLOWED, Graph, gather_concat, normal, written

TOOLS = Path(__file__).resolve().parents[3] / "tools"
# The results of graphs, whose kernels run one by one with guard pages, and 1, 2 and 3 threads.
RUN = (
    "import json, sys; import graph_runner; "
    "guarded = lambda imported, path: "
    "graph_runner.check_with_guards(imported, path, sys.argv[1]); "
    "found = [graph_runner.check(graph_runner.Path(one), guarded) for one in sys.argv[2:]]; "
    "print(json.dumps(found))"
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
    "one row": cut(1, 1, 3, 40, 12),
    "a few rows": cut(5, 5, 3, 40, 12),
    "many rows": cut(60, 60, 3, 40, 12),
    **{
        f"{kept} of {channels} channels": cut_convolution(channels, kept)
        for channels, kept in ((40, 22), (100, 9), (150, 51), (33, 1))
    },
}


@pytest.mark.parametrize("cpu", ["native", "x86-64-v3"])
def test_kernels_write_all_of_their_tensors_and_nothing_else(cpu, tmp_path):
    made = {**GRAPHS, **CUT_LOOPS, **FOLLOWED, "a lookup": gather_concat()}
    paths = [written(tmp_path / f"{at}.onnx", one) for at, one in enumerate(made.values())]
    ran = subprocess.run(
        [sys.executable, "-c", RUN, cpu, *paths],
        capture_output=True,
        text=True,
        env=tvm_programs.environment({**os.environ, "PYTHONPATH": str(TOOLS)}),
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    found = dict(zip(made, json.loads(ran.stdout.splitlines()[-1]), strict=True))
    assert {name: one for name, one in found.items() if one != ["right", ""]} == {}
