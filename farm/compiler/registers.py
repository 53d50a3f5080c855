"""Register tiles of any size stay on the stack, from where LLVM takes them into registers.

TVM allocates what has 1,024 bytes or more on the heap. There LLVM has to keep it: each multiply-add of a tile would load and store its sum.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

PIPELINE = "farm"  # of TVM's passes for loop nests, by name
TILE_BYTES = 2048  # of the largest tile: all vectors of AVX-512
_STAYS = "disable_lower_builtin"  # TVM's annotation of an allocation: it is left as it is, which is on the stack


def with_tiles_on_stack() -> str:
    """The name of TVM's pipeline with tiles on the stack, for `tvm.compile`."""
    register_tir_pipeline(PIPELINE, _pipeline)
    return PIPELINE


def _pipeline() -> tuple[object, object, object]:
    passes, finalize_host, finalize_device = pipeline.default_s_tir_pipeline()
    return passes, lambda: tvm.transform.Sequential([_TilesOnStack(), finalize_host()]), finalize_device


def _on_stack(allocation: tirx.AllocBuffer) -> tirx.AllocBuffer:
    buffer = allocation.buffer
    if buffer.scope() != "global" or not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return allocation
    if math.prod(map(int, buffer.shape)) * tvm.DataType(buffer.dtype).itemsize > TILE_BYTES:
        return allocation
    return tirx.AllocBuffer(buffer, {**allocation.annotations, _STAYS: tirx.IntImm("int32", 1)}, allocation.span)


@tirx.transform.prim_func_pass(opt_level=0, name="farm.TilesOnStack")
class _TilesOnStack:
    def transform_function(self, function: tirx.PrimFunc, _: tvm.IRModule, __: tvm.transform.PassContext) -> tirx.PrimFunc:
        return function.with_body(tvm_ffi.structural_map(function.body, [(tirx.AllocBuffer, _on_stack)], order="post"))
