"""Rules of operators that compute each element, each row or each image for itself, and reductions.

What they compute of the padding is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from farm.importers.onnx.bounded_shapes.extent import Extent, Product
from farm.importers.onnx.bounded_shapes.graph_writer import BoundedGraph, UnboundedShape
from farm.importers.onnx.node_reading import node_attribute, optional_input, stated_axes

Rule = Callable[[BoundedGraph, onnx.NodeProto], None]

_ELEMENTWISE = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd BitwiseNot "
    "BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu "
    "Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual "
    "Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid "
    "Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"
)
# Of images of a batch, which is the first axis of their first input
_OF_IMAGES = (
    "AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool "
    "GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool MaxPool Resize "
    "SpaceToDepth Upsample"
)


def elementwise(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Compute each element of tensors that are broadcast to one shape."""
    given = [(at, name) for at, name in enumerate(node.input) if name]
    rank = max(len(graph.padded_shape(name)) for _, name in given)
    extents: dict[int, Extent] = {}
    inputs = list(node.input)
    for axis in range(-rank, 0):
        here = [
            (at, name)
            for at, name in given
            if -axis <= len(graph.padded_shape(name)) and graph.shape(name)[axis] != Extent(1)
        ]
        found = {graph.shape(name)[axis] for _, name in here}
        if all(one.is_constant for one in found):
            continue
        if len(found) > 1:
            raise UnboundedShape("the extents of its inputs are not known to be equal")
        extents[axis + rank] = found.pop()
        least = min(graph.padded_shape(name)[axis] for _, name in here)
        for at, _ in here:
            padded = graph.padded_shape(inputs[at])
            inputs[at] = graph.cropped(inputs[at], axis + len(padded), least)
    graph.write(_with_inputs(node, inputs))
    graph.set_extents(node.output[0], extents)


def _with_inputs(node: onnx.NodeProto, inputs: Sequence[str]) -> onnx.NodeProto:
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    del changed.input[:]
    changed.input.extend(inputs)
    return changed


