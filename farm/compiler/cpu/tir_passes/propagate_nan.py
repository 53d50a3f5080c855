"""Let NaN pass through maxima and minima of elements, and be unequal to all, as in torch and numpy.

TVM computes max(a, b) as a > b ? a : b, which is b if a is NaN. NaN stays if the constant of a ReLU
or a clip is the first operand, on x86 at no cost. (On ARM, where that takes an instruction more,
the legalization has written most of these already.) If neither operand is a constant, the first is
compared with itself, or ARM's instruction is used. Reductions stay as they are, since each of their
steps would take longer.

TVM generates an ordered comparison for a != b, which is false for NaN. Its a == b is right, and a
selection by it is not simplified.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from farm.compiler.target.cpu_model import CpuModel
from farm.kernels.vector_math import let

_INTRINSICS = {tirx.Max: "llvm.maximum", tirx.Min: "llvm.minimum"}


def propagate_nan(function: tirx.PrimFunc, cpu: CpuModel) -> tirx.PrimFunc:
    """Return the function with maxima, minima and inequalities of floats that are right for NaN."""

    def kept(node: Any) -> Any:
        """Return a maximum or minimum that is NaN if an operand is."""
        dtype, first, second, kind = str(node.ty.dtype), node.a, node.b, type(node)
        if "float" not in dtype or isinstance(first, tirx.FloatImm):
            return node
        if isinstance(second, tirx.FloatImm):
            return kind(second, first)
        if cpu.has_nan_propagating_minmax and dtype == "float32":
            return tirx.call_llvm_pure_intrin(dtype, _INTRINSICS[kind], first, second)
        infinity = tirx.const(float("inf"), dtype)
        # not by isnan, of which LLVM makes no vectors
        return let(first, lambda a: tirx.Select(tirx.abs(a) <= infinity, kind(a, second), a))

    def unequal(node: Any) -> Any:
        """Return an inequality of floats, also if it is written as no equality."""
        one = node.a if isinstance(node, tirx.Not) else node
        if not isinstance(one, tirx.EQ | tirx.NE) or "float" not in str(one.a.ty.dtype):
            return node
        false, true = tirx.const(False, "bool"), tirx.const(True, "bool")
        return tirx.Select(tirx.EQ(one.a, one.b), false, true)

    def in_block(block: SBlock) -> SBlock:
        """Change a block that computes elements; the root has no axes, and others around it."""
        if {axis.iter_type for axis in block.iter_vars} != {tirx.IterVar.DataPar}:
            return block
        changes = [(kind, kept) for kind in _INTRINSICS]
        return tvm_ffi.structural_map(block, changes, order="post")

    changes = [(SBlock, in_block), (tirx.NE, unequal), (tirx.Not, unequal)]
    body = tvm_ffi.structural_map(function.body, changes, order="post")
    return function if body.same_as(function.body) else function.with_body(body)
