"""Arithmetic in half precision on NVIDIA's GPUs, for models whose weights are kept so.

Tensors between kernels are float16. Products and convolutions take float16 and add up in float32, as tensor cores do; softmax and
reductions take and give float32; normalisations and means of pools add up in float32. What goes into the model and comes out of it stays
float32.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.folding import FoldConstants, rewriting
from farm.compiler.halves import HALF, SINGLE

_POOLS = ("relax.nn.avg_pool1d", "relax.nn.avg_pool2d", "relax.nn.avg_pool3d", "relax.nn.adaptive_avg_pool2d")


def in_halves(module: tvm.IRModule) -> tvm.IRModule:
    """Operators that will be loop nests, of float32, as those of mixed precision. TVM's pass says which operators may lose digits."""
    transform = relax.transform
    passes = [
        transform.ToMixedPrecision(SINGLE),
        rewriting("farm.KeepSums", _Keeper),
        FoldConstants(),
        transform.CanonicalizeBindings(),
        transform.EliminateCommonSubexpr(),
        transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(module)


def legalization() -> dict[str, Any]:
    """Loops of means over windows: of float16, TVM adds them up in float16."""
    return dict.fromkeys(_POOLS, _wide_pool)


def _wide_pool(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
    legalize = tvm.ir.Op.get(call.op.name).get_attr("FLegalize")
    if str(call.ty.dtype) != HALF:
        return legalize(builder, call)
    data = builder.emit(
        tvm.ir.Op.get("relax.astype").get_attr("FLegalize")(builder, builder.normalize(relax.op.astype(call.args[0], SINGLE)))
    )
    wide = builder.normalize(relax.Call(call.op, [data], call.attrs))
    pooled = builder.emit(legalize(builder, wide))
    return tvm.ir.Op.get("relax.astype").get_attr("FLegalize")(builder, builder.normalize(relax.op.astype(pooled, HALF)))


@mutator
class _Keeper(PyExprMutator):  # type: ignore[misc]
    """A sum of float32 that becomes float16 and at once float32 again stays as it is."""

    def visit_call_(self, call: Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not _is_cast(call, SINGLE) or not isinstance(call.args[0], relax.Var):
            return call
        before = self.lookup_binding(call.args[0])
        return before.args[0] if _is_cast(before, HALF) and str(before.args[0].ty.dtype) == SINGLE else call


def _is_cast(value: Any, dtype: str) -> bool:
    return getattr(getattr(value, "op", None), "name", "") == "relax.astype" and str(value.ty.dtype) == dtype
