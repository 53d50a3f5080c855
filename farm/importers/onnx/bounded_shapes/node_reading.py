"""Read attributes and inputs of nodes, whichever opset wrote them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of a node's attribute, or the default."""
    for one in node.attribute:
        if one.name == name:
            return onnx.helper.get_attribute_value(one)
    return default


def optional_input(node: onnx.NodeProto, place: int) -> str:
    """Return the name of an input; "" if the node has none there."""
    return node.input[place] if len(node.input) > place else ""


def stated_axes(node: onnx.NodeProto, given: np.ndarray[Any, Any] | None) -> list[int] | None:
    """Return the axes of an attribute, or those that an input has; None if neither states them."""
    found = attribute(node, "axes")
    if found is not None:
        return [int(axis) for axis in found]
    return None if given is None else [int(axis) for axis in np.ravel(given)]
