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
from farm.compiler.cpu.tir_passes.unroll_wrapping_loops import UnrollWrappingLoops
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


def loops_after(extent, modulus):
    """The kinds and extents of the loops that the pass makes of y[i] = x[i % modulus]."""
    x = te.placeholder((modulus,), "float32", "x")
    y = te.compute((extent,), lambda i: x[i % modulus], "y")
    module = tvm.IRModule({"main": te.create_prim_func([x, y])})
    lowered = tvm.transform.Sequential(
        [tvm.s_tir.transform.ConvertBlocksToOpaque(), tvm.s_tir.transform.LowerOpaqueBlock()]
    )(module)
    found = []
    body = UnrollWrappingLoops()(lowered)["main"].body
    tvm_ffi.structural_walk(body, [(tirx.For, found.append)])
    return [(int(loop.extent), loop.kind == tirx.ForKind.UNROLLED) for loop in found]


@pytest.mark.parametrize(("extent", "modulus"), [(16, 8), (12, 4), (64, 2), (9, 8)])
def test_a_short_loop_that_wraps_is_unrolled(extent, modulus):
    assert loops_after(extent, modulus) == [(extent, True)]


def test_a_long_loop_that_wraps_is_one_of_parts_that_do_not():
    assert sorted(loops_after(256, 8)) == [(8, True), (32, False)]


@pytest.mark.parametrize(("extent", "modulus"), [(8, 8), (4, 8), (12, 3)])
def test_a_loop_that_does_not_wrap_at_a_power_of_two_stays(extent, modulus):
    assert loops_after(extent, modulus) == [(extent, False)]
