"""Which allocations of a kernel stay on the stack."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx

from farm.compiler.codegen.stack_tiles import TILE_BYTES, TilesOnStack


def stays_on_stack(elements: int, dtype: str, scope: str = "global") -> bool:
    buffer = tirx.decl_buffer((elements,), dtype, "tile", scope=scope)
    kernel = tirx.PrimFunc([], tirx.AllocBuffer(buffer, {}))
    body = TilesOnStack()(tvm.IRModule({"main": kernel}))["main"].body
    return "disable_lower_builtin" in body.annotations


@pytest.mark.parametrize(("dtype", "size"), [("int8", 1), ("float16", 2), ("float32", 4)])
def test_a_tile_of_all_registers_stays_on_the_stack_and_a_larger_buffer_does_not(dtype, size):
    assert stays_on_stack(TILE_BYTES // size, dtype)
    assert not stays_on_stack(TILE_BYTES // size + 1, dtype)


def test_shared_memory_of_a_gpu_is_no_stack():
    assert not stays_on_stack(16, "float32", "shared")
