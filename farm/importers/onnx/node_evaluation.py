"""Evaluate a node of constants, and infer the types of its outputs, by ONNX's own means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

MOST_ELEMENTS = 4096  # the size limit of a constant that is computed here
DEFAULT_DOMAINS = ("", "ai.onnx")
_RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
)
Array = np.ndarray[Any, Any]


def is_evaluable(node: onnx.NodeProto) -> bool:
    """Return whether a node's outputs follow from its inputs and attributes alone."""
    return (
        node.domain in DEFAULT_DOMAINS
        and node.op_type not in _RANDOM
        and not any(attribute.HasField("g") for attribute in node.attribute)
    )


def evaluate_node(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], opsets: Mapping[str, int]
) -> list[Array] | None:
    """Return a node's outputs from ONNX's reference evaluator; None if they are too large.

    `constants` has its inputs, `opsets` the versions by domain.
    """
    if not is_evaluable(node):
        return None
    names = [name for name in dict.fromkeys(node.input) if name]
    values = {name: numpy_helper.to_array(constants[name]) for name in names}
    inputs = [
        onnx.helper.make_tensor_value_info(name, constants[name].data_type, value.shape)
        for name, value in values.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    body = onnx.helper.make_graph([node], "one", inputs, outputs)
    model = onnx.helper.make_model(body, opset_imports=_imports(opsets))
    try:
        with np.errstate(all="ignore"):
            made = ReferenceEvaluator(model).run(None, values)
    except Exception:  # nodes that the reference evaluator does not support are left to TVM
        return None
    if not all(
        isinstance(value, np.ndarray | np.generic) and np.size(value) <= MOST_ELEMENTS
        for value in made
    ):
        return None
    return [np.asarray(value) for value in made]


def infer_node_types(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    constants: Mapping[str, onnx.TensorProto],
    opsets: Mapping[str, int],
) -> dict[str, onnx.TypeProto]:
    """Return the types of a node's outputs, as far as ONNX infers them."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        return dict(
            onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: types[name] for name in node.input if name in types},
                {name: constants[name] for name in node.input if name in constants},
                opset_imports=_imports(opsets),
            )
        )
    except Exception:  # ONNX's inference can raise; the types stay unknown
        return {}


def _imports(opsets: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    return [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
