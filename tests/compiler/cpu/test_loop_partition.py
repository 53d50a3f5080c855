"""Conditions that TVM's LoopPartition may cut a loop at, and those that are hidden from it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_script
from tvm.script import tirx as T  # noqa: N812

from farm.compiler.codegen.loop_nest_pipelines import register_cpu_pipeline
from farm.compiler.cpu.tir_passes.safe_loop_partition import hide_unsafe_conditions

N = 16
HIDDEN = "ignore_loop_partition"


@tvm_script.prim_func(s_tir=True)
def own(a: T.Buffer((N, N), "int32"), limit: T.Buffer((N,), "int32"), y: T.Buffer((N, N), "int32")):
    for i in range(N):
        for j in T.serial(N // 4, annotations={"pragma_loop_partition_hint": 1}):
            for k in range(4):
                with T.sblock("y"):
                    v = T.axis.spatial(N, i)
                    w = T.axis.spatial(N, j * 4 + k)
                    y[v, w] = T.if_then_else(w < 5, a[v, w], w)


@tvm_script.prim_func(s_tir=True)
def foreign(
    a: T.Buffer((N, N), "int32"), limit: T.Buffer((N,), "int32"), y: T.Buffer((N, N), "int32")
):
    for i in range(N):
        for j in T.serial(N, annotations={"pragma_loop_partition_hint": 1}):
            with T.sblock("y"):
                v, w = T.axis.remap("SS", [i, j])
                y[v, w] = T.if_then_else(v * 7 + w < 40, a[v, w], w)


@tvm_script.prim_func(s_tir=True)
def loaded(
    a: T.Buffer((N, N), "int32"), limit: T.Buffer((N,), "int32"), y: T.Buffer((N, N), "int32")
):
    for i in range(N):
        for j in T.serial(N, annotations={"pragma_loop_partition_hint": 1}):
            with T.sblock("y"):
                v, w = T.axis.remap("SS", [i, j])
                y[v, w] = T.if_then_else(w < limit[0], a[v, w], w)


@tvm_script.prim_func(s_tir=True)
def both(
    a: T.Buffer((N, N), "int32"), limit: T.Buffer((N,), "int32"), y: T.Buffer((N, N), "int32")
):
    for i in range(N):
        for j in T.serial(N, annotations={"pragma_loop_partition_hint": 1}):
            with T.sblock("y"):
                v, w = T.axis.remap("SS", [i, j])
                y[v, w] = T.if_then_else(w < 9 and w + v * 20 < 50, a[v, w], w)


@tvm_script.prim_func(s_tir=True)
def named(
    a: T.Buffer((N, N), "int32"), limit: T.Buffer((N,), "int32"), y: T.Buffer((N, N), "int32")
):
    for i in range(N):
        for j in T.serial(N, annotations={"pragma_loop_partition_hint": 1}):
            with T.sblock("y"):
                v, w = T.axis.remap("SS", [i, j])
                place = T.int32()
                y[v, w] = T.Let(T.if_then_else(place < 40, a[v, w], w), where={place: v * 7 + w})


@tvm_script.prim_func(s_tir=True)
def nested(
    a: T.Buffer((N, N), "int32"), limit: T.Buffer((N,), "int32"), y: T.Buffer((N, N), "int32")
):
    for i in T.serial(N, annotations={"pragma_loop_partition_hint": 1}):
        for j in T.serial(N, annotations={"pragma_loop_partition_hint": 1}):
            with T.sblock("y"):
                v, w = T.axis.remap("SS", [i, j])
                y[v, w] = T.if_then_else(v * 7 + w < 40 and v < 9, a[v, w], w)


@tvm_script.prim_func(s_tir=True)
def cancelling(
    a: T.Buffer((N, N), "int32"), limit: T.Buffer((N,), "int32"), y: T.Buffer((N, N), "int32")
):
    for i in range(N):
        for j in T.serial(N, annotations={"pragma_loop_partition_hint": 1}):
            with T.sblock("y"):
                v, w = T.axis.remap("SS", [i, j])
                y[v, w] = T.if_then_else((v * 16 + w) % 16 < 5, a[v, w], w)


row, column = np.mgrid[:N, :N]
ALL = {
    "own": (own, 0, column < 5),
    "foreign": (foreign, 1, row * 7 + column < 40),
    "loaded": (loaded, 1, column < 40),
    "both": (both, 1, (column < 9) & (column + row * 20 < 50)),
    "named": (named, 1, row * 7 + column < 40),
    "nested": (nested, 1, (row * 7 + column < 40) & (row < 9)),
    "cancelling": (cancelling, 0, column < 5),
}


@pytest.mark.parametrize("name", ALL)
def test_conditions_on_more_than_the_loop_and_constants_are_hidden_and_all_results_are_right(name):
    function, hidden, taken = ALL[name]
    assert hide_unsafe_conditions(function).script().count(HIDDEN) >= hidden
    assert bool(hide_unsafe_conditions(function).script().count(HIDDEN)) == bool(hidden)
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    built = tvm.tirx.build(module, target="llvm", pipeline=register_cpu_pipeline())
    a = np.arange(N * N, dtype="int32").reshape(N, N) + 1000
    y = tvm.runtime.tensor(np.full((N, N), -1, "int32"))
    built["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(np.full(N, 40, "int32")), y)
    np.testing.assert_array_equal(y.numpy(), np.where(taken, a, column))
