"""Sequences whose elements are known: what is read from them has the element's own shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import graph, node, save
from test_loop_unrolling import GOING, NUMBER, agrees, body, imported

from farm.errors import ModelError

PARTS = [
    node("Slice", ["x", "zero", "one", "axis"], ["narrow"]),
    node("Slice", ["x", "one", "three", "axis"], ["wide"]),
]
NUMBERS = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "three": np.array([3]),
    "axis": np.array([1]),
}


def saved(
    folder: Path, nodes: list[onnx.NodeProto], shape: list[int], **weights: np.ndarray
) -> Path:
    whole = graph([*PARTS, *nodes], {"x": [2, 3]}, {"y": shape}, {**NUMBERS, **weights})
    return save(folder / "sequence.onnx", whole)


@pytest.mark.parametrize(("place", "width"), [(0, 1), (1, 2), (-1, 2), (-2, 1)])
def test_an_element_has_its_own_shape(place: int, width: int, tmp_path: Path) -> None:
    nodes = [
        node("SequenceConstruct", ["narrow", "wide"], ["both"]),
        node("SequenceAt", ["both", "place"], ["element"]),
        node("Shape", ["element"], ["shape"]),
        node("Expand", ["half", "shape"], ["halves"]),
        node("Add", ["element", "halves"], ["y"]),
    ]
    more = {"place": np.int64(place), "half": np.float32(0.5)}
    agrees(saved(tmp_path, nodes, [2, width], **more))


@pytest.mark.parametrize("place", [None, 0, 1, -1, -2, 2])
def test_elements_are_inserted_where_the_node_says(place: int | None, tmp_path: Path) -> None:
    where = [] if place is None else ["place"]
    nodes = [
        node("SequenceConstruct", ["narrow", "wide"], ["both"]),
        node("Neg", ["x"], ["third"]),
        node("SequenceInsert", ["both", "third", *where], ["all"]),
        node("ConcatFromSequence", ["all"], ["y"], axis=1),
    ]
    agrees(saved(tmp_path, nodes, [2, 6], place=np.int64(place or 0)))


def test_a_loop_collects_parts_of_different_widths(tmp_path: Path) -> None:
    inner = body(
        [
            node("Add", ["number", "two"], ["end"]),
            node("Unsqueeze", ["end", "zero"], ["ends"]),
            node("Slice", ["x", "zero", "ends", "axis"], ["part"]),
            node("SequenceInsert", ["before", "part"], ["after"]),
            node("Identity", ["going"], ["on"]),
        ],
        {"number": NUMBER, "going": GOING},
        {"on": GOING},
        two=np.int64(1),
    )
    parts = onnx.helper.make_tensor_sequence_value_info("before", onnx.TensorProto.FLOAT, None)
    inner.input.append(parts)
    after = onnx.helper.make_tensor_sequence_value_info("after", onnx.TensorProto.FLOAT, None)
    inner.output.append(after)
    nodes = [
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["runs", "", "none"], ["parts"], body=inner),
        node("SequenceAt", ["parts", "last"], ["widest"]),
        node("SequenceAt", ["parts", "first"], ["narrowest"]),
        node("Mul", ["widest", "narrowest"], ["y"]),
    ]
    more = {"runs": np.int64(3), "first": np.int64(0), "last": np.int64(-1)}
    agrees(saved(tmp_path, nodes, [2, 3], **more))


def test_a_place_that_is_computed_is_refused_in_words(tmp_path: Path) -> None:
    nodes = [
        node("SequenceConstruct", ["narrow", "wide"], ["both"]),
        node("SequenceAt", ["both", "place"], ["y"]),
    ]
    whole = graph(
        [*PARTS, *nodes],
        {"x": [2, 3], "place": ("int64", [])},
        {"y": [2, 2]},
        NUMBERS,
    )
    with pytest.raises(ModelError, match="SequenceAt"):
        imported(save(tmp_path / "sequence.onnx", whole))
