"""Rewrite forms of operators that TVM's importer, or its simplifier, reads wrongly."""

from __future__ import annotations

from typing import Any

import torch

_SCALED = ("add", "sub", "rsub")
_SAME = ("eq", "le", "ge", "ne")  # of one number: whether it is one
_REDUCTIONS = ("sum", "mean", "amax", "amin")
_COPIES = ("alias", "clone", "detach", "lift_fresh_copy")


def rewrite(graph: torch.fx.Graph) -> None:
    """Rewrite a graph."""
    for node in list(graph.nodes):
        if node.op == "call_function":
            name = getattr(node.target, "__name__", "").partition(".")[0]
            if name in _SCALED:
                _multiply_by_alpha(graph, node)
            elif name in _SAME:
                _ask_for_numbers(graph, node, name)
            elif name in _REDUCTIONS:
                _name_no_axis(node)


def _multiply_by_alpha(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Write the factor of the second operand out: TVM's importer leaves it out.

    The sum is of torch's type; the product has the type of all three.
    """
    alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "alpha"}
    left, right = node.args[:2]
    node.args = (left, right)
    if alpha == 1:
        return
    # rsub subtracts the first operand, alpha times, from the second
    place = 0 if _name(node) == "rsub" else 1
    scaled = node.args[place]
    if isinstance(scaled, torch.fx.Node):
        dtype = node.meta["val"].dtype
        with graph.inserting_before(node):
            cast = graph.call_function(torch.ops.aten._to_copy.default, (scaled,), {"dtype": dtype})
            cast.meta = {**scaled.meta, "val": scaled.meta["val"].to(dtype)}
            product = graph.call_function(torch.ops.aten.mul.Scalar, (cast, alpha))
        product.meta = {**cast.meta}
    else:
        product = scaled * alpha
    node.args = (product, right) if place == 0 else (left, product)


def _ask_for_numbers(graph: torch.fx.Graph, node: torch.fx.Node, name: str) -> None:
    """Write the comparison of a number with itself as `isnan`.

    TVM's simplifier takes any value for equal to itself, which NaN is not.
    """
    left, right = (_origin(one) for one in node.args[:2])
    if not isinstance(left, torch.fx.Node) or left is not right:
        return
    if not left.meta["val"].is_floating_point():
        return
    with graph.inserting_before(node):
        asked = graph.call_function(torch.ops.aten.isnan.default, (left,))
        asked.meta = {**node.meta}
        if name != "ne":
            asked = graph.call_function(torch.ops.aten.logical_not.default, (asked,))
            asked.meta = {**node.meta}
    node.replace_all_uses_with(asked)
    graph.erase_node(node)


def _name_no_axis(node: torch.fx.Node) -> None:
    """Leave out the axis of a tensor without axes, which torch allows to be 0 or -1."""
    data, *others = node.args
    if others and data.meta["val"].ndim == 0:
        node.args = (data, [], *others[1:])


def _origin(value: Any) -> Any:
    """Return the node that a copy is of."""
    while isinstance(value, torch.fx.Node) and _name(value) in _COPIES:
        value = value.args[0]
    return value


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", "")).partition(".")[0]
