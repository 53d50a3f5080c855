"""Replace Fourier transforms by convolutions and products where ONNX Runtime's are inexact.

ONNX Runtime 1.31 computes STFT and DFT of a number of points that is no power of two by Bluestein's
method in float32. The error is 2e-5 of the result, a hundred times that of a product with a matrix,
and logarithms of it differ in the third digit. A reference must be more exact than what it judges.

The matrices are made here, and not by farm.importers.fourier: a reference shares no code with what
it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from farm.importers.onnx.inferred_types import known_extents, known_types
from farm.importers.onnx.node_evaluation import DEFAULT_DOMAINS
from farm.importers.onnx.node_reading import (
    all_graphs,
    all_nodes,
    node_attribute,
    optional_input,
    subgraphs,
)

_PREFIX = "farm_exact"


def with_exact_transforms(
    written: onnx.ModelProto, simplified: onnx.ModelProto
) -> onnx.ModelProto | None:
    """Return a copy of a model whose inexact transforms are replaced; None if it has none.

    `simplified` is the same model with its shapes and constants known. A transform of which they
    are not known there stays as it is.
    """
    known = _Transforms(simplified)
    if not known.found:
        return None
    result = onnx.ModelProto()
    result.CopyFrom(written)
    _replace(result.graph, result.graph, known.found)
    return result


class _Replacement:
    """Nodes that compute a transform, and their constants."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self._node = node
        self._prefix = f"{_PREFIX}/{node.output[0]}"
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: np.ndarray) -> str:
        name = f"{self._prefix}/constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def add(self, operator: str, *inputs: str, last: bool = False, **attributes: object) -> str:
        name = self._node.output[0] if last else f"{self._prefix}/{len(self.nodes)}"
        made = onnx.helper.make_node(operator, list(inputs), [name], **attributes)
        if last:
            made.name = self._node.name
        self.nodes.append(made)
        return name


class _Transforms:
    """The inexact transforms of a simplified model: replacements by the name of the result."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.found: dict[str, _Replacement] = {}
        nodes = [
            node
            for node in all_nodes(model.graph)
            if node.op_type in _RULES and node.domain in DEFAULT_DOMAINS
        ]
        if not nodes:
            return
        self._types = known_types(model)
        self._values = {
            tensor.name: numpy_helper.to_array(tensor)
            for graph in all_graphs(model.graph)
            for tensor in graph.initializer
            if any(tensor.name in node.input for node in nodes)
        }
        self._opset = next(
            (one.version for one in model.opset_import if one.domain in DEFAULT_DOMAINS), 1
        )
        for node in nodes:
            if (made := _RULES[node.op_type](self, node)) is not None:
                self.found[node.output[0]] = made

    def constant(self, node: onnx.NodeProto, index: int) -> np.ndarray | None:
        """Return the value of a constant input; None for another or none."""
        return self._values.get(optional_input(node, index))

    def extents(self, node: onnx.NodeProto) -> list[int | None] | None:
        """Return the extents of a node's first input; None if its rank is not known."""
        return known_extents(self._types.get(node.input[0]))

    def dtype(self, node: onnx.NodeProto) -> np.dtype | None:
        """Return the type of a node's first input; None if it is not known."""
        given = self._types.get(node.input[0])
        element = given.tensor_type.elem_type if given is not None else 0
        return onnx.helper.tensor_dtype_to_np_dtype(element) if element else None

    def stft(self, node: onnx.NodeProto) -> _Replacement | None:
        """Return a convolution with the cosines and sines under the window, by the step."""
        step, window, length = (self.constant(node, index) for index in (1, 2, 3))
        if step is None or (optional_input(node, 2) and window is None):
            return None
        dtype = self.dtype(node) if window is None else window.dtype
        if window is not None:
            count = window.size
        elif length is not None:
            count = int(length.item())
        else:
            return None
        extents = self.extents(node)
        if dtype != np.float32 or (extents and extents[2:] == [2]) or _is_exact(count):
            return None
        bins = count // 2 + 1 if node_attribute(node, "onesided", 1) else count
        angles = 2 * np.pi * (np.outer(np.arange(bins), np.arange(count)) % count) / count
        weights = np.concatenate([np.cos(angles), -np.sin(angles)])
        if window is not None:
            weights = weights * window.astype(np.float64)
        made = _Replacement(node)
        rows = made.add("Reshape", node.input[0], made.constant(np.array([0, 1, -1])))
        filters = made.constant(weights.astype(np.float32)[:, None])
        sums = made.add("Conv", rows, filters, strides=[int(step)], kernel_shape=[count])
        parts = made.add("Reshape", sums, made.constant(np.array([0, 2, bins, -1])))
        made.add("Transpose", parts, perm=[0, 3, 2, 1], last=True)
        return made

    def dft(self, node: onnx.NodeProto) -> _Replacement | None:
        """Return a product with the cosines and sines."""
        extents = self.extents(node)
        inverse, one_sided = (node_attribute(node, name, 0) for name in ("inverse", "onesided"))
        if self._opset >= 20:
            stated = self.constant(node, 2)
            if optional_input(node, 2) and stated is None:
                return None
            axis = -2 if stated is None else int(stated)
        else:
            axis = node_attribute(node, "axis", 1)
        if extents is None or self.dtype(node) != np.float32:
            return None
        rank = len(extents)
        axis %= rank
        given, parts = extents[axis], extents[-1]
        if given is None or parts is None:
            return None
        count = 2 * (given - 1) if inverse and one_sided else given
        if optional_input(node, 1):
            stated = self.constant(node, 1)
            if stated is None:
                return None
            count = int(stated)
        if _is_exact(count):
            return None
        matrix = _dft_matrix(given, parts, count, inverse=bool(inverse), one_sided=bool(one_sided))
        order = [*(other for other in range(rank - 1) if other != axis), axis, rank - 1]
        made = _Replacement(node)
        turned = made.add("Transpose", node.input[0], perm=order)
        lines = [0] * (rank - 2)
        rows = made.add("Reshape", turned, made.constant(np.array([*lines, given * parts])))
        product = made.add("MatMul", rows, made.constant(matrix.reshape(given * parts, -1)))
        split = made.constant(np.array([*lines, *matrix.shape[2:]]))
        made.add(
            "Transpose",
            made.add("Reshape", product, split),
            perm=[order.index(other) for other in range(rank)],
            last=True,
        )
        return made


