"""Simplify an ONNX graph: fold shapes and constants, inline functions, unroll loops.

Exporters write shape arithmetic as operators, and functions as their bodies; TVM's importer
understands only some of it. Inputs have fixed shapes here, except for an open batch, so nearly all
of that is constant. Large constants are not folded: they are weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import numpy_helper

from farm.importers.onnx.contributed_types import infer_contributed_types
from farm.importers.onnx.inferred_types import is_fixed, known_extents, known_types
from farm.importers.onnx.node_evaluation import (
    DEFAULT_DOMAINS,
    MOST_ELEMENTS,
    evaluate_node,
    infer_node_types,
    is_evaluable,
)
from farm.importers.onnx.node_reading import all_nodes, names_read, node_attribute
from farm.importers.onnx.rewrites.known_sequences import KnownSequences
from farm.importers.onnx.rewrites.unroll import (
    MOST_NODES,
    ResultStackingNodes,
    copy_body,
    make_named_tensor,
)
from farm.types import TensorSpec

BATCH = "batch"  # the symbol of an open batch
_UNROLLED = ("Loop", "Scan")  # where the number of runs is known
_MISCONVERTED = ("RMSNormalization",)  # TVM's converters of these fail
# TVM's converters of these return made-up values for the outputs after the first.
_FIRST_OUTPUT_ONLY = ("LayerNormalization",)
Array = np.ndarray[Any, Any]


def simplify_graph(
    model: onnx.ModelProto,
    inputs: Sequence[TensorSpec],
    has_converter: Callable[[onnx.NodeProto], bool],
) -> onnx.ModelProto:
    """Return the model with its inputs' shapes, functions inlined and constants computed.

    Only functions that have no converter are inlined.
    """
    fixed = _with_shapes(model, inputs)
    _state_one_sided_transforms(fixed.graph)
    fixed = _inline_function_ops(fixed, has_converter)
    return _Folder(fixed).run()


def _with_shapes(model: onnx.ModelProto, inputs: Sequence[TensorSpec]) -> onnx.ModelProto:
    """Return a copy of the model with the shapes of `inputs`."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    shapes = {spec.name: [BATCH, *spec.shape[1:]] if spec.open else spec.shape for spec in inputs}
    for value in result.graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    return result


def _state_one_sided_transforms(graph: onnx.GraphProto) -> None:
    """Write the default of STFT's `onesided`, 1: the shape inference of ONNX takes it for 0."""
    for node in all_nodes(graph):
        if node.op_type == "STFT" and node_attribute(node, "onesided") is None:
            node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _inline_function_ops(
    model: onnx.ModelProto, has_converter: Callable[[onnx.NodeProto], bool]
) -> onnx.ModelProto:
    """Inline ONNX's function operators that have no converter.

    An operator is inlined only if its body adds no operator without a converter.
    """
    version = next(
        (opset.version for opset in model.opset_import if opset.domain in DEFAULT_DOMAINS), 1
    )

    def lacking(one: onnx.ModelProto) -> set[str]:
        return {
            node.op_type
            for node in one.graph.node
            if node.domain in DEFAULT_DOMAINS
            and node.op_type not in _UNROLLED
            and not _converts(node, has_converter)
        }

    for name in sorted(lacking(model)):
        if _is_function(name, version):
            try:
                opened = onnx.inliner.inline_selected_functions(
                    _typed(_with_default_attributes(model, name, version)),
                    [("", name)],
                    exclude=False,
                    inline_schema_functions=True,
                )
            except RuntimeError:  # ONNX cannot resolve optional inputs of some functions
                continue
            if lacking(opened) <= lacking(model) - {name}:
                model = opened
    return model


