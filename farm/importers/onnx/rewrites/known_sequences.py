"""Follow the sequences of an ONNX graph, and read their elements by name.

The shape of an element that `SequenceAt` reads is not known to ONNX's inference if the elements
differ in shape. torch exports `tensor_split` and lists in this way, often from an unrolled loop.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import helper

from farm.importers.onnx.node_reading import node_attribute

_Names = tuple[str, ...]


class KnownSequences:
    """The sequences of a graph whose elements are known, by the names of their tensors."""

    def __init__(self) -> None:
        self._elements: dict[str, _Names] = {}

    def resolved(self, node: onnx.NodeProto, number: Callable[[str], int | None]) -> onnx.NodeProto:
        """Return a node of ONNX, or the `Identity` or `Concat` that has the same result.

        `number` returns the value of a constant, None for other names. A sequence that the node
        returns is remembered.
        """
        made = self._made(node, number)
        if made is not None:
            self._elements[node.output[0]] = made
            return node
        elements = self._elements.get(node.input[0]) if node.input else None
        if not elements:
            return node
        if node.op_type == "SequenceAt":
            place = number(node.input[1])
            if place is not None and -len(elements) <= place < len(elements):
                return helper.make_node("Identity", [elements[place]], list(node.output), node.name)
        if node.op_type == "ConcatFromSequence" and not node_attribute(node, "new_axis", 0):
            axis = node_attribute(node, "axis")
            return helper.make_node("Concat", elements, list(node.output), node.name, axis=axis)
        return node

    def _made(self, node: onnx.NodeProto, number: Callable[[str], int | None]) -> _Names | None:
        """Return the elements of the sequence that a node returns; None if they are not known."""
        if node.op_type == "SequenceEmpty":
            return ()
        if node.op_type == "SequenceConstruct":
            return tuple(node.input)
        before = self._elements.get(node.input[0]) if node.input else None
        if before is None:
            return None
        if node.op_type == "Identity":
            return before
        place = len(before)
        if node.op_type == "SequenceInsert":
            if len(node.input) > 2 and node.input[2]:
                given = number(node.input[2])
                if given is None or not -place <= given <= place:
                    return None
                place = given % place if given < 0 else given
            return (*before[:place], node.input[1], *before[place:])
        return None
