"""Compute extents that a file names by expressions, such as `past_sequence_length + 1`.

ONNX gives the name of an open axis (`dim_param`) no meaning. PyTorch and Optimum write an
expression over other axes there, and ONNX Runtime's symbolic shape inference reads it so, too.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

_LONGEST = 200  # characters, which limits the depth of an expression


def extent_of_expression(symbol: str, extents: Mapping[str, int]) -> int | None:
    """Return the extent that an axis of this name has if its axes have these extents.

    Sums, differences, products and quotients without a remainder are known. Returns None for a
    name that is no such expression, or that has an axis without an extent, and for a negative
    extent.
    """
    if len(symbol) > _LONGEST:
        return None
    try:
        root = ast.parse(symbol, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    value = _value(root, extents) if isinstance(root, ast.BinOp) else None
    return None if value is None or value < 0 else value


def _value(node: ast.expr, extents: Mapping[str, int]) -> int | None:
    """Return the value of a part of an expression; None if it has none."""
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return extents.get(name)
        case ast.BinOp(left=left, op=operator, right=right):
            first, second = _value(left, extents), _value(right, extents)
            if first is None or second is None:
                return None
            return _result(operator, first, second)
    return None


def _result(operator: ast.operator, first: int, second: int) -> int | None:
    """Return what an operator makes of two values; None if it is unknown or the result no integer.

    Both kinds of division give a result for `s0 // 2` and for `encoder_sequence_length / 2`.
    """
    match operator:
        case ast.Add():
            return first + second
        case ast.Sub():
            return first - second
        case ast.Mult():
            return first * second
        case ast.FloorDiv() if second:
            return first // second
        case ast.Div() if second and first % second == 0:
            return first // second
    return None
