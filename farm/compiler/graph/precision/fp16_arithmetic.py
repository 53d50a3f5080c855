"""Compute models with float16 weights in half precision on NVIDIA GPUs.

Tensors between kernels are float16. Products and convolutions read float16 and accumulate in
float32, as tensor cores do, and the operators fused behind them compute in float32; softmax and
reductions read and return float32; normalisations and average pools accumulate in float32. The
model's inputs and outputs stay float32.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.graph.constant_folding import ConstantFolder
from farm.compiler.graph.precision.fp16_weights import HALF, SINGLE
from farm.compiler.ir.relax_rewriter import count_readers, op_name, rewriter_pass

_BY_ELEMENT = {
    *(
        f"relax.{name}"
        for name in (
            "add",
            "subtract",
            "multiply",
            "divide",
            "maximum",
            "minimum",
            "sigmoid",
            "tanh",
        )
    ),
    *(f"relax.nn.{name}" for name in ("relu", "leakyrelu", "silu", "gelu", "gelu_tanh")),
}
_POOLS = (
    "relax.nn.avg_pool1d",
    "relax.nn.avg_pool2d",
    "relax.nn.avg_pool3d",
    "relax.nn.adaptive_avg_pool2d",
)


def to_mixed_precision(module: tvm.IRModule) -> tvm.IRModule:
    """Return a float32 module in mixed precision.

    TVM's pass decides which operators may lose digits.
    """
    transform = relax.transform
    passes = [
        transform.ToMixedPrecision(SINGLE),
        transform.CanonicalizeBindings(),
        transform.EliminateCommonSubexpr(),
        rewriter_pass("farm.KeepSums", _Keeper),
        ConstantFolder(),
        transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(module)


def fp32_average_pool_legalization_map() -> dict[str, Any]:
    """Return the lowering of average pools in float32; TVM would accumulate float16 in float16."""
    return dict.fromkeys(_POOLS, _wide_pool)


def _wide_pool(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
    if str(call.ty.dtype) != HALF:
        return _loops_of(builder, call)
    wide = relax.Call(
        call.op, [_loops_of(builder, relax.op.astype(call.args[0], SINGLE))], call.attrs
    )
    return _loops_of(builder, relax.op.astype(_loops_of(builder, wide), HALF))


def _loops_of(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
    return builder.emit(
        tvm.ir.Op.get(call.op.name).get_attr("FLegalize")(builder, builder.normalize(call))
    )


@mutator
class _Keeper(PyExprMutator):  # type: ignore[misc]
    """Computes element-wise operators on a sum in float32 if the sum has no other reader.

    The result is then rounded only once, when it is stored.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._readers = count_readers(module["main"])

    def visit_call_(self, call: Call) -> relax.Expr:
        alone = [isinstance(one, relax.Var) and self._readers[one] == 1 for one in call.args]
        call = self.visit_expr_post_order(call)
        sums = [
            self._sum(one) if only else None for one, only in zip(call.args, alone, strict=True)
        ]
        if _is_cast(call, SINGLE):
            return call if sums[0] is None else sums[0]
        if op_name(call) not in _BY_ELEMENT or all(one is None for one in sums):
            return call
        wide = [
            self._as_single(one) if found is None else found
            for one, found in zip(call.args, sums, strict=True)
        ]
        return relax.op.astype(self.builder_.emit(relax.Call(call.op, wide, call.attrs)), HALF)

    def _as_single(self, half: relax.Expr) -> relax.Expr:
        return self.builder_.emit(relax.op.astype(half, SINGLE))

    def _sum(self, half: relax.Var) -> relax.Expr | None:
        """Return the float32 value that was cast to this float16 value; None if it is no cast."""
        before = self.lookup_binding(half)
        return (
            before.args[0]
            if _is_cast(before, HALF) and str(before.args[0].ty.dtype) == SINGLE
            else None
        )


def _is_cast(value: Any, dtype: str) -> bool:
    return op_name(value) == "relax.astype" and str(value.ty.dtype) == dtype
