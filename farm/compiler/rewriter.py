"""What rewriters of graphs share: a rule for each operator, and a look at what values come from."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator

from farm.compiler.extents import Extent, plain

Rule = Callable[[Call], relax.Expr | None]  # what takes a call's place; None where it stays

ELEMENTWISE = frozenset(  # operators whose result has at each place what comes of the operands' values there
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "negative", "abs", "exp", "log", "sqrt", "rsqrt", "clip"),
        *("sigmoid", "tanh", "erf", "round", "floor", "ceil", "sin", "cos", "square"),
        *("nn.relu", "nn.leakyrelu", "nn.prelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus"),
    )
)


class Rewriter(PyExprMutator):  # type: ignore[misc]
    """Replaces calls by rules. Not a `mutator` itself: TVM derives none from another."""

    @abstractmethod
    def rules(self) -> Mapping[str, Rule]:
        """The rules by the operators' names."""

    @cached_property
    def _rules(self) -> Mapping[str, Rule]:
        return self.rules()

    def visit_call_(self, call: Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        rule = self._rules.get(getattr(call.op, "name", ""))
        moved = rule(call) if rule else None
        return call if moved is None else moved

    def called(self, expression: relax.Expr, operator: str) -> Call | None:
        """The call of the operator that a value is the result of; None for any other value."""
        bound = self.bound(expression)
        return bound if isinstance(bound, Call) and getattr(bound.op, "name", "") == operator else None

    def bound(self, expression: relax.Expr) -> Any:
        """What a value is; None for an input."""
        while isinstance(expression, relax.Var):
            expression = self.lookup_binding(expression)
        return expression


def readers(function: relax.Function) -> Counter[relax.Var]:
    """How many bindings of a function read each variable."""
    found: Counter[relax.Var] = Counter()
    for block in function.body.blocks:
        for binding in block.bindings:
            relax.analysis.post_order_visit(binding.value, lambda node: found.update([node] if isinstance(node, relax.Var) else []))
    return found


def shape_of(expression: relax.Expr) -> list[Extent] | None:
    shape = getattr(expression.ty, "shape", None)
    return plain(shape.values) if isinstance(shape, relax.ShapeExpr) else None


def axes_of(call: Call) -> list[int] | None:
    """Of a permute_dims: None where it reverses them."""
    return None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes]
