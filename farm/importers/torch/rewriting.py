"""Rewrite forms of operators that TVM's importer, or its simplifier, reads wrongly."""

from __future__ import annotations

import math
from typing import Any

import torch

_SCALED = ("add", "sub", "rsub")
_SAME = ("eq", "le", "ge", "ne")  # of one number: whether it is one
_REDUCTIONS = ("sum", "mean", "amax", "amin")
_POOLS = {"avg_pool1d": 1, "avg_pool2d": 2, "avg_pool3d": 3}  # their axes
_COPIES = ("alias", "clone", "detach", "lift_fresh_copy")


def rewrite(graph: torch.fx.Graph) -> None:
    """Rewrite a graph."""
    for node in list(graph.nodes):
        # sums and comparisons of extents are functions of Python
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            name = getattr(node.target, "__name__", "").partition(".")[0]
            if name in _SCALED:
                _multiply_by_alpha(graph, node)
            elif name in _SAME:
                _ask_for_numbers(graph, node, name)
            elif name in _REDUCTIONS:
                _name_no_axis(node)
            elif name in _POOLS:
                _multiply_by_divisor(graph, node)
            elif name == "any":
                _ask_for_truth(graph, node)


def _multiply_by_alpha(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Write the factor of the second operand out: TVM's importer leaves it out.

    The sum is of torch's type; the product has the type of all three.
    """
    if node.meta["val"].is_complex():  # farm's own converters heed it
        return
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


def _multiply_by_divisor(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Write the divisor of an average pool as a factor: TVM's importer leaves it out."""
    divisor = node.args[6] if len(node.args) > 6 else node.kwargs.get("divisor_override")
    if divisor is None:
        return
    data, kernel, *others = node.args[:4]
    if node.args[4] if len(node.args) > 4 else node.kwargs.get("ceil_mode", False):
        raise NotImplementedError("divisor_override of an average pool with ceil_mode")
    stride = (others[0] if others else None) or kernel
    padding = others[1] if len(others) > 1 else [0]
    node.args, node.kwargs = (data, kernel, stride, padding, False, True), {}
    axes = _POOLS[_name(node)]
    elements = math.prod([*kernel] * (axes if len(kernel) == 1 else 1))
    with graph.inserting_after(node):
        factor = graph.call_function(
            torch.ops.aten.full.default,
            ([], elements / divisor),
            {"dtype": node.meta["val"].dtype},
        )
    factor.meta = {**node.meta, "val": node.meta["val"].new_empty(())}
    with graph.inserting_after(factor):
        product = graph.call_function(torch.ops.aten.mul.Tensor, (node, factor))
    product.meta = {**node.meta}
    node.replace_all_uses_with(product, delete_user_cb=lambda user: user is not product)


def _ask_for_truth(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Compare the numbers of `any` with zero: TVM's importer takes the largest of them."""
    data = node.args[0]
    if data.meta["val"].dtype == torch.bool:
        return
    with graph.inserting_before(node):
        asked = graph.call_function(torch.ops.aten.ne.Scalar, (data, 0))
    asked.meta = {**data.meta, "val": data.meta["val"] != 0}
    node.args = (asked, *node.args[1:])
    dtype = node.meta["val"].dtype
    if dtype != torch.bool:  # that of uint8 is uint8
        with graph.inserting_after(node):
            cast = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
        cast.meta = {**node.meta}
        node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)


def _origin(value: Any) -> Any:
    """Return the node that a copy is of."""
    while isinstance(value, torch.fx.Node) and _name(value) in _COPIES:
        value = value.args[0]
    return value


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", "")).partition(".")[0]
