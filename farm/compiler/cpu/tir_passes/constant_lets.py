"""Replace variables that `Let` binds to constants by these constants.

TVM's passes simplify the value of a `Let`, and that of each `Let` within it once more. Arithmetic
of constants may be left as it is by the first and folded by the second, and then TVM raises an
error: one variable has two values. Such constants appear where a function of several steps, such
as sigmoid on ARM, is applied to a padding.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

_CONSTANTS = (tirx.FloatImm, tirx.IntImm)


@tvm.transform.module_pass(opt_level=0, name="farm.ConstantLets")
class ConstantLets:
    """Pass that leaves no variable bound to a constant."""

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the module after this pass."""
        result = module.clone()
        for variable, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc):
                body = tvm_ffi.structural_map(function.body, [(tirx.Let, _folded)], order="post")
                if not body.same_as(function.body):
                    result[variable] = function.with_body(body)
        return result


def _folded(let: Any) -> Any:
    """Return the body of a `Let` with a constant in place of its variable, else the `Let`.

    Values with variables are not simplified: they round on purpose, as in x + c - c.
    """
    value = let.value
    if not _is_constant(value) and not tirx.analysis.undefined_vars(value):
        value = Analyzer().simplify(value)
    if not _is_constant(value):
        return let

    def known(variable: Any) -> Any:
        return value if variable.same_as(let.var) else variable

    body = tvm_ffi.structural_map(let.body, [(tirx.Var, known)], order="post")
    return tvm_ffi.structural_map(body, [(tirx.Let, _folded)], order="post")


def _is_constant(value: Any) -> bool:
    return isinstance(value.value if isinstance(value, tirx.Broadcast) else value, _CONSTANTS)
