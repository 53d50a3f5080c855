"""Unroll WHILE of TFLite files, such as the loop over the steps of a recurrent layer of Keras.

A loop is replaced by copies of its body if constants determine how often it runs: if its condition
compares counters that begin with constants, and that the body changes by constants. Constants that
the copies compute, as these counters, are found by `TfliteFile.settle` as in any other model.
"""

from __future__ import annotations

import copy
import operator as functions
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WHILE = "WHILE"
MOST_OPERATORS = 5_000  # in the copies of all bodies

Array = np.ndarray[Any, Any]
# Of the object types of the schema, which LiteRT's package has generated and mypy does not know
Graph = Any
Node = Any

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ADD": functions.add,
    "EQUAL": functions.eq,
    "GREATER": functions.gt,
    "GREATER_EQUAL": functions.ge,
    "LESS": functions.lt,
    "LESS_EQUAL": functions.le,
    "LOGICAL_AND": np.logical_and,
    "LOGICAL_NOT": np.logical_not,
    "LOGICAL_OR": np.logical_or,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
    "MUL": functions.mul,
    "NOT_EQUAL": functions.ne,
    "SUB": functions.sub,
}
_TYPES = {"BOOL": np.dtype(bool), "INT32": np.dtype("int32"), "INT64": np.dtype("int64")}


class TooManyOperatorsError(Exception):
    """The copies of all bodies have more than MOST_OPERATORS operators."""


def unroll_loops(content: bytes) -> bytes:
    """Return a file in which the loops are unrolled that can be; `content` itself if there is none.

    Raises TooManyOperatorsError.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    if not _Unrolling(schema, model).unroll():
        return content
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@dataclass(frozen=True, slots=True)
class _Loop:
    """A WHILE operator: what it reads and writes in the main graph, and its own two graphs."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    condition: Graph
    body: Graph
    name: bytes


