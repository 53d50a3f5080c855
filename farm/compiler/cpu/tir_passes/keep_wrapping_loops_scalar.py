"""Keep LLVM from vectorizing loops in whose indices a power of two wraps around.

Scalar evolution of LLVM 22 sees `i % 8` as a counter of three bits. The loop vectorizer takes
`s[i % 8]` for consecutive elements, and adds a check before the loop that the counter does not wrap
around. If the loop also needs this check for a counter of more bits, LLVM wrongly omits the first
one (`SCEVWrapPredicate::implies` ignores the widths), and the kernel reads memory behind the
tensor. Rotary embeddings with heads of 4 and 8 are such kernels. The right check fails in nearly
every such loop, so scalar code costs no time.

The loop vectorizer leaves a loop with an unknown call as it is. `llvm.var.annotation` is such a
call, and becomes no instruction.
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
    """Add a call that stops LLVM's loop vectorizer to each loop whose index wraps around.

    In such a loop, an expression of the loop variable is taken modulo a power of two that may be
    less than the extent. Outer loops count too: LLVM unrolls short inner loops before it
    vectorizes.
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
