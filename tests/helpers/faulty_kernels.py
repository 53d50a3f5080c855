"""Kernels that leave their tensors, or do not fill them, as a model whose every step is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tvm_script
from tvm.script import tirx as T  # noqa: N812

N = 100  # of float32: bytes that are no multiple of 64
FAR = 64


@tvm_script.prim_func(s_tir=True)
def right(x: T.Buffer((N,), "float32"), y: T.Buffer((N,), "float32")):
    for i in T.parallel(N):
        with T.sblock("y"):
            v = T.axis.spatial(N, i)
            y[v] = x[v] + T.float32(1)


@tvm_script.prim_func(s_tir=True)
def reads_behind(x: T.Buffer((N,), "float32"), y: T.Buffer((N,), "float32")):
    for i in range(N):
        with T.sblock("y"):
            v = T.axis.spatial(N, i)
            y[v] = x[v + FAR]


@tvm_script.prim_func(s_tir=True)
def reads_before(x: T.Buffer((N,), "float32"), y: T.Buffer((N,), "float32")):
    for i in range(N):
        with T.sblock("y"):
            v = T.axis.spatial(N, i)
            y[v] = x[v - FAR]


@tvm_script.prim_func(s_tir=True)
def writes_near(x: T.Buffer((N,), "float32"), y: T.Buffer((N,), "float32")):
    for i in range(N + 1):
        with T.sblock("y"):
            v = T.axis.spatial(N + 1, i)
            y[v] = T.float32(1)


@tvm_script.prim_func(s_tir=True)
def leaves_out(x: T.Buffer((N,), "float32"), y: T.Buffer((N,), "float32")):
    for i in range(N - 3):
        with T.sblock("y"):
            v = T.axis.spatial(N - 3, i)
            y[v] = x[v]


@tvm_script.prim_func(s_tir=True)
def changes_input(x: T.Buffer((N,), "float32"), y: T.Buffer((N,), "float32")):
    for i in range(N):
        with T.sblock("y"):
            v = T.axis.spatial(N, i)
            y[v] = x[v]
            x[v] = T.float32(7)


@tvm_script.prim_func(s_tir=True)
def beyond_workspace(x: T.Buffer((N,), "float32"), y: T.Buffer((N,), "float32")):
    w = T.alloc_buffer((1000,), "float32")
    for i in range(1001):
        with T.sblock("w"):
            v = T.axis.spatial(1001, i)
            w[v] = x[v % N]
    for i in range(N):
        with T.sblock("y"):
            v = T.axis.spatial(N, i)
            y[v] = w[v * 10]


KERNELS = {
    str(one.attrs["global_symbol"]): one
    for one in (
        right,
        reads_behind,
        reads_before,
        writes_near,
        leaves_out,
        changes_input,
        beyond_workspace,
    )
}


def made(context: Any, model: Any, host: Any, records: Any, cache: Path, folder: Path) -> Any:
    """Write the kernels' code, as `guard_page_check.make_guarded_model` does for a model."""
    import tvm

    from farm.compiler.build import OBJECTS, GenerationResult
    from farm.compiler.diagnostics.reference_steps import ReferenceStep, tensor_value_file
    from farm.compiler.lower import resolve_target
    from farm.pipeline.guard_page_check import GuardedModel

    library = tvm.tirx.build(tvm.IRModule(KERNELS), target=resolve_target(host))
    (folder / OBJECTS).mkdir()
    library.write_to_file(str(folder / OBJECTS / "lib0.o"))
    value = np.arange(N, dtype="float32")
    tensor_value_file(folder, 0).write_bytes(value.tobytes())
    steps = [
        ReferenceStep(name, (0,), ((number, (N,), "float32"),))
        for number, name in enumerate(KERNELS, 1)
    ]
    return GuardedModel(
        GenerationResult("", (), (), ("lib0.o",), {}, {}),
        tuple(steps),
        tuple(f"layer of {name}" for name in KERNELS),
        {0: ((N,), "float32")},
        (1,),
        (False,),
        (value + 1,),
        "arithmetic",
        "float32",
    )