class _Unrolling:
    """Replaces the loops of the first graph of a model."""

    def __init__(self, schema: Any, model: Any) -> None:
        self.model, self.main = model, model.subgraphs[0]
        self._names = {value: name for name, value in vars(schema.BuiltinOperator).items()}
        self._types = {getattr(schema.TensorType, name): kind for name, kind in _TYPES.items()}
        # Numbers of tensors of the main graph that constants determine
        self._known = self._constants(self.main)
        self._copied = 0

    def unroll(self) -> bool:
        """Replace the loops, those in their bodies too; return whether there was one."""
        waiting, done, replaced = list(self.main.operators)[::-1], [], dict[int, int]()

        def now(index: int) -> int:
            while index in replaced:
                index = replaced[index]
            return index

        while waiting:
            node = waiting.pop()
            node.inputs = [now(index) for index in _indices(node.inputs)]
            loop = self._loop(node)
            unrolled = None if loop is None else self._unrolled(loop)
            if loop is not None and unrolled is not None:
                nodes, results = unrolled
                waiting += nodes[::-1]
                replaced |= dict(zip(loop.outputs, results, strict=True))
            else:
                self._compute(node, self._known)
                done.append(node)
        self.main.operators = done
        self.main.outputs = [now(index) for index in _indices(self.main.outputs)]
        for signature in self.model.signatureDefs or []:
            for output in signature.outputs or []:
                output.tensorIndex = now(output.tensorIndex)
        return bool(replaced)

    def _loop(self, node: Node) -> _Loop | None:
        if self._name(node) != WHILE:
            return None
        graphs, options = self.model.subgraphs, node.builtinOptions
        outputs = tuple(_indices(node.outputs))
        return _Loop(
            tuple(_indices(node.inputs)),
            outputs,
            graphs[options.condSubgraphIndex],
            graphs[options.bodySubgraphIndex],
            self.main.tensors[outputs[0]].name or b"while",
        )

    def _unrolled(self, loop: _Loop) -> tuple[list[Node], list[int]] | None:
        """Return the copies of the body and the tensors that hold the results.

        Returns None if the number of runs is not known.
        """
        if any(tensor.isVariable for tensor in loop.body.tensors):
            return None
        nodes: list[Node] = []
        current, shared = list(loop.inputs), dict[int, int]()
        runs = 0
        while (again := self._condition(loop, current)) is not False:
            if again is None:
                return None
            made, current = self._copy(loop, current, shared, runs)
            nodes += made
            runs += 1
        return nodes, current

    def _condition(self, loop: _Loop, current: Sequence[int]) -> bool | None:
        """Return whether the body runs again; None if constants do not tell."""
        known = self._constants(loop.condition)
        for own, index in zip(_indices(loop.condition.inputs), current, strict=True):
            if index in self._known:
                known[own] = self._known[index]
        for node in loop.condition.operators:
            self._compute(node, known)
        [result] = _indices(loop.condition.outputs)
        return bool(known[result].all()) if result in known else None

    def _copy(
        self, loop: _Loop, current: Sequence[int], shared: dict[int, int], run: int
    ) -> tuple[list[Node], list[int]]:
        """Add the tensors of a run to the main graph; return its operators and its results.

        `shared` holds the copies of the body's constants, which all runs read.
        """
        self._copied += max(1, len(loop.body.operators))  # a body may be empty, and run for ever
        if self._copied > MOST_OPERATORS:
            raise TooManyOperatorsError
        places = dict(zip(_indices(loop.body.inputs), current, strict=True))
        computed = {index for node in loop.body.operators for index in _indices(node.outputs)}

        def place(index: int) -> int:
            if index < 0 or index in places:
                return places.get(index, index)
            if index in computed:
                places[index] = self._add(loop, index, f"run {run}")
                return places[index]
            if index not in shared:
                shared[index] = self._add(loop, index, "constant")
            return shared[index]

        nodes = []
        for node in loop.body.operators:
            made = copy.copy(node)
            made.inputs = [place(index) for index in _indices(node.inputs)]
            made.outputs = [place(index) for index in _indices(node.outputs)]
            self._compute(made, self._known)
            nodes.append(made)
        return nodes, [place(index) for index in _indices(loop.body.outputs)]

    def _add(self, loop: _Loop, index: int, kind: str) -> int:
        """Add a copy of a body's tensor to the main graph, with a name of its own."""
        tensor, number = copy.copy(loop.body.tensors[index]), len(self.main.tensors)
        own = (tensor.name or b"").decode(errors="replace")
        tensor.name = f"{loop.name.decode(errors='replace')}/{kind}/{own}/{number}".encode()
        self.main.tensors.append(tensor)
        value = self._constant(tensor)
        if value is not None:
            self._known[number] = value
        return number

    def _compute(self, node: Node, known: dict[int, Array]) -> None:
        """Note the result of a function of known numbers."""
        function = _FUNCTIONS.get(self._name(node))
        inputs = _indices(node.inputs)
        if function is not None and all(index in known for index in inputs):
            [output] = _indices(node.outputs)
            known[output] = np.asarray(function(*(known[index] for index in inputs)))

    def _constants(self, graph: Graph) -> dict[int, Array]:
        values = ((index, self._constant(tensor)) for index, tensor in enumerate(graph.tensors))
        return {index: value for index, value in values if value is not None}

    def _constant(self, tensor: Any) -> Array | None:
        """Return the value of a tensor if it is one constant whole number or truth value."""
        kind, data = self._types.get(tensor.type), self.model.buffers[tensor.buffer].data
        shape = _indices(tensor.shape)
        if kind is None or data is None or any(extent != 1 for extent in shape):
            return None
        raw = np.asarray(data, np.uint8).tobytes()
        return np.frombuffer(raw, kind).reshape(shape) if len(raw) == kind.itemsize else None

    def _name(self, node: Node) -> str:
        code = self.model.operatorCodes[node.opcodeIndex]
        return str(self._names.get(max(code.builtinCode, code.deprecatedBuiltinCode), ""))


def _indices(found: Any) -> list[int]:
    """Return numbers of a file, which the schema's types hold as an array, a list, or None."""
    return [] if found is None else [int(one) for one in found]