def of_images(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Compute each image of a batch for itself."""
    extents = graph.extents.get(node.input[0], {})
    if set(extents) != {0} or any(name in graph.extents for name in node.input[1:]):
        raise UnboundedShape("an extent other than the batch is not constant")
    graph.write(node)
    for name in node.output:
        if name:
            graph.set_extents(name, extents)


def roi_align(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Sample regions of interest (ROIs), whose number is dynamic, in images."""
    images, rois, batch_indices = node.input[:3]
    if images in graph.extents:
        raise UnboundedShape("the extents of its images are not constant")
    shapes = graph.shape(rois), graph.shape(batch_indices)
    if shapes[0][0] != shapes[1][0] or not shapes[0][1].is_constant:
        raise UnboundedShape("the numbers of its ROIs and batch indices are not known to be equal")
    extents = {0: shapes[0][0]}
    if not extents[0].is_constant:  # of no image, the kernel computes nothing
        inside = graph.valid_mask(extents[0], graph.padded_shape(batch_indices)[0], 0, 1)
        none = np.array(-1, helper.tensor_dtype_to_np_dtype(graph.dtype(batch_indices)))
        batch_indices = graph.emit("Where", [inside, batch_indices, graph.constant(none)])
    graph.write(_with_inputs(node, [images, rois, batch_indices]))
    graph.set_extents(node.output[0], extents)


def matmul(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Multiply matrices; the padding of the axis that is summed over becomes zero."""
    one, other = node.input
    shapes = graph.shape(one), graph.shape(other)
    if min(len(shapes[0]), len(shapes[1])) < 2:
        raise UnboundedShape("it multiplies a vector whose extent is not constant")
    inner = len(shapes[0]) - 1, len(shapes[1]) - 2
    if shapes[0][inner[0]] != shapes[1][inner[1]]:
        raise UnboundedShape("the extents of its inputs are not known to be equal")
    least = min(graph.padded_shape(one)[inner[0]], graph.padded_shape(other)[inner[1]])
    names = [
        graph.cropped(graph.fill_padding(name, [axis], 0), axis, least)
        for name, axis in zip((one, other), inner, strict=True)
    ]
    rank = max(map(len, shapes))
    extents = _batch_extents(shapes, rank)
    extents[rank - 2], extents[rank - 1] = shapes[0][-2], shapes[1][-1]
    graph.write(helper.make_node("MatMul", names, node.output))
    graph.set_extents(node.output[0], extents)


def _batch_extents(shapes: Sequence[Sequence[Extent]], rank: int) -> dict[int, Extent]:
    extents = {}
    for axis in range(rank - 2):
        found = {shape[axis - rank] for shape in shapes if rank - axis <= len(shape)} - {Extent(1)}
        if len(found) > 1:
            raise UnboundedShape("the extents of its inputs are not known to be equal")
        if found:
            extents[axis] = found.pop()
    return extents


def gemm(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Multiply two matrices and add a third; the rows of the first may be dynamic."""
    rows = 1 if node_attribute(node, "transA", 0) else 0
    if any(name in graph.extents for name in node.input[1:]) or set(
        graph.extents[node.input[0]]
    ) != {rows}:
        raise UnboundedShape("an extent other than that of its rows is not constant")
    graph.write(node)
    graph.set_extents(node.output[0], {0: graph.extents[node.input[0]][rows]})


def along_axis(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Normalize rows; those of a softmax may have a dynamic extent, other ones a constant one."""
    name = node.input[0]
    extents, rank = graph.extents.get(name, {}), len(graph.padded_shape(name))
    softmax = node.op_type in ("Softmax", "LogSoftmax")
    axis = node_attribute(node, "axis", -1 if graph.opset >= 13 or not softmax else 1) % rank
    joined = not softmax or graph.opset < 13  # from the axis to the last
    if any(one in extents for one in range(axis, rank if joined else axis + 1)):
        if not softmax or (joined and axis != rank - 1):
            raise UnboundedShape("it computes along an extent that is not constant")
        name = graph.fill_padding(name, [axis], -np.inf)
    graph.write(_with_inputs(node, [name, *node.input[1:]]))
    graph.set_extents(node.output[0], extents)


# The padding takes no part in a reduction
_NEUTRAL = {
    "ReduceSum": 0,
    "ReduceMean": 0,
    "ReduceL1": 0,
    "ReduceL2": 0,
    "ReduceSumSquare": 0,
    "ReduceProd": 1,
    "ReduceLogSum": 0,
    "ReduceLogSumExp": -np.inf,
}


def reduce_(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Reduce along axes, also dynamic ones."""
    name = node.input[0]
    extents, rank = graph.extents.get(name, {}), len(graph.padded_shape(name))
    axes = stated_axes(node, graph.array(optional_input(node, 1)))
    if optional_input(node, 1) and axes is None:
        raise UnboundedShape("its axes are not constant")
    if not axes:
        if axes is not None and node_attribute(node, "noop_with_empty_axes", 0):
            graph.write(helper.make_node("Identity", [name], node.output))
            graph.set_extents(node.output[0], extents)
            return
        axes = list(range(rank))
    reduced = {axis % rank for axis in axes}
    keep = bool(node_attribute(node, "keepdims", 1))
    filled = graph.fill_padding(name, sorted(reduced), _neutral(graph, node, name))
    dynamic = sorted(reduced & set(extents))
    if node.op_type == "ReduceMean" and dynamic:
        _mean(graph, node, filled, reduced, dynamic)
    else:
        graph.write(_with_inputs(node, [filled, *node.input[1:]]))
    _set_reduced(graph, node.output[0], extents, reduced, rank, keep)


def _neutral(graph: BoundedGraph, node: onnx.NodeProto, name: str) -> Any:
    if node.op_type in ("ReduceMax", "ReduceMin"):
        return graph.lowest(name, highest=node.op_type == "ReduceMin")
    return _NEUTRAL[node.op_type]


def _mean(
    graph: BoundedGraph,
    node: onnx.NodeProto,
    filled: str,
    reduced: set[int],
    dynamic: Sequence[int],
) -> None:
    """Write the mean as the sum by the number of elements."""
    extents, padded = graph.extents[node.input[0]], graph.padded_shape(node.input[0])
    parts = [extents[axis] if axis in dynamic else Extent(padded[axis]) for axis in sorted(reduced)]
    size = Product.of(parts).extent
    if size is None:
        raise UnboundedShape("it multiplies two extents that are not constant")
    number = graph.emit("Cast", [graph.extent_tensor(size)], to=graph.dtype(node.input[0]))
    changed = _with_inputs(node, [filled, *node.input[1:]])
    changed.op_type, changed.output[0] = "ReduceSum", graph.new_name(node.output[0])
    if graph.opset >= 13 and node_attribute(changed, "axes") is not None:  # an input of ReduceSum
        axes = graph.constant(np.array(node_attribute(changed, "axes"), np.int64))
        del changed.attribute[[one.name for one in changed.attribute].index("axes")]
        changed.input.append(axes)
    graph.write(changed)
    scalar = graph.reshaped(number, ())
    graph.write(helper.make_node("Div", [changed.output[0], scalar], node.output))


def _set_reduced(
    graph: BoundedGraph,
    name: str,
    extents: Mapping[int, Extent],
    reduced: set[int],
    rank: int,
    keep: bool,
) -> None:
    left = [axis for axis in range(rank) if keep or axis not in reduced]
    graph.set_extents(
        name,
        {
            left.index(axis): extent
            for axis, extent in extents.items()
            if axis in left and axis not in reduced
        },
    )


def arg_extreme(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Find the place of the highest or lowest element of an axis, also of a dynamic one."""
    name = node.input[0]
    extents, rank = graph.extents[name], len(graph.padded_shape(name))
    axis = node_attribute(node, "axis", 0) % rank
    if axis in extents and node_attribute(node, "select_last_index", 0):
        raise UnboundedShape("it finds the last of equal elements of a dynamic extent")
    value = graph.lowest(name, highest=node.op_type == "ArgMin")
    graph.write(_with_inputs(node, [graph.fill_padding(name, [axis], value)]))
    keep = bool(node_attribute(node, "keepdims", 1))
    _set_reduced(graph, node.output[0], extents, {axis}, rank, keep)
    graph.non_negative.add(node.output[0])


def cumulative(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Sum up along an axis, from its first element on."""
    if node_attribute(node, "reverse", 0):
        axis = graph.array(node.input[1])
        rank = len(graph.padded_shape(node.input[0]))
        if axis is None or int(axis) % rank in graph.extents[node.input[0]]:
            raise UnboundedShape("it begins at the end of an extent that is not constant")
    graph.write(node)
    graph.set_extents(node.output[0], graph.extents.get(node.input[0], {}))


def one_hot(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Make vectors with one element set, of indices whose number is dynamic."""
    extents, rank = graph.extents.get(node.input[0], {}), len(graph.padded_shape(node.input[0]))
    axis = node_attribute(node, "axis", -1) % (rank + 1)
    graph.write(node)
    graph.set_extents(
        node.output[0], {one + (one >= axis): extent for one, extent in extents.items()}
    )


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), elementwise),
    **dict.fromkeys(_OF_IMAGES.split(), of_images),
    **dict.fromkeys((*_NEUTRAL, "ReduceMax", "ReduceMin"), reduce_),
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "LpNormalization"),
        along_axis,
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_extreme),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), elementwise),
    "RoiAlign": roi_align,
    "MatMul": matmul,
    "Gemm": gemm,
    "CumSum": cumulative,
    "OneHot": one_hot,
}
