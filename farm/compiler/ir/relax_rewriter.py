"""Rewrite Relax graphs by a rule for each operator, and ask questions about their expressions."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator

from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import Extent, static_extents_as_ints

Array = np.ndarray[Any, Any]
Rule = Callable[[Call], relax.Expr | None]  # returns the replacement of a call; None keeps the call
MakeRewriter = Callable[[tvm.IRModule], PyExprMutator]  # returns a new rewriter for a module
_INPUT_COUNT = "num_input"  # TVM's attribute of a function

# Operators that compute each element of the result from the operands' elements at the same index.
ELEMENTWISE = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "negative"),
        *("abs", "exp", "log", "sqrt", "rsqrt", "clip"),
        *("sigmoid", "tanh", "erf", "round", "floor", "ceil", "sin", "cos", "square"),
        *("nn.relu", "nn.leakyrelu", "nn.prelu", "nn.gelu", "nn.gelu_tanh", "nn.silu"),
        "nn.softplus",
    )
)

# Reductions over given axes: their functions by the names of the operators.
REDUCTIONS = {f"relax.{name}": getattr(relax.op, name) for name in ("max", "min", "mean", "sum")}


def op_name(expression: Any) -> str:
    """Return the name of the operator that an expression calls; "" for any other expression."""
    return str(getattr(getattr(expression, "op", None), "name", ""))


def callee_name(call: Call) -> str:
    """Return the name of what a call runs: a kernel (through call_tir), a function, an operator."""
    indirect = op_name(call) in ("relax.call_tir", "relax.call_dps_packed")
    target = call.args[0] if indirect else call.op
    names = (getattr(target, name, None) for name in ("name_hint", "global_symbol", "name"))
    return str(next(filter(None, names), target))


def main_inputs(function: relax.Function) -> list[relax.Var]:
    """Return the parameters of `main` that are inputs of the model."""
    return list(function.params[: int(function.attrs[_INPUT_COUNT])])


def main_weight_parameters(function: relax.Function) -> list[relax.Var]:
    """Return the parameters of `main` that hold weights: those after the inputs."""
    return list(function.params[int(function.attrs[_INPUT_COUNT]) :])


class Rewriter(PyExprMutator):  # type: ignore[misc]
    """Replaces calls by rules, operands first.

    Subclasses carry the decorator `mutator`; this class does not, because TVM cannot derive one
    decorated class from another.
    """

    @abstractmethod
    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""

    @cached_property
    def _rules(self) -> Mapping[str, Rule]:
        return self.rules()

    def visit_call_(self, call: Call) -> relax.Expr:
        """Return the replacement of a call, or the call itself if its rule returns None."""
        call = self.visit_expr_post_order(call)
        rule = self._rules.get(op_name(call))
        replacement = rule(call) if rule else None
        return call if replacement is None else replacement

    def bound(self, expression: relax.Expr) -> Any:
        """Return the expression that a variable is bound to; None for an input."""
        while isinstance(expression, relax.Var):
            expression = self.lookup_binding(expression)
        return expression

    def producer(self, expression: relax.Expr) -> Call | None:
        """Return the call that computes a value; None if no call does."""
        bound = self.bound(expression)
        return bound if isinstance(bound, Call) else None

    def called(self, expression: relax.Expr, operator: str) -> Call | None:
        """Return the call of this operator that computes a value; None for any other value."""
        call = self.producer(expression)
        return call if op_name(call) == operator else None

    def value(self, expression: relax.Expr) -> Array | None:
        """Return the value of a constant, also through variables; None for any other expression."""
        return constant_value(self.bound(expression))


def rewrite_module(module: tvm.IRModule, make_rewriter: MakeRewriter) -> tvm.IRModule:
    """Return a copy of a module with its Relax functions rewritten, and the kernels this adds."""
    result = module.clone()
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter = make_rewriter(result)
            result.update_func(name, rewriter.visit_expr(function))
            for variable, added in rewriter.builder_.get().functions_items():
                if isinstance(added, tvm.tirx.PrimFunc):
                    result.update_func(variable, added)
    return result


def rewriter_pass(name: str, make_rewriter: MakeRewriter) -> tvm.transform.Pass:
    """Return a pass of this name that rewrites the Relax functions of a module."""

    def transform(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_module(module, make_rewriter)

    return tvm.transform.module_pass(transform, opt_level=0, name=name)


def count_readers(function: relax.Function) -> Counter[relax.Var]:
    """Return how many times the bindings of a function, and its result, read each variable."""
    found: Counter[relax.Var] = Counter()

    def count(node: Any) -> None:
        if isinstance(node, relax.Var):
            found[node] += 1

    for block in function.body.blocks:
        for binding in block.bindings:
            relax.analysis.post_order_visit(binding.value, count)
    relax.analysis.post_order_visit(function.body.body, count)
    return found


def shape_of(expression: relax.Expr) -> list[Extent] | None:
    """Return the extents of a tensor; None if its shape is unknown."""
    shape = getattr(expression.ty, "shape", None)
    return static_extents_as_ints(shape.values) if isinstance(shape, relax.ShapeExpr) else None


def permute_dims_axes(call: Call) -> list[int] | None:
    """Return the axes of a permute_dims, none negative; None if it reverses all axes."""
    axes = call.attrs.axes
    return None if axes is None else [int(axis) % len(axes) for axis in axes]
