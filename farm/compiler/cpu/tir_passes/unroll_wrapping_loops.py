"""Unroll loops whose indices take the loop variable modulo a power of two, and wrap around.

LLVM's loop vectorizer takes `s[i % 8]` in a loop of 16 for 16 consecutive elements: scalar
evolution sees `i % 8` as a counter of three bits, and nothing checks that the counter overflows.
The kernel then reads memory behind the tensor. VectorizeLoop makes such a loop of a vectorized one
with a condition, as of a rotary embedding with heads of 8. Unrolled, `i % 8` is a constant.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

_MOST_STEPS = 64  # of a loop that is unrolled; longer ones are split


@tvm.transform.module_pass(opt_level=0, name="farm.UnrollWrappingLoops")
class UnrollWrappingLoops:
    """Mark innermost serial loops as unrolled if their variable wraps at a power of two.

    A long loop is split, and its inner loop unrolled. A long one that the modulus does not divide
    stays as it is.
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
    return loop if int(extent) % steps else _split(loop, steps)


def _split(loop: tirx.For, steps: int) -> tirx.Stmt:
    """Return a loop split into an outer loop and an unrolled inner one of so many steps."""
    kind = str(loop.loop_var.ty.dtype)
    outer, inner = (tirx.Var(f"{loop.loop_var.name}_{name}", kind) for name in ("outer", "inner"))
    index = outer * tirx.const(steps, kind) + inner
    body = tvm_ffi.structural_map(
        loop.body,
        [(tirx.Var, lambda one: index if one.same_as(loop.loop_var) else one)],
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
