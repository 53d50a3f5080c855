"""Keep register tiles of any size on the stack, from where LLVM promotes them to registers.

TVM allocates buffers of 1,024 bytes or more on the heap. LLVM cannot promote these: each
multiply-add of a tile would load and store its accumulator.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from farm.compiler.cpu.tir_passes.safe_loop_partition import HideUnsafeConditions

PIPELINE = "farm"  # name of the pipeline of TVM's passes for loop nests
TILE_BYTES = 2048  # size of the largest tile: all vector registers of AVX-512
# TVM's annotation that leaves an allocation as it is, on the stack
_STAYS = "disable_lower_builtin"


def register_stack_tiles_pipeline() -> str:
    """Register TVM's pipeline with tiles on the stack, and return its name for `tvm.compile`."""
    register_tir_pipeline(PIPELINE, _pipeline)
    return PIPELINE


def _pipeline() -> tuple[object, object, object]:
    passes, finalize_host, finalize_device = pipeline.default_s_tir_pipeline()
    passes = tvm.transform.Sequential([HideUnsafeConditions(), passes])
    return (
        passes,
        lambda: tvm.transform.Sequential([_TilesOnStack(), finalize_host()]),
        finalize_device,
    )


def _on_stack(allocation: tirx.AllocBuffer) -> tirx.AllocBuffer:
    buffer = allocation.buffer
    if buffer.scope() != "global" or not all(
        isinstance(extent, tirx.IntImm) for extent in buffer.shape
    ):
        return allocation
    if math.prod(map(int, buffer.shape)) * tvm.DataType(buffer.dtype).itemsize > TILE_BYTES:
        return allocation
    return tirx.AllocBuffer(
        buffer, {**allocation.annotations, _STAYS: tirx.IntImm("int32", 1)}, allocation.span
    )


@tirx.transform.prim_func_pass(opt_level=0, name="farm.TilesOnStack")
class _TilesOnStack:
    """Pass that annotates allocations of at most TILE_BYTES, so that they stay on the stack."""

    def transform_function(
        self, function: tirx.PrimFunc, _: tvm.IRModule, __: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        return function.with_body(
            tvm_ffi.structural_map(function.body, [(tirx.AllocBuffer, _on_stack)], order="post")
        )
