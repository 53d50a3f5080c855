"""Random ONNX graphs of shapes that nobody chose, each decided by its seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_LARGEST = 60_000  # elements of a tensor
_STEPS = (2, 7)
_UNARY = ("Sigmoid", "Relu", "Tanh", "Neg", "Abs", "HardSwish", "Softplus", "Erf", "Elu")
_BINARY = ("Add", "Mul", "Sub", "Max")
_REDUCTIONS = ("ReduceSum", "ReduceMax", "ReduceMean")
Shape = tuple[int, ...]


@dataclass
class Graph:
    """A graph that grows; `values` are all tensors that a step may take, by name."""

    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, Shape] = field(default_factory=dict)
    values: dict[str, Shape] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)

    def whole(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def one_of(self, values: Any) -> Any:
        return values[self.whole(0, len(values) - 1)]

    def input(self, shape: Shape) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.values[name] = shape
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def normal(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape).astype("float32"))

    def emit(self, operator: str, inputs: list[str], shape: Shape, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        self.values[name] = shape
        return name


def generated(seed: int) -> onnx.ModelProto:
    """Return the model of a seed: of views and products, or, for each third, of images.

    Some images have one row, as signals have.
    """
    graph = Graph(np.random.default_rng(seed))
    images = seed % 3 == 2
    if images:
        size = graph.whole(3, 24), graph.whole(3, 24)
        last = graph.input(
            (
                graph.one_of([1, 1, 2]),
                graph.one_of([1, 2, 3, 8, 17, 32, 64]),
                *graph.one_of([size, size, size, (1, 4 * size[0])]),
            )
        )
    else:
        last = graph.input(
            tuple(graph.whole(1, 40) for _ in range(graph.whole(1, 4)))[: graph.whole(1, 4)]
        )
    while np.prod(graph.values[last]) > _LARGEST:
        last = graph.input(tuple(max(1, extent // 2) for extent in graph.values[last]))
    for _ in range(graph.whole(*_STEPS)):
        step = graph.one_of(
            _IMAGE_STEPS if images and len(graph.values[last]) == 4 else _STEPS_OF_VIEWS
        )
        last = step(graph, last) or last
    if not graph.nodes:
        last = graph.emit("Relu", [last], graph.values[last])
    used = {name for node in graph.nodes for name in node.input}
    ends = [name for name in graph.values if name not in used and name not in graph.inputs]
    tensors = [
        numpy_helper.from_array(value, name)
        for name, value in graph.constants.items()
        if name in used
    ]
    body = helper.make_graph(
        graph.nodes,
        "g",
        _infos(graph, [n for n in graph.inputs if n in used]),
        _infos(graph, ends),
        tensors,
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def _infos(graph: Graph, names: list[str]) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, graph.values[name]) for name in names
    ]


def _unary(graph: Graph, name: str) -> str:
    return graph.emit(graph.one_of(_UNARY), [name], graph.values[name])


def _binary(graph: Graph, name: str) -> str:
    shape = graph.values[name]
    same = [other for other, of in graph.values.items() if of == shape]
    kept = tuple(extent if graph.whole(0, 1) else 1 for extent in shape)
    other = graph.one_of(same) if graph.whole(0, 2) == 0 else graph.normal(*kept)
    return graph.emit(
        graph.one_of(_BINARY), [name, other] if graph.whole(0, 1) else [other, name], shape
    )


def _repeat(graph: Graph, name: str) -> str | None:
    """A sum by which an axis of one becomes longer."""
    shape = graph.values[name]
    short = [axis for axis, extent in enumerate(shape) if extent == 1]
    more = graph.whole(2, 6)
    if not short or np.prod(shape) * more > _LARGEST:
        return None
    axis = graph.one_of(short)
    larger = (*shape[:axis], more, *shape[axis + 1 :])
    return graph.emit("Add", [name, graph.normal(*larger)], larger)


def _concat(graph: Graph, name: str) -> str | None:
    shape = graph.values[name]
    axis, more = graph.whole(0, len(shape) - 1), graph.whole(1, 20)
    added = (*shape[:axis], more, *shape[axis + 1 :])
    total = (*shape[:axis], shape[axis] + more, *shape[axis + 1 :])
    if np.prod(total) > _LARGEST:
        return None
    parts = [name, graph.input(added)]
    return graph.emit("Concat", parts if graph.whole(0, 1) else parts[::-1], total, axis=axis)


def _slice(graph: Graph, name: str) -> str:
    shape = graph.values[name]
    axis = graph.whole(0, len(shape) - 1)
    begin = 0 if graph.whole(0, 2) == 0 else graph.whole(0, shape[axis] - 1)
    end, step = graph.whole(begin + 1, shape[axis]), graph.one_of([1, 1, 1, 2, 3])
    left = (*shape[:axis], -(-(end - begin) // step), *shape[axis + 1 :])
    places = [graph.constant(np.array([number])) for number in (begin, end, axis, step)]
    return graph.emit("Slice", [name, *places], left)


def _pad(graph: Graph, name: str) -> str | None:
    shape = graph.values[name]
    before, behind = [0] * len(shape), [0] * len(shape)
    for _ in range(graph.whole(1, 2)):
        axis = graph.whole(0, len(shape) - 1)
        before[axis], behind[axis] = graph.one_of([0, 0, 1, 3]), graph.one_of([0, 1, 2, 5])
    padded = tuple(map(sum, zip(shape, before, behind, strict=True)))
    if np.prod(padded) > _LARGEST:
        return None
    value = graph.constant(np.float32(graph.one_of([0, 1.5, -2])))
    return graph.emit("Pad", [name, graph.constant(np.array([*before, *behind])), value], padded)


def _reshape(graph: Graph, name: str) -> str:
    rest, shape = int(np.prod(graph.values[name])), []
    for _ in range(graph.whole(0, 3)):
        factor = graph.one_of([one for one in range(1, min(rest, 64) + 1) if rest % one == 0])
        shape.append(factor)
        rest //= factor
    shape = [*shape, rest] if graph.whole(0, 1) else [rest, *shape]
    return graph.emit("Reshape", [name, graph.constant(np.array(shape))], tuple(shape))


def _transpose(graph: Graph, name: str) -> str:
    shape = graph.values[name]
    order = [int(axis) for axis in graph.random.permutation(len(shape))]
    return graph.emit("Transpose", [name], tuple(shape[axis] for axis in order), perm=order)


def _split(graph: Graph, name: str) -> str | None:
    shape = graph.values[name]
    long = [axis for axis, extent in enumerate(shape) if extent > 1]
    if not long:
        return None
    axis = graph.one_of(long)
    first = graph.whole(1, shape[axis] - 1)
    sizes = (first, shape[axis] - first)
    names = [f"v{len(graph.nodes)}", f"v{len(graph.nodes)}b"]
    graph.nodes.append(
        helper.make_node("Split", [name, graph.constant(np.array(sizes))], names, axis=axis)
    )
    graph.values.update(
        {
            part: (*shape[:axis], size, *shape[axis + 1 :])
            for part, size in zip(names, sizes, strict=True)
        }
    )
    return names[graph.whole(0, 1)]


def _gather(graph: Graph, name: str) -> str:
    shape = graph.values[name]
    axis = graph.whole(0, len(shape) - 1)
    indices = graph.random.integers(-shape[axis], shape[axis], graph.whole(1, 5))
    return graph.emit(
        "Gather",
        [name, graph.constant(indices)],
        (*shape[:axis], len(indices), *shape[axis + 1 :]),
        axis=axis,
    )


def _reduce(graph: Graph, name: str) -> str:
    shape = graph.values[name]
    axis, keep = graph.whole(0, len(shape) - 1), 1 if len(shape) == 1 else graph.whole(0, 1)
    left = (*shape[:axis], *([1] if keep else []), *shape[axis + 1 :])
    return graph.emit(
        graph.one_of(_REDUCTIONS), [name, graph.constant(np.array([axis]))], left, keepdims=keep
    )


def _softmax(graph: Graph, name: str) -> str:
    return graph.emit(
        "Softmax", [name], graph.values[name], axis=graph.whole(0, len(graph.values[name]) - 1)
    )


def _norm(graph: Graph, name: str) -> str | None:
    channels = graph.values[name][-1]
    if channels == 1:  # the result would be constant, and rounding all that a later norm sees
        return None
    return graph.emit(
        "LayerNormalization",
        [name, graph.normal(channels), graph.normal(channels)],
        graph.values[name],
        axis=-1,
    )


def _matmul(graph: Graph, name: str) -> str | None:
    shape, columns = graph.values[name], graph.whole(1, 40)
    if len(shape) < 2 or np.prod(shape[:-1]) * columns > _LARGEST:
        return None
    return graph.emit("MatMul", [name, graph.normal(shape[-1], columns)], (*shape[:-1], columns))


def _windows(
    graph: Graph, shape: Shape, dilations: Sequence[int] = (1, 1)
) -> tuple[dict[str, Any], tuple[int, int]] | None:
    kernel, strides = (
        [graph.one_of([1, 2, 3, 3, 4, 5, 7]) for _ in "hw"],
        [graph.one_of([1, 1, 2, 3]) for _ in "hw"],
    )
    pads = [graph.whole(0, kernel[at % 2] // 2 * dilations[at % 2]) for at in range(4)]
    size = [
        (shape[2 + at] + pads[at] + pads[2 + at] - dilations[at] * (kernel[at] - 1) - 1)
        // strides[at]
        + 1
        for at in (0, 1)
    ]
    return (
        ({"kernel_shape": kernel, "strides": strides, "pads": pads}, (size[0], size[1]))
        if min(size) > 0
        else None
    )


def _conv(graph: Graph, name: str) -> str | None:
    shape = graph.values[name]
    dilations = [graph.one_of([1, 1, 1, 2, 3]) for _ in "hw"]
    found, channels = _windows(graph, shape, dilations), shape[1]
    if found is None:
        return None
    attributes, size = found
    attributes["dilations"] = dilations
    groups = graph.one_of([1, 1, channels, *(2 for _ in "a" if channels % 2 == 0)])
    result = channels if groups == channels else groups * graph.one_of([1, 2, 5, 8, 16, 48])
    if result * size[0] * size[1] * shape[0] > _LARGEST:
        return None
    weights = [name, graph.normal(result, channels // groups, *attributes["kernel_shape"])]
    weights += [graph.normal(result)] if graph.whole(0, 1) else []
    return graph.emit("Conv", weights, (shape[0], result, *size), group=groups, **attributes)


def _pool(graph: Graph, name: str) -> str | None:
    shape = graph.values[name]
    if (found := _windows(graph, shape)) is None:
        return None
    return graph.emit(
        graph.one_of(["MaxPool", "AveragePool"]), [name], (*shape[:2], *found[1]), **found[0]
    )


def _transposed(graph: Graph, name: str) -> str | None:
    shape, kernel, stride = graph.values[name], graph.whole(1, 4), graph.whole(1, 3)
    channels = graph.one_of([1, 3, 8, 16])
    size = tuple((extent - 1) * stride + kernel for extent in shape[2:])
    if np.prod(size) * channels * shape[0] > _LARGEST:
        return None
    weight = graph.normal(shape[1], channels, kernel, kernel)
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
    return graph.emit("ConvTranspose", [name, weight], (shape[0], channels, *size), **attributes)


def _resize(graph: Graph, name: str) -> str | None:
    shape = graph.values[name]
    if len(shape) != 4 or np.prod(shape) * 4 > _LARGEST:
        return None
    scales = graph.constant(np.array([1, 1, 2, 2], "float32"))
    larger = (*shape[:2], 2 * shape[2], 2 * shape[3])
    rounding = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return graph.emit("Resize", [name, "", scales], larger, mode="nearest", **rounding)


Step = Callable[[Graph, str], "str | None"]
_STEPS_OF_VIEWS: list[Step] = [
    *[_unary, _binary, _repeat, _concat, _concat, _slice, _slice, _pad, _pad, _reshape, _reshape],
    *[_transpose, _split, _gather, _reduce, _softmax, _norm, _matmul, _matmul, _matmul, _resize],
]
_IMAGE_STEPS: list[Step] = [
    *[_conv, _conv, _conv, _pool, _pool, _transposed, _resize, _unary, _binary, _binary],
    *[_repeat, _concat, _slice, _pad, _pad, _split],
]
