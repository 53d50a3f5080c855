"""Small ONNX graphs whose kernels were once wrong, left their tensors, or could not be compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx_models import graph, node, save

Graph = tuple[
    list[onnx.NodeProto], dict[str, Any], dict[str, Any], dict[str, Any]
]  # nodes, inputs, outputs, constants


def written(path: Path, made: Graph) -> Path:
    nodes, inputs, outputs, constants = made
    return save(path, graph(nodes, inputs, outputs, constants), opset=18)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def pad_slice(length: int = 300, rows: int = 16, columns: int = 40, kept: int = 30) -> Graph:
    """Pad, reshape and cut: in the last rows, what is behind the input begins before the first
    column.
    """
    nodes = [
        node("Pad", ["a", "pads"], ["p"]),
        node("Reshape", ["p", "shape"], ["q"]),
        node("Slice", ["q", "start", "end", "axis"], ["y"]),
    ]
    constants = {
        "pads": [0, rows * columns - length],
        "shape": [rows, columns],
        "start": [0],
        "end": [kept],
        "axis": [1],
    }
    return nodes, {"a": [length]}, {"y": [rows, kept]}, constants


def pad_concat(length: int = 300, rows: int = 16, columns: int = 40, more: int = 10) -> Graph:
    """Pad, reshape and concatenate: two conditions on the columns, of which one depends on
    the row.
    """
    nodes = [
        node("Pad", ["a", "pads"], ["p"]),
        node("Reshape", ["p", "shape"], ["q"]),
        node("Concat", ["q", "c"], ["y"], axis=1),
    ]
    constants = {"pads": [0, rows * columns - length], "shape": [rows, columns]}
    return nodes, {"a": [length], "c": [rows, more]}, {"y": [rows, columns + more]}, constants


def heads(channels: int, pixels: int, more: int, channels_last: bool) -> Graph:
    """The end of a detector: two maps as rows of pixels, those of another scale behind them, and of
    the channels the first.
    """
    both = channels + 2
    nodes = [
        node("Concat", ["a", "b"], ["ab"], axis=1),
        node("Reshape", ["ab", "rows"], ["p"]),
        *([node("Transpose", ["c"], ["q"], perm=[0, 2, 1])] if channels_last else []),
        node("Concat", ["p", "q" if channels_last else "c"], ["r"], axis=2),
        node("Slice", ["r", "start", "end", "axis"], ["y"]),
    ]
    other = [1, more, both] if channels_last else [1, both, more]
    inputs = {"a": [1, channels, 1, pixels], "b": [1, 2, 1, pixels], "c": other}
    constants = {"rows": [1, both, pixels], "start": [0], "end": [channels], "axis": [1]}
    return nodes, inputs, {"y": [1, channels, pixels + more]}, constants


CUT_LOOPS = {
    "pad_slice": pad_slice(),
    "pad_concat": pad_concat(),
    "heads of 1600 and 400 pixels, channels last": heads(64, 1600, 400, channels_last=True),
    "heads of 2560 and 2560 pixels": heads(64, 2560, 2560, channels_last=False),
    "heads of 2500 and 2560 pixels": heads(64, 2500, 2560, channels_last=False),
}


def after_product(nodes: list[onnx.NodeProto], result: list[int], **constants: Any) -> Graph:
    """A product `a` of [1, 60, 40] and [40, 32], and what follows it."""
    product = node("MatMul", ["x", "w"], ["a"])
    return [product, *nodes], {"x": [1, 60, 40]}, {"y": result}, {"w": normal(40, 32), **constants}


def matmul_pad() -> Graph:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Pad", ["a", "pads", "value"], ["y"])]
    constants = {"w": normal(16, 1), "pads": [0, 0, 0, 5, 0, 0], "value": np.float32(1.5)}
    return nodes, {"x": [5, 1, 16]}, {"y": [10, 1, 1]}, constants


def pad_resize() -> Graph:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Pad", ["a", "pads", "zero"], ["b"]),
        node("Resize", ["b", "", "scales"], ["y"], mode="nearest"),
    ]
    scales = np.array([1, 1, 2, 2], "float32")
    constants = {
        "w": normal(14, 3),
        "pads": [0, 0, 0, 0, 0, 5, 0, 0],
        "zero": np.float32(0),
        "scales": scales,
    }
    return nodes, {"x": [1, 17, 7, 14]}, {"y": [1, 22, 14, 6]}, constants


def conv_pool() -> Graph:
    nodes = [
        node("Conv", ["x", "w"], ["a"], kernel_shape=[1, 1]),
        node("MaxPool", ["a"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Add", ["b", "k"], ["y"]),
    ]
    return (
        nodes,
        {"x": [1, 3, 20, 7]},
        {"y": [1, 2, 10, 4]},
        {"w": normal(2, 3, 1, 1), "k": normal(1, 1, 10, 4)},
    )


def winograd_pad() -> Graph:
    """A convolution by Winograd's algorithm whose result is padded where it is used."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Pad", ["a", "pads"], ["b"]),
        node("Conv", ["b", "v"], ["y"], kernel_shape=[1, 1]),
    ]
    constants = {
        "w": normal(64, 64, 3, 3) / 20,
        "v": normal(16, 64, 1, 1),
        "pads": [0, 0, 0, 0, 0, 0, 0, 1],
    }
    return nodes, {"x": [1, 64, 14, 14]}, {"y": [1, 16, 14, 15]}, constants


