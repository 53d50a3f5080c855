"""Keep register tiles of any size on the stack, from where LLVM promotes them to registers.

TVM allocates buffers of 1,024 bytes or more on the heap. LLVM cannot promote these: each
multiply-add of a tile would load and store its accumulator.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from farm.compiler.cpu.tir_passes.flatten_without_conditions import FlattenBufferWithoutConditions
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
    return (
        tvm.transform.Sequential(_passes_for_cpus()),
        lambda: tvm.transform.Sequential([_TilesOnStack(), pipeline.finalize_host_passes()]),
        pipeline.finalize_device_passes,
    )


def _passes_for_cpus() -> list[tvm.transform.Pass]:
    """Return the passes of TVM's default pipeline that concern CPUs, and farm's among them."""
    return [
        tirx.transform.ConvertSSA(),
        HideUnsafeConditions(),
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.LowerOpaqueBlock(),
        FlattenBufferWithoutConditions(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(),
        tirx.transform.StorageRewrite(),
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
        tirx.transform.CommonSubexprElim(),
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]


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
