"""The same module has the same code each time, whatever the addresses of its nodes are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from device_code import SHIPPED
from relax_models import module, target
from tvm import relax, tirx

from farm.compiler.codegen.executable import compile_executable
from farm.compiler.codegen.loop_nest_pipelines import ArgumentChecks
from farm.compiler.codegen.parallel_codegen import export_shared_library
from farm.compiler.lower import lower_module, resolve_target

WIDTHS = (16, 24, 8, 40, 12, 20, 36, 28, 44, 4)


def lowered(machine: tvm.target.Target) -> tvm.IRModule:
    """Products with an open batch. Each result is an output of its own size."""
    batch, numbers = tirx.Var("n", "int64"), np.random.default_rng(0)
    weights = {
        f"w{index}": numbers.standard_normal((inputs, outputs)).astype("float32")
        for index, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:], strict=False))
    }

    def body(emit, x, *matrices):
        results = [x]
        for matrix in matrices:
            results.append(emit(relax.op.matmul(results[-1], matrix)))
        return results[1:]

    given = module({"x": relax.TensorType((batch, WIDTHS[0]), "float32")}, body, weights)
    return lower_module(given, list(weights.values()), machine, {}).module


def code(folder: Path) -> list[bytes]:
    """The object files."""
    executable = compile_executable(lowered(target()), target(), checks=ArgumentChecks.MARKED)
    objects: list[Path] = []
    folder.mkdir()
    export_shared_library(
        executable,
        folder / "library.so",
        lambda _, files, **__: objects.extend(map(Path, files)),
        folder,
    )
    return [path.read_bytes() for path in sorted(objects)]


def test_sizes_that_depend_on_the_batch_are_computed_in_the_same_order(tmp_path):
    first, *others = [code(tmp_path / str(index)) for index in range(4)]
    assert len(first) > 1
    assert all(other == first for other in others)


@pytest.fixture
def source_as_binary() -> Iterator[None]:
    """Have TVM take CUDA source as it is. It compiles it if another test has loaded its runtime."""
    name = "tvm_callback_cuda_compile"
    before = tvm.get_global_func(name)
    tvm_ffi.register_global_func(name, lambda source, *_: source.encode(), override=True)
    yield
    tvm_ffi.register_global_func(name, before, override=True)


@pytest.mark.usefixtures("source_as_binary")
def test_a_build_for_a_gpu_computes_them_in_the_same_order_too():
    cuda = resolve_target(SHIPPED["cuda-sm80"])

    def sources() -> list[str]:
        executable = compile_executable(lowered(cuda), cuda)
        [host] = [part for part in executable.mod.imports if part.kind == "llvm"]
        # LLVM's names of what a pointer refers to are addresses; no code depends on them
        return [line for line in host.inspect_source("ll").splitlines() if "!{" not in line]

    first, *others = [sources() for _ in range(3)]
    assert any("store i64" in line for line in first)
    assert all(other == first for other in others)
