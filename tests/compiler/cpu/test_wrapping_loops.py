"""Loops in whose indices a power of two wraps around: LLVM's vectorizer reads beyond the tensor."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import tvm
import tvm_ffi
from host_profile import HOST
from onnx_models import graph, node, save
from tvm import te, tirx

from farm import importers
from farm.compiler import host_run
from farm.compiler.codegen.loop_nest_pipelines import ArgumentChecks, register_cpu_pipeline
from farm.compiler.cpu.tir_passes.keep_wrapping_loops_scalar import KeepWrappingLoopsScalar
from farm.compiler.lower import resolve_target
from farm.types import Model, Profile

CPUS = {"this machine": HOST, "AVX2": Profile("v3", {"kind": "llvm", "mcpu": "x86-64-v3"}, "")}


@pytest.mark.parametrize("profile", CPUS.values(), ids=CPUS)
@pytest.mark.parametrize(("heads", "size"), [(4, 4), (4, 8), (2, 16), (3, 6), (4, 64)])
def test_a_rotary_embedding_is_as_in_onnx_runtime(heads, size, profile, cache, tmp_path):
    width, half = heads * size, size // 2
    body = graph(
        [
            node("Reshape", ["x", "heads"], ["h"]),
            node("Split", ["h"], ["a", "b"], axis=-1, num_outputs=2),
            node("Unsqueeze", ["cos", "two"], ["c"]),
            node("Unsqueeze", ["sin", "two"], ["s"]),
            *(node("Mul", list(pair), ["".join(pair)]) for pair in ("ca", "sb", "sa", "cb")),
            node("Sub", ["ca", "sb"], ["real"]),
            node("Add", ["sa", "cb"], ["imaginary"]),
            node("Concat", ["real", "imaginary"], ["turned"], axis=-1),
            node("Reshape", ["turned", "back"], ["y"]),
        ],
        {"x": [2, 3, width], "cos": [2, 3, half], "sin": [2, 3, half]},
        {"y": [2, 3, width]},
        {
            "heads": np.array([2, 3, heads, size]),
            "two": np.array([2]),
            "back": np.array([2, 3, width]),
        },
    )
    path = save(tmp_path / "model.onnx", body, opset=18)
    imported = importers.import_model(Model("model", str(path)), cache)
    run = host_run.compile_host_runner(imported.module, imported.weights, profile)
    (found,) = run([imported.example[spec.name] for spec in imported.inputs])
    (expected,) = onnxruntime.InferenceSession(str(path)).run(None, imported.example)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def two_counters(rows, extent, kind):
    """A kernel with a loop that LLVM vectorizes if two counters do not wrap around.

    The counters are `i % 8`, and 32 bits that begin at 0 to 20. `nested`: the loop has a short one
    in it.
    """
    x, tables = (te.placeholder(shape, "float32") for shape in ((rows, extent), (28,)))

    def element(o, i):
        index = o * 2 // 4 * 4 + i % 8
        return te.if_then_else(i % 8 < 4, tables[index] * x[o, i], tables[index - 4] - x[o, i])

    if kind == "nested":
        twice = te.reduce_axis((0, 2))
        y = te.compute((rows, extent), lambda o, i: te.sum(element(o, i), axis=twice))
    else:
        y = te.compute((rows, extent), element)
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, tables, y]))
    if kind == "parallel":
        schedule.parallel(schedule.get_loops(schedule.get_sblock("compute"))[-1])
    return schedule.mod["main"].with_attr("global_symbol", "kernel")


@pytest.mark.parametrize("profile", CPUS.values(), ids=CPUS)
@pytest.mark.parametrize("kind", ["alone", "nested", "parallel"])
@pytest.mark.parametrize("extent", [16, 37, 72, 1000])
def test_nothing_is_read_behind_a_table_whose_index_wraps_around(extent, kind, profile):
    rows = 12
    library = tvm.tirx.build(
        tvm.IRModule({"kernel": two_counters(rows, extent, kind)}),
        target=resolve_target(profile),
        pipeline=register_cpu_pipeline(ArgumentChecks.ALL),
    )
    x = np.random.default_rng(0).normal(size=(rows, extent)).astype("float32")
    tables = np.arange(28, dtype="float32")
    arrays = [tvm.runtime.tensor(array) for array in (x, tables, np.zeros_like(x))]
    library["kernel"](*arrays)
    index = np.arange(rows)[:, None] * 2 // 4 * 4 + np.arange(extent) % 8
    expected = np.where(np.arange(extent) % 8 < 4, tables[index] * x, tables[index - 4] - x)
    times = 2 if kind == "nested" else 1
    np.testing.assert_allclose(arrays[2].numpy(), expected * times, rtol=1e-5)


def calls_after(extent, index):
    """How many calls the pass puts into the loop of y[i] = x[index(i)]."""
    x = te.placeholder((1024,), "float32")
    y = te.compute((extent,), lambda i: x[index(i)])
    module = tvm.IRModule({"main": te.create_prim_func([x, y])})
    lowered = tvm.transform.Sequential(
        [tvm.s_tir.transform.ConvertBlocksToOpaque(), tvm.s_tir.transform.LowerOpaqueBlock()]
    )(module)
    found = []
    body = KeepWrappingLoopsScalar()(lowered)["main"].body
    tvm_ffi.structural_walk(body, [(tirx.Evaluate, found.append)])
    return len(found)


@pytest.mark.parametrize(
    ("extent", "index"),
    [
        (16, lambda i: i % 8),
        (9, lambda i: i % 8),
        (te.var("n"), lambda i: i % 8),
        (8, lambda i: (i + 4) % 8),
        (1024, lambda i: i * 3 % 4),
        (64, lambda i: tirx.bitwise_and(i, 7)),
    ],
    ids=["multiple", "longer", "unknown", "from the middle", "steps of three", "mask"],
)
def test_a_loop_that_wraps_around_is_not_vectorized(extent, index):
    assert calls_after(extent, index) == 1


@pytest.mark.parametrize(
    ("extent", "index"),
    [(8, lambda i: i % 8), (4, lambda i: i % 8), (12, lambda i: i % 3), (12, lambda i: i // 4)],
    ids=["equal", "shorter", "no power of two", "quotient"],
)
def test_a_loop_that_does_not_wrap_at_a_power_of_two_stays(extent, index):
    assert calls_after(extent, index) == 0
