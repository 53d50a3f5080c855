"""Draw single-operator ONNX models: the values of a case, and what its rule decides them with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from random_operators.random_values import Array, RandomInputs

_OLDEST = 7
_NEWEST = onnx.defs.onnx_opset_version()
_IR_VERSION = 10
_CONTRIBUTED = "com.microsoft"


@dataclass
class Case:
    """A model of an operator, and its inputs; `nodes` are more than one if others feed it."""

    operator: str
    seed: int
    opset: int
    domain: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    fed: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    open_axes: bool = False  # the file leaves the extents of inputs open
    unordered: int | None = None  # the axis along which the order of results is not defined
    rtol: float = 0.0  # more than usual
    steps: int = 0  # by which integers may differ, as they are rounded
    evaluated: bool = False  # by ONNX's evaluator, as ONNX Runtime is wrong
    reference: list[onnx.NodeProto] = field(default_factory=list)  # the same in another form

    @property
    def name(self) -> str:
        return f"{self.operator}:{self.seed}"

    def __str__(self) -> str:
        values = {**self.fed, **self.constants}
        nodes = "; ".join(
            f"{node.op_type}({', '.join(_told(name, values) for name in node.input)})"
            + "".join(f" {attribute.name}={_attribute(attribute)}" for attribute in node.attribute)
            for node in self.nodes
        )
        return f"opset {self.opset}{', open axes' if self.open_axes else ''}: {nodes}"


def _told(name: str, values: Mapping[str, Array]) -> str:
    if name not in values:
        return name or "-"
    value = values[name]
    said = f"{value.dtype}{list(value.shape)}"
    return said if value.size > 8 else f"{said}={value.tolist()}"


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


class Draw(RandomInputs):
    """What the rule of an operator draws its case with."""

    def __init__(self, operator: str, seed: int, domain: str = "") -> None:
        super().__init__(operator, seed)
        first, last = (13, 20) if domain else self.one_of(_versions(operator))
        opset = first if self.chance(0.5) else self.whole(first, last)
        self._schema = None if domain else onnx.defs.get_schema(operator, opset, "")
        self.case = Case(operator, seed, opset, domain)
        self.case.open_axes = self.chance(0.15)

    @property
    def opset(self) -> int:
        return self.case.opset

    def has(self, attribute: str) -> bool:
        """Whether the operator has the attribute at this opset."""
        return self._schema is None or attribute in self._schema.attributes

    def dtype(self, wanted: Sequence[str], index: int = 0) -> str:
        """Return one of these types that the operator takes as an input at this opset."""
        if self._schema is None:
            return str(self.one_of(wanted))
        allowed = {
            {"float": "float32", "double": "float64"}.get(name, name)
            for name in (text[7:-1] for text in self._schema.inputs[index].types)
        }
        return str(self.one_of([one for one in wanted if one in allowed] or ["float32"]))

    def whole_numbers(self, values: Sequence[int]) -> str:
        """Return a constant of int64, such as axes."""
        return self.constant(np.asarray(values, np.int64))

    def node(self, *inputs: str, outputs: int = 1, read: Sequence[int] = (), **more: Any) -> None:
        """Make the case's own node, with those attributes that this opset has.

        Only the outputs `read` are outputs of the model; all by default.
        """
        attributes = {name: value for name, value in more.items() if self.has(name)}
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        names = [f"y{index}" for index in range(outputs)]
        case = self.case
        case.nodes.append(
            helper.make_node(case.operator, inputs, names, domain=case.domain, **attributes)
        )
        case.outputs = [names[index] for index in read or range(outputs)]


Rule = Callable[[Draw], None]


@cache
def _versions(operator: str) -> list[tuple[int, int]]:
    """Return the opsets, first and last, of each version of an operator."""
    schemas = sorted(_history()[operator])
    ends = [since - 1 for since, _ in schemas[1:]] + [_NEWEST]
    return [
        (max(since, _OLDEST), end)
        for (since, deprecated), end in zip(schemas, ends, strict=True)
        if end >= _OLDEST and not deprecated
    ]


@cache
def _history() -> Mapping[str, list[tuple[int, bool]]]:
    """Return, by operator, in which opsets it changed, and whether it ended."""
    found = defaultdict[str, list[tuple[int, bool]]](list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name].append((schema.since_version, schema.deprecated))
    return found


def model_of(
    cases: Sequence[Case], results: Mapping[str, Array] | None = None, *, other_form: bool = False
) -> onnx.ModelProto:
    """Return one model of several cases of an opset; their names begin with `pI_`.

    `results` are arrays by the names of outputs, for the types that the file declares.
    `other_form` takes the reference's nodes.
    """
    nodes, inputs, tensors, outputs = [], [], [], []
    for place, case in enumerate(cases):
        own = f"p{place}_"
        for given in case.reference if other_form and case.reference else case.nodes:
            node = onnx.NodeProto()
            node.CopyFrom(given)
            node.input[:] = [name and own + name for name in given.input]
            node.output[:] = [name and own + name for name in given.output]
            node.name = f"{own}{given.op_type}{len(nodes)}"
            nodes.append(node)
        inputs += [
            helper.make_tensor_value_info(
                own + name,
                helper.np_dtype_to_tensor_dtype(value.dtype),
                [f"{own}{name}_{axis}" for axis in range(value.ndim)]
                if case.open_axes and not other_form
                else value.shape,
            )
            for name, value in case.fed.items()
        ]
        tensors += [
            numpy_helper.from_array(value, own + name) for name, value in case.constants.items()
        ]
        outputs += [_output(own + name, (results or {}).get(own + name)) for name in case.outputs]
    body = helper.make_graph(nodes, "operators", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", cases[0].opset)]
    if any(case.domain for case in cases):
        opsets.append(helper.make_opsetid(_CONTRIBUTED, 1))
    return helper.make_model(body, opset_imports=opsets, ir_version=_IR_VERSION)


def _output(name: str, value: Array | None) -> onnx.ValueInfoProto:
    if value is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
    )
