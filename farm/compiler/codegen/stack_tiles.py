"""Keep register tiles of any size on the stack, from where LLVM promotes them to registers.

TVM allocates buffers of 1,024 bytes or more on the heap. LLVM cannot promote these: each
multiply-add of a tile would load and store its accumulator.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx

TILE_BYTES = 2048  # size of the largest tile: all vector registers of AVX-512
_SCOPES = ("global", "local")  # a CPU has the same memory for both
# TVM's annotation that leaves an allocation as it is, on the stack
_STAYS = "disable_lower_builtin"


def _on_stack(allocation: tirx.AllocBuffer) -> tirx.AllocBuffer:
    buffer = allocation.buffer
    if buffer.scope() not in _SCOPES or not all(
        isinstance(extent, tirx.IntImm) for extent in buffer.shape
    ):
        return allocation
    if math.prod(map(int, buffer.shape)) * tvm.DataType(buffer.dtype).itemsize > TILE_BYTES:
        return allocation
    return tirx.AllocBuffer(
        buffer, {**allocation.annotations, _STAYS: tirx.IntImm("int32", 1)}, allocation.span
    )


@tirx.transform.prim_func_pass(opt_level=0, name="farm.TilesOnStack")
class TilesOnStack:
    """Pass that annotates allocations of at most TILE_BYTES, so that they stay on the stack."""

    def transform_function(
        self, function: tirx.PrimFunc, _: tvm.IRModule, __: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Annotate the allocations of a function."""
        return function.with_body(
            tvm_ffi.structural_map(function.body, [(tirx.AllocBuffer, _on_stack)], order="post")
        )