def _dft_matrix(
    given: int, parts: int, count: int, *, inverse: bool, one_sided: bool
) -> np.ndarray:
    """Return the matrix [given, parts, bins, parts of the result] of a transform, in float32."""
    half = count // 2 + 1
    present = np.arange(min(given, half if inverse and one_sided else count))
    bins = half if one_sided and not inverse else count
    angles = 2 * np.pi * (np.outer(present, np.arange(bins)) % count) / count
    roots = np.exp(1j * (angles if inverse else -angles)) / (count if inverse else 1)
    if inverse and one_sided:
        roots *= np.where((present > 0) & (2 * present != count), 2, 1)[:, None]
    of_real = np.stack([roots.real, roots.imag], -1)
    of_imaginary = np.stack([-roots.imag, roots.real], -1)
    matrix = np.stack([of_real, of_imaginary][:parts], 1)
    if inverse and one_sided:
        matrix = matrix[..., :1]
    result = np.zeros((given, *matrix.shape[1:]), np.float32)
    result[: len(present)] = matrix
    return result


def _is_exact(count: int) -> bool:
    """Return whether ONNX Runtime's transform of so many points is exact: for powers of two."""
    return count < 1 or not count & (count - 1)


_RULES: Mapping[str, Callable[[_Transforms, onnx.NodeProto], _Replacement | None]] = {
    "STFT": _Transforms.stft,
    "DFT": _Transforms.dft,
}


def _replace(
    graph: onnx.GraphProto, root: onnx.GraphProto, found: Mapping[str, _Replacement]
) -> None:
    """Replace the nodes of a graph and of the graphs within it; constants go to the root."""
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        for inner in subgraphs(node):
            _replace(inner, root, found)
        made = found.get(node.output[0]) if node.op_type in _RULES and node.output else None
        if made is None:
            kept.append(node)
        else:
            kept.extend(made.nodes)
            root.initializer.extend(made.constants)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