FOLLOWED = {
    "a padding of rows after a product": matmul_pad(),
    "a padding of columns after a product": pad_resize(),
    "a bias and a padding after a product": after_product(
        [node("Add", ["a", "k"], ["b"]), node("Pad", ["b", "pads"], ["y"])],
        [1, 63, 32],
        k=normal(32),
        pads=[0, 0, 0, 0, 3, 0],
    ),
    "the first columns of a product": after_product(
        [node("Slice", ["a", "start", "end", "axis"], ["y"])],
        [1, 60, 20],
        start=[0],
        end=[20],
        axis=[2],
    ),
    "a sum that repeats a product": after_product(
        [node("Add", ["a", "k"], ["y"])], [4, 60, 32], k=normal(4, 1, 1)
    ),
    "a sum that repeats rows of a product": (
        [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "k"], ["y"])],
        {"x": [10, 1, 16]},
        {"y": [10, 6, 32]},
        {"w": normal(16, 32), "k": normal(10, 6, 32)},
    ),
    "a sum after a maximum": conv_pool(),
    "a padding after Winograd's convolution": winograd_pad(),
}


def gather_concat() -> Graph:
    nodes = [
        node("Gather", ["x0", "rows"], ["a"], axis=0),
        node("Concat", ["a", "x1"], ["b"], axis=2),
        node("Sigmoid", ["b"], ["y"]),
    ]
    inputs = {"x0": [17, 40, 8, 17], "x1": [2, 40, 16, 17]}
    return nodes, inputs, {"y": [2, 40, 24, 17]}, {"rows": np.array([16, 14])}


def functions(count: int) -> Graph:
    """A function of a function of a function."""
    names = ["x", *(f"v{at}" for at in range(1, count)), "y"]
    nodes = [node("Sigmoid", [names[at]], [names[at + 1]]) for at in range(count)]
    return nodes, {"x": [40, 64]}, {"y": [40, 64]}, {}


def reshape_pad() -> Graph:
    """A reshape, then a padding of two axes: the indices have the form (sum // a + b) % c."""
    nodes = [node("Reshape", ["x", "shape"], ["a"]), node("Pad", ["a", "pads"], ["y"])]
    constants = {"shape": [3, 2, 29, 93], "pads": [0, 1, 1, 0, 0, 0, 0, 0]}
    return nodes, {"x": [29, 18, 31]}, {"y": [3, 3, 30, 93]}, constants


def function_split() -> Graph:
    """An activation of a padded tensor, split in two: one kernel computes the activation twice,
    and one of the parts is padding alone.
    """
    nodes = [
        node("Pad", ["x", "pads"], ["a"]),
        node("Tanh", ["a"], ["b"]),
        node("Split", ["b", "parts"], ["y", "z"], axis=2),
    ]
    constants = {"pads": [0, 0, 3, 0, 0, 0, 2, 0], "parts": [3, 5]}
    outputs = {"y": [2, 2, 3, 4], "z": [2, 2, 5, 4]}
    return nodes, {"x": [2, 2, 3, 4]}, outputs, constants


def silu_of_padding() -> Graph:
    """A function of several steps whose argument is a padding in whole loops, and padded again."""
    nodes = [
        node("Pad", ["x", "pads", "value"], ["a"]),
        node("Sigmoid", ["a"], ["b"]),
        node("Mul", ["a", "b"], ["c"]),
        node("Pad", ["c", "more"], ["d"]),
        node("Slice", ["d", "start", "end", "axis"], ["y"]),
    ]
    constants = {
        "pads": [3, 3, 3, 3, 0, 0, 3, 0],
        "more": [3, 1, 0, 5, 0, 1, 0, 0],
        "value": np.float32(0.3),
        "start": [3],
        "end": [5],
        "axis": [0],
    }
    return nodes, {"x": [1, 1, 17, 1]}, {"y": [2, 6, 23, 9]}, constants


def sigmoid_of_padding_alone() -> Graph:
    """A function of a padded tensor, split in two: one of the parts is padding alone."""
    nodes = [
        node("Pad", ["x", "pads", "value"], ["a"]),
        node("Sigmoid", ["a"], ["b"]),
        node("Split", ["b", "parts"], ["y", "z"], axis=3),
    ]
    constants = {
        "pads": [0, 0, 0, 0, 0, 0, 0, 2],
        "parts": [8, 1],
        "value": np.float32(1.5),
    }
    return nodes, {"x": [1, 1, 17, 7]}, {"y": [1, 1, 17, 8], "z": [1, 1, 17, 1]}, constants
