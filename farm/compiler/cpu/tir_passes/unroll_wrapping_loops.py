"""Unroll the loops in whose indices a power of two makes the loop's variable wrap around.

LLVM's loop vectorizer takes `s[i % 8]` in a loop of 16 for 16 consecutive elements: it turns
`i % 8` into a counter of three bits, and does not check that the counter overflows. The kernel
then reads what lies behind the tensor. A rotary embedding with heads of 8 is such a loop, which
VectorizeLoop makes of a vectorized one whose value is a condition's.

Unrolled, `i % 8` is a number.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

_MOST_STEPS = 64  # of a loop that is unrolled; longer ones are divided


@tvm.transform.module_pass(opt_level=0, name="farm.UnrollWrappingLoops")
class UnrollWrappingLoops:
    """Mark innermost serial loops as unrolled if their variable is taken modulo a power of two.

    Of a longer loop the last steps are, so that the variable that LLVM sees does not wrap.
    """

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the module after this pass."""
        result = module.clone()
        for variable, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc):
                body = tvm_ffi.structural_map(function.body, [(tirx.For, _unrolled)], order="post")
                result[variable] = function.with_body(body)
        return result


def _unrolled(loop: tirx.For) -> tirx.Stmt:
    extent = loop.extent
    if (
        loop.kind != tirx.ForKind.SERIAL
        or not isinstance(extent, tirx.IntImm)
        or int(extent) < 2
        or not isinstance(loop.min, tirx.IntImm)
        or _has_loops(loop.body)
    ):
        return loop
    moduli = [modulus for modulus in _moduli(loop) if modulus < int(extent)]
    if not moduli:
        return loop
    if int(extent) <= _MOST_STEPS:
        return _with(loop, loop.loop_var, extent, loop.body, tirx.ForKind.UNROLLED)
    steps = min(max(moduli), _MOST_STEPS)
    return loop if int(extent) % steps else _divided(loop, steps)


def _divided(loop: tirx.For, steps: int) -> tirx.Stmt:
    """Return a loop as one over its parts around an unrolled one of so many steps."""
    kind = str(loop.loop_var.ty.dtype)
    outer, inner = (tirx.Var(f"{loop.loop_var.name}_{name}", kind) for name in ("part", "step"))
    place = outer * tirx.const(steps, kind) + inner
    body = tvm_ffi.structural_map(
        loop.body,
        [(tirx.Var, lambda one: place if one.same_as(loop.loop_var) else one)],
        order="post",
    )
    count = tirx.const(steps, kind)
    unrolled = _with(loop, inner, count, body, tirx.ForKind.UNROLLED)
    parts = tirx.const(int(loop.extent) // steps, kind)
    return _with(loop, outer, parts, unrolled, tirx.ForKind.SERIAL)


def _with(loop: tirx.For, variable: Any, extent: Any, body: Any, kind: Any) -> tirx.For:
    start = loop.min if variable.same_as(loop.loop_var) else tirx.const(0, str(variable.ty.dtype))
    return tirx.For(variable, start, extent, kind, body, annotations=loop.annotations)


def _has_loops(statement: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(statement, [(tirx.For, found.append)])
    return bool(found)


def _moduli(loop: tirx.For) -> list[int]:
    """Return the powers of two modulo which expressions of a loop's variable are taken."""
    found: list[Any] = []
    tvm_ffi.structural_walk(loop.body, [((tirx.FloorMod, tirx.Mod), found.append)])
    moduli = [
        int(one.b)
        for one in found
        if isinstance(one.b, tirx.IntImm) and _reads(one.a, loop.loop_var)
    ]
    return [one for one in moduli if one > 1 and not one & (one - 1)]


def _reads(expression: Any, variable: Any) -> bool:
    return any(
        one.same_as(variable) for one in tirx.analysis.undefined_vars(tirx.Evaluate(expression))
    )
