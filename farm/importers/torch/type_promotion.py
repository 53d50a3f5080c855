"""Give the operands of an operator the type that torch computes in, before TVM's importer.

torch computes with operands of several types, and with integers where the result is not whole, in a
type that all of them share (https://docs.pytorch.org/docs/stable/tensor_attributes.html, "type
promotion"); a tensor without axes, such as a number of a script, counts less than one with axes.
TVM's importer refuses some of these, and takes the larger type, or that of one operand, for others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

_OF_KINDS = {
    ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT: (
        "add sub rsub mul remainder fmod floor_divide maximum minimum where clamp eq ne lt le gt "
        "ge bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__"
    ),
    ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT: (
        "div atan2 acos acosh asin asinh atan atanh cos cosh sin sinh tan tanh exp expm1 log log10 "
        "log1p log2 sqrt rsqrt reciprocal sigmoid erf"
    ),
    ELEMENTWISE_TYPE_PROMOTION_KIND.BOOL_TO_LONG: "pow",
}
_KINDS = {name: kind for kind, names in _OF_KINDS.items() for name in names.split()}


def cast_operands(graph: torch.fx.Graph) -> None:
    """Cast the operands of elementwise operators to the type that torch computes in."""
    for node in list(graph.nodes):
        name, _, overload = getattr(node.target, "__name__", "").partition(".")
        kind = _KINDS.get(name)
        if node.op != "call_function" or kind is None:
            continue
        if overload in ("Tensor_mode", "Scalar_mode"):  # a quotient that is rounded
            kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        operands = node.args[1:] if name == "where" else node.args
        values = [_value(one) for one in operands if one is not None]
        if any(value is None for value in values):
            continue
        _, dtype = elementwise_dtypes(*values, type_promotion_kind=kind)
        if dtype.is_complex:
            continue
        cast = [
            _cast(graph, node, one, dtype)
            if isinstance(one, torch.fx.Node) and _value(one).dtype != dtype
            else one
            for one in operands
        ]
        node.args = (*node.args[: len(node.args) - len(cast)], *cast)


def _cast(
    graph: torch.fx.Graph, node: torch.fx.Node, operand: torch.fx.Node, dtype: torch.dtype
) -> torch.fx.Node:
    """Return an operand of a node in another type."""
    with graph.inserting_before(node):
        cast = graph.call_function(torch.ops.aten._to_copy.default, (operand,), {"dtype": dtype})
    cast.meta = {**operand.meta, "val": _value(operand).to(dtype)}
    return cast


def _value(argument: Any) -> Any:
    """Return the fake tensor of a node, or a number; None for anything else."""
    if isinstance(argument, torch.fx.Node):
        value = argument.meta.get("val")
        return value if isinstance(value, torch.Tensor) else None
    return argument if isinstance(argument, (bool, int, float, complex)) else None
