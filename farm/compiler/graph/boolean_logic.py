"""Rewrite comparisons and arithmetic of booleans as logic, as LLVM has no such instructions.

TVM generates comparisons of floating-point numbers for them, which LLVM's verifier refuses. A sum
of booleans is their disjunction and a product their conjunction, as in torch and numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.relax_rewriter import Rewriter, Rule

Emit = Callable[[relax.Expr], relax.Expr]
_AND, _OR, _XOR, _NOT = (
    relax.op.logical_and,
    relax.op.logical_or,
    relax.op.logical_xor,
    relax.op.logical_not,
)

_LOGIC: dict[str, Callable[[Emit, relax.Expr, relax.Expr], relax.Expr]] = {
    "equal": lambda emit, one, other: _NOT(emit(_XOR(one, other))),
    "not_equal": lambda _, one, other: _XOR(one, other),
    "less": lambda emit, one, other: _AND(emit(_NOT(one)), other),
    "less_equal": lambda emit, one, other: _OR(emit(_NOT(one)), other),
    "greater": lambda emit, one, other: _AND(one, emit(_NOT(other))),
    "greater_equal": lambda emit, one, other: _OR(one, emit(_NOT(other))),
    "maximum": lambda _, one, other: _OR(one, other),
    "add": lambda _, one, other: _OR(one, other),
    "minimum": lambda _, one, other: _AND(one, other),
    "multiply": lambda _, one, other: _AND(one, other),
}


@mutator
class BooleanLogicRewriter(Rewriter):
    """Rewrites the operators of _LOGIC between two tensors of booleans."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {f"relax.{name}": self._logic for name in _LOGIC}

    def _logic(self, call: Call) -> relax.Expr | None:
        if any(str(getattr(argument.ty, "dtype", "")) != "bool" for argument in call.args):
            return None
        return _LOGIC[call.op.name.removeprefix("relax.")](self.builder_.emit, *call.args)