def _with_default_attributes(model: onnx.ModelProto, name: str, version: int) -> onnx.ModelProto:
    """Return the model with all attributes of an operator; the inliner knows no defaults."""
    defaults = {
        key: attribute.default_value
        for key, attribute in onnx.defs.get_schema(name, version, "").attributes.items()
        if attribute.default_value.type
    }
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for node in result.graph.node:
        if node.op_type == name and node.domain in DEFAULT_DOMAINS:
            stated = {attribute.name for attribute in node.attribute}
            node.attribute.extend(value for key, value in defaults.items() if key not in stated)
    return result


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a type for each weight and result, which function bodies depend on."""
    try:
        result = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # ONNX's shape inference can raise on valid models
        result = model
    listed = {value.name for value in (*result.graph.input, *result.graph.value_info)}
    for tensor in result.graph.initializer:
        if tensor.name not in listed:
            result.graph.value_info.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return result


def _converts(node: onnx.NodeProto, has_converter: Callable[[onnx.NodeProto], bool]) -> bool:
    """Return whether a node has a correct converter."""
    if node.op_type in _MISCONVERTED or (
        node.op_type in _FIRST_OUTPUT_ONLY and any(node.output[1:])
    ):
        return False
    return has_converter(node)


def _is_function(name: str, version: int) -> bool:
    """Return whether ONNX defines an operator by a function body."""
    try:
        schema = onnx.defs.get_schema(name, version, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _declared_ones(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Return the shape of a number of a loop: as its body declares it, a scalar or of one element.

    ONNX wants a scalar. torch declares the shape (1,), and ONNX Runtime gives what is declared.
    """
    return (1,) * len(value.type.tensor_type.shape.dim)


