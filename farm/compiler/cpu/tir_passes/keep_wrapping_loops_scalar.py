"""Keep LLVM from vectorizing loops in whose indices a power of two wraps around.

LLVM 22 knows `i % 8` as a counter of three bits. Its loop vectorizer takes `s[i % 8]` for
consecutive elements where that counter does not wrap around, which a check before the loop shall
find out. If the loop needs another such check, of a counter of more bits, then
`SCEVWrapPredicate::implies` says that the other check suffices, and the kernel reads memory behind
the tensor. So it was with rotary embeddings of heads of 4 and 8. A correct check fails in nearly
every such loop, so nothing is lost by not vectorizing it.

The loop vectorizer refuses a loop with a call that it doesn't know, and `llvm.var.annotation` is
such a call, of which no instruction remains.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from farm.compiler.ir.annotated_loops import copy_loop

_LOOPS = (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)


@tvm.transform.module_pass(opt_level=0, name="farm.KeepWrappingLoopsScalar")
class KeepWrappingLoopsScalar:
    """Put a call that LLVM does not vectorize into loops whose variable wraps around.

    These are the loops in which an expression of the variable is taken modulo a power of two that
    may be less than the loop's extent. Loops around others are among them, as LLVM unrolls short
    inner loops before it vectorizes.
    """

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the module after this pass."""
        result = module.clone()
        for variable, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc):
                body = tvm_ffi.structural_map(function.body, [(tirx.For, _scalar)], order="post")
                result[variable] = function.with_body(body)
        return result


def _scalar(loop: tirx.For) -> tirx.Stmt:
    if loop.kind not in _LOOPS or not _wraps(loop):
        return loop
    return copy_loop(loop, [tirx.Evaluate(_unknown_call()), loop.body], dict(loop.annotations))


def _unknown_call() -> tirx.Expr:
    nothing = tirx.reinterpret("handle", tirx.const(0, "uint64"))
    line = tirx.const(0, "int32")
    name = "llvm.var.annotation"
    return tirx.call_llvm_intrin("void", name, nothing, nothing, nothing, line, nothing)


def _wraps(loop: tirx.For) -> bool:
    known = isinstance(loop.min, tirx.IntImm) and isinstance(loop.extent, tirx.IntImm)
    end = int(loop.min) + int(loop.extent) if known else None
    return any(
        end is None or modulus < end or not one.same_as(loop.loop_var)
        for one, modulus in _moduli(loop.body)
        if _reads(one, loop.loop_var)
    )


def _moduli(body: tirx.Stmt) -> list[tuple[Any, int]]:
    """Return the expressions that are taken modulo powers of two, each with its modulus."""
    found: list[Any] = []
    tvm_ffi.structural_walk(body, [((tirx.FloorMod, tirx.Mod, tirx.BitwiseAnd), found.append)])
    moduli = [
        (one.a, int(one.b) + isinstance(one, tirx.BitwiseAnd))
        for one in found
        if isinstance(one.b, tirx.IntImm)
    ]
    return [(value, modulus) for value, modulus in moduli if _is_power_of_two(modulus)]


def _is_power_of_two(number: int) -> bool:
    return number > 1 and not number & (number - 1)


def _reads(expression: Any, variable: Any) -> bool:
    return any(
        one.same_as(variable) for one in tirx.analysis.undefined_vars(tirx.Evaluate(expression))
    )
