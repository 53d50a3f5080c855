"""Give tensors without axes the types of those they are combined with, as torch does.

A number that a script holds is a tensor of float64 without axes. torch computes with it in the type
of the tensors that have axes (https://docs.pytorch.org/docs/stable/tensor_attributes.html, "type
promotion"); TVM's importer computes in the larger type, which is slow in float64.
"""

from __future__ import annotations

from typing import Any

import torch

# Operators whose operands have one type.
_PROMOTING = frozenset(
    (
        *("add.Tensor", "sub.Tensor", "rsub.Tensor", "mul.Tensor", "div.Tensor"),
        *("div.Tensor_mode", "pow.Tensor_Tensor", "fmod.Tensor", "remainder.Tensor"),
        *("maximum.default", "minimum.default", "atan2.default", "where.self"),
        *(f"{name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    )
)


def cast_tensors_without_axes(graph: torch.fx.Graph) -> None:
    """Cast operands without axes to the type of the operands with axes, where torch does so.

    That is where both are floating-point numbers, or both are integers.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or getattr(node.target, "__name__", "") not in _PROMOTING:
            continue
        operands = [one for one in node.args if _value(one) is not None]
        if node.target.__name__ == "where.self":
            operands = operands[1:]
        types = {_value(one).dtype for one in operands if _value(one).ndim}
        if len(types) != 1:
            continue
        (dtype,) = types
        for operand in operands:
            own = _value(operand)
            if own.ndim == 0 and own.dtype != dtype and _kind(own.dtype) == _kind(dtype):
                with graph.inserting_before(node):
                    cast = graph.call_function(
                        torch.ops.aten._to_copy.default, (operand,), {"dtype": dtype}
                    )
                cast.meta = {**operand.meta, "val": own.to(dtype)}
                node.replace_input_with(operand, cast)


def _value(argument: Any) -> Any:
    """Return the fake tensor of a node; None for anything else."""
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _kind(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "bool"
    if dtype.is_complex:
        return "complex"
    return "float" if dtype.is_floating_point else "integer"