class _Folder:
    """One pass over the nodes that computes constants.

    ONNX's shape inference does not evaluate the bounds of slices. Shapes that are unknown after it
    are inferred again during the pass, with the constants that are known by then.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._opsets = {opset.domain: opset.version for opset in model.opset_import}
        self._types = known_types(model)
        # Shapes that Shape nodes return, by the names of their results.
        self._shapes: dict[str, Sequence[int | None]] = {}
        self._values = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            if _count(tensor.dims) <= MOST_ELEMENTS
        }
        self._added: dict[str, onnx.TensorProto] = {}
        self._contributed: dict[str, onnx.TypeProto] = {}
        self._sequences = KnownSequences()
        self._loops = 0

    def run(self) -> onnx.ModelProto:
        """Return the model with constant nodes replaced by initializers."""
        graph = self._model.graph
        outputs = {value.name for value in graph.output}
        kept = self._nodes(graph.node, outputs)
        used = {name for node in kept for name in names_read(node)} | outputs
        del graph.node[:]
        graph.node.extend(kept)
        graph.initializer.extend(tensor for name, tensor in self._added.items() if name in used)
        self._state_contributed_types(graph)
        return self._model

    def _state_contributed_types(self, graph: onnx.GraphProto) -> None:
        """Write the types into a graph that ONNX's inference needs beyond such a node."""
        others = [value for value in graph.value_info if value.name not in self._contributed]
        del graph.value_info[:]
        graph.value_info.extend(others)
        stated = {value.name for value in graph.output}
        graph.value_info.extend(
            onnx.ValueInfoProto(name=name, type=type_)
            for name, type_ in self._contributed.items()
            if name not in stated
        )

    def _nodes(self, nodes: Sequence[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
        """Return the nodes that remain after folding."""
        kept: list[onnx.NodeProto] = []
        for given in nodes:
            node = given
            if given.domain in DEFAULT_DOMAINS:
                node = self._sequences.resolved(given, self._number)
            if node.op_type == "If" and (branch := self._branch(node)) is not None:
                kept.extend(self._nodes(_spliced(branch, node), outputs))
            elif node.op_type in _UNROLLED and (copies := self._unrolled(node)) is not None:
                kept.extend(copies)
            elif (values := self._computed(node)) is not None:
                for name, value in zip(node.output, values, strict=False):
                    place = f"{name}/constant" if name in outputs else name
                    self._values[name] = self._added[place] = numpy_helper.from_array(value, place)
                    self._types[name] = onnx.helper.make_tensor_type_proto(
                        self._values[name].data_type, value.shape
                    )
                    if name in outputs:
                        kept.append(onnx.helper.make_node("Identity", [place], [name]))
            else:
                if node.op_type == "If":
                    for attribute in node.attribute:
                        self._fold_branch(attribute.g)
                self._infer(node)
                kept.append(node)
        return kept

    def _fold_branch(self, branch: onnx.GraphProto) -> None:
        """Fold the constants of a branch that may be taken; its names are known only within it."""
        outer = self._values, self._types, self._shapes, self._added
        contributed, self._contributed = self._contributed, {}
        own = {
            tensor.name: tensor
            for tensor in branch.initializer
            if _count(tensor.dims) <= MOST_ELEMENTS
        }
        stated = {
            tensor.name: onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            for tensor in branch.initializer
        }
        self._values, self._types, self._shapes, self._added = (
            {**self._values, **own},
            {**self._types, **stated},
            dict(self._shapes),
            {},
        )
        outputs = {value.name for value in branch.output}
        kept = self._nodes(branch.node, outputs)
        used = {name for node in kept for name in names_read(node)} | outputs
        del branch.node[:]
        branch.node.extend(kept)
        branch.initializer.extend(tensor for name, tensor in self._added.items() if name in used)
        self._state_contributed_types(branch)
        self._values, self._types, self._shapes, self._added = outer
        self._contributed = contributed

    def _unrolled(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return the nodes of a loop whose number of runs is known; None if it is not.

        The last of them compute the loop's results.
        """
        self._loops += 1
        prefix = f"{node.name or node.op_type}/{self._loops}/"
        if node.op_type == "Loop":
            return self._unrolled_loop(node, prefix)
        return self._unrolled_scan(node, prefix) if self._opsets.get("", 1) >= 9 else None

    def _unrolled_loop(self, node: onnx.NodeProto, prefix: str) -> list[onnx.NodeProto] | None:
        body = node_attribute(node, "body")
        limit, going = (
            (self._number(name) if name else default)
            for name, default in zip((*node.input, "", "")[:2], (MOST_NODES, 1), strict=True)
        )
        if limit is None or going is None:
            return None
        states, run = list(node.input[2:]), 0
        kept: list[onnx.NodeProto] = []
        collected: list[list[str]] = [[] for _ in node.output[len(states) :]]
        while going and run < limit:
            if len(kept) > MOST_NODES:
                return None
            fixed = f"{prefix}{run}/number", f"{prefix}{run}/going"
            for name, value, input_ in zip(
                fixed, (np.int64(run), np.bool_(True)), body.input, strict=False
            ):
                self._add(make_named_tensor(np.reshape(value, _declared_ones(input_)), name))
            results = self._copy(kept, body, [*fixed, *states], f"{prefix}{run}/")
            going = self._number(results[0])
            if going is None:
                return None
            states = results[1 : 1 + len(states)]
            for parts, result in zip(collected, results[1 + len(states) :], strict=True):
                parts.append(result)
            run += 1
        if collected and not run:
            return None  # a tensor without elements, whose shape is not known
        return self._ends(node, prefix, kept, states, collected, [0] * len(collected))

    def _unrolled_scan(self, node: onnx.NodeProto, prefix: str) -> list[onnx.NodeProto] | None:
        body, count = (
            node_attribute(node, "body"),
            node_attribute(node, "num_scan_inputs"),
        )
        states, scanned = list(node.input[:-count]), list(node.input[-count:])
        outputs = len(node.output) - len(states)
        axes, reversed_in = (
            node_attribute(node, name, [0] * count)
            for name in ("scan_input_axes", "scan_input_directions")
        )
        axes_out, reversed_out = (
            node_attribute(node, name, [0] * outputs)
            for name in ("scan_output_axes", "scan_output_directions")
        )
        extents = known_extents(self._types.get(scanned[0]))
        runs = None if extents is None else extents[axes[0]]
        if not runs or runs * len(body.node) > MOST_NODES:
            return None
        kept: list[onnx.NodeProto] = []
        collected: list[list[str]] = [[] for _ in range(outputs)]
        for run in range(runs):
            taken = []
            for at, (name, axis, back) in enumerate(zip(scanned, axes, reversed_in, strict=True)):
                part = f"{prefix}{run}/scanned{at}"
                place = runs - 1 - run if back else run
                self._add(make_named_tensor(np.int64(place), f"{part}/place"))
                gather = onnx.helper.make_node("Gather", [name, f"{part}/place"], [part], axis=axis)
                kept.extend(self._nodes([gather], set()))
                taken.append(part)
            results = self._copy(kept, body, [*states, *taken], f"{prefix}{run}/")
            states = results[: len(states)]
            for parts, result in zip(collected, results[len(states) :], strict=True):
                parts.append(result)
        for parts, back in zip(collected, reversed_out, strict=True):
            if back:
                parts.reverse()
        return self._ends(node, prefix, kept, states, collected, axes_out)

    def _copy(
        self, kept: list[onnx.NodeProto], body: onnx.GraphProto, inputs: list[str], prefix: str
    ) -> list[str]:
        """Add the nodes of a copy of a body to `kept`, and return the names of its results."""
        copy = copy_body(body, inputs, prefix)
        for tensor in copy.initializers:
            self._add(tensor)
        kept.extend(self._nodes(copy.nodes, set()))
        return copy.results

    def _ends(
        self,
        node: onnx.NodeProto,
        prefix: str,
        kept: list[onnx.NodeProto],
        states: list[str],
        collected: list[list[str]],
        axes: Sequence[int],
    ) -> list[onnx.NodeProto]:
        """Return the nodes of a loop with those that give its results their names."""
        stack = ResultStackingNodes(prefix, self._opsets.get("", 1))
        ends = [
            onnx.helper.make_node("Identity", [state], [name])
            for state, name in zip(states, node.output, strict=False)
            if name
        ]
        for parts, axis, name in zip(collected, axes, node.output[len(states) :], strict=True):
            if name:
                stack.add(parts, axis, name)
        for tensor in stack.initializers:
            self._add(tensor)
        outputs = {value.name for value in self._model.graph.output}
        return [*kept, *self._nodes([*ends, *stack.nodes], outputs)]

    def _add(self, tensor: onnx.TensorProto) -> None:
        """Add a constant of the graph."""
        self._added[tensor.name] = tensor
        self._types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        if _count(tensor.dims) <= MOST_ELEMENTS:
            self._values[tensor.name] = tensor

    def _number(self, name: str) -> int | None:
        """Return the value of a constant with one element; None for another tensor."""
        value = self._values.get(name)
        return None if value is None else int(numpy_helper.to_array(value).reshape(-1)[0])

    def _infer(self, node: onnx.NodeProto) -> None:
        """Infer the types of a node's outputs if their shapes are unknown."""
        if all(is_fixed(self._types.get(name)) for name in node.output if name):
            return
        found = infer_contributed_types(node, self._types)
        self._contributed |= found
        if not found and node.domain in DEFAULT_DOMAINS:
            found = infer_node_types(node, self._types, self._values, self._opsets)
        self._types.update(found)

    def _branch(self, node: onnx.NodeProto) -> onnx.GraphProto | None:
        """Return the branch that a constant condition selects; None if it is not constant."""
        if (condition := self._values.get(node.input[0])) is None:
            return None
        chosen = (
            "then_branch"
            if bool(numpy_helper.to_array(condition).reshape(-1)[0])
            else "else_branch"
        )
        branch = next(attribute.g for attribute in node.attribute if attribute.name == chosen)
        for tensor in branch.initializer:
            self._add(tensor)
        return branch

    def _computed(self, node: onnx.NodeProto) -> list[Array] | None:
        """Return the constant outputs of a node; None if they are not known."""
        if not is_evaluable(node):
            return None
        if node.op_type in ("Shape", "Size"):
            return self._shape(node)
        if node.op_type == "Gather" and node.input[0] in self._shapes:
            return self._gathered(node)
        inputs = [self._values.get(name) for name in node.input if name]
        if any(value is None for value in inputs) or (
            not node.input and node.op_type != "Constant"
        ):
            return None
        constants = {name: self._values[name] for name in node.input if name}
        return evaluate_node(node, constants, self._opsets)

    def _shape(self, node: onnx.NodeProto) -> list[Array] | None:
        """Return the output of a Shape or Size node; None if the extents are not known."""
        extents = known_extents(self._types.get(node.input[0]))
        if extents is None:
            return None
        if node.op_type == "Size":
            known = [extent for extent in extents if extent is not None]
            return [np.array(_count(known), np.int64)] if len(known) == len(extents) else None
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        found = extents[bounds.get("start", 0) : bounds.get("end")]
        self._shapes[node.output[0]] = found
        return None if None in found else [np.array(found, np.int64)]

    def _gathered(self, node: onnx.NodeProto) -> list[Array] | None:
        """Return the gathered extents of a shape if they are known, even if its batch is open."""
        if (places := self._values.get(node.input[1])) is None:
            return None
        found = self._shapes[node.input[0]]
        where = numpy_helper.to_array(places)
        if any(
            not -len(found) <= place < len(found) or found[place] is None for place in where.flat
        ):
            return None
        return [np.array([found[place] for place in where.flat], np.int64).reshape(where.shape)]


def _spliced(branch: onnx.GraphProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes of a branch, and Identity nodes that rename its results."""
    ends = [
        onnx.helper.make_node("Identity", [inner.name], [outer])
        for inner, outer in zip(branch.output, node.output, strict=True)
        if outer
    ]
    return [*branch.node, *ends]


def _count(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return int(np.prod(list(shape), dtype=np.int64))
