"""Import ONNX files. The reference is ONNX Runtime on this machine's CPU."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime

from farm.errors import ModelError
from farm.importers import farm_kernels, layer_names
from farm.importers.imported_model import (
    ImportedModel,
    Reference,
    example_inputs,
    fix_input_shapes,
)
from farm.importers.model_file_check import check_file, refuse_dtype_overrides
from farm.importers.onnx.bounded_shapes.rewrite import bound_shapes, has_data_dependent_shapes
from farm.importers.onnx.converters import install_converters
from farm.importers.onnx.input_shapes import inputs_without_initializers
from farm.importers.onnx.inputs import DividedInputs, divide_inputs
from farm.importers.onnx.operator_support import check_operators, has_converter
from farm.importers.onnx.reference.exact_products import with_exact_products
from farm.importers.onnx.reference.exact_transforms import with_exact_transforms
from farm.importers.onnx.reference.layer_outputs import onnx_layer_outputs
from farm.importers.onnx.reference.runtime import create_session
from farm.importers.onnx.reference.stable_example import stable_example
from farm.importers.onnx.rewrites.few_bit_products import rewrite_few_bit_products
from farm.importers.onnx.rewrites.fold_narrow_weights import fold_narrow_weights
from farm.importers.onnx.rewrites.inputs_to_initializers import turn_inputs_into_initializers
from farm.importers.onnx.rewrites.masked_fill import masked_fills_to_where
from farm.importers.onnx.rewrites.qlinear_to_qdq import qlinear_to_qdq
from farm.importers.onnx.rewrites.simplify import simplify_graph
from farm.importers.onnx.rewrites.sort_nodes import sort_nodes
from farm.importers.onnx.rewrites.unfuse import unfuse_operators
from farm.importers.relax_postprocessing import (
    detach_weights,
    one_line_error,
    output_specs,
    suppress_output_warnings_and_logs,
)
from farm.importers.size_limits import check_tensor_fits_memory
from farm.types import Model, TensorSpec

_MOST_SERIALIZED = (1 << 31) - 1  # bytes, of protobuf
# Matches the C++ function that ONNX Runtime writes before its message.
_SIGNATURE = re.compile(r"/onnxruntime_src/\S+ [^()]*\([^()]*\) ")


def load(source: Model) -> ImportedModel:
    """Import the ONNX file `source.source`, with `source.shapes` for its open axes.

    Inputs in `source.values` are constants.

    An open batch may stay open. Raises ModelError for a file that is missing, damaged or invalid,
    for operators that TVM or ONNX Runtime does not support, and for open shapes.
    """
    return load_with_session_factory(source, partial(_session, Path(source.source).name))


def load_with_session_factory(
    source: Model, session_of: Callable[[Path | bytes], Any]
) -> ImportedModel:
    """Import an ONNX file like `load`, with the function that makes the reference's session.

    It takes the file, or the content of a model that ONNX Runtime computes more exactly. A caller
    that replaces the reference needs no session.
    """
    path = Path(source.source)
    what = path.name
    opened = open_and_simplify(source)
    model, inputs, known = opened.simplified, opened.inputs.fed, opened.inputs.constants
    outputs = [value.name for value in model.graph.output]
    bounds: Mapping[str, tuple[int, ...]] = {}
    data_dependent = has_data_dependent_shapes(model)
    judged = _reference_model(path, opened.written, model)
    try:
        check_operators(model, what)
        if data_dependent:
            bounded = bound_shapes(model, what)
            model, bounds = bounded.model, bounded.output_bounds
        session = session_of(judged)
        module, weights = detach_weights(_to_relax(model, inputs, what), len(inputs))
        specs = output_specs(module, outputs, bounds)
    except ModelError as error:
        if not any(spec.open for spec in inputs):
            raise
        return replace(
            load_with_session_factory(fix_input_shapes(source, inputs), session_of),
            fixed=f"{error.what}: {error.why}",
        )
    reference = _reference(session, outputs, known, what)
    return ImportedModel(
        module=module,
        weights=weights,
        inputs=inputs,
        outputs=specs,
        engine=f"onnxruntime {onnxruntime.__version__}",
        example=stable_example(inputs, reference) if data_dependent else example_inputs(inputs),
        reference=reference,
        layers=lambda values: onnx_layer_outputs(_loaded(judged), {**values, **known}),
        data_dependent=data_dependent,
    )


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model as in the file and simplified for TVM, without its constant inputs."""

    written: onnx.ModelProto
    simplified: onnx.ModelProto
    inputs: DividedInputs


def open_and_simplify(source: Model) -> OpenedModel:
    """Return the model that a file holds, and its inputs.

    Raises ModelError for a file that is not an ONNX model, and for open shapes.
    """
    path = Path(source.source)
    refuse_dtype_overrides(source)
    model = _read(path)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    inputs = divide_inputs(model.graph, source)
    fed = turn_inputs_into_initializers(model, inputs.constants)
    for value in model.graph.output:
        if (kind := value.type.WhichOneof("value")) not in ("tensor_type", None):
            what = f"{path.name}: output {value.name!r} is a {str(kind).removesuffix('_type')}"
            raise ModelError(
                what,
                "farm reads tensors only",
                "export the model with its tensors as outputs of their own",
            )
    standard = rewrite_few_bit_products(qlinear_to_qdq(unfuse_operators(fed)))
    standard = fold_narrow_weights(standard)
    simplified = simplify_graph(standard, inputs.fed, has_converter)
    return OpenedModel(model, masked_fills_to_where(simplified), inputs)


def _read(path: Path) -> onnx.ModelProto:
    """Return the checked model with its external data."""
    check_file(path)
    again = "copy it again, or export it again"
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as exc:  # protobuf's DecodeError, whose import path depends on the version
        raise ModelError(
            f"{path} is not a whole ONNX file",
            f"{one_line_error(exc)}; it has {path.stat().st_size} bytes",
            again,
        ) from exc
    if not model.graph.node and not model.graph.output:
        raise ModelError(
            f"{path} is not an ONNX model",
            "it holds no graph: it may be cut off, or of another format",
            again,
        )
    for tensor in model.graph.initializer:
        check_tensor_fits_memory(
            path.name, f"the weight {tensor.name!r}", tensor.dims, _item_bytes(tensor)
        )
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as exc:
        fix = "put the file with the weights beside the model, as the exporter wrote it"
        raise ModelError(
            f"{path.name}: its external weights cannot be read", one_line_error(exc), fix
        ) from exc
    sorted_here = sort_nodes(model.graph)
    try:
        onnx.checker.check_model(model if sorted_here else str(path))
    except onnx.checker.ValidationError as exc:
        _tolerate_or_raise(path, exc)
    return model


def _item_bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor's element in bytes; 1 for an unknown type."""
    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except KeyError:  # an unknown type, which the checker reports
        return 1


def _tolerate_or_raise(path: Path, error: Exception) -> None:
    """Raise ModelError for the checker's error, except for unknown operators.

    The checker knows only ONNX's own operators up to its own version. `check_operators` reports
    unknown operators with a better message.
    """
    if "No Op registered" in str(error) or "No opset import" in str(error):
        return
    raise ModelError(
        f"{path.name} is not a valid ONNX model",
        one_line_error(error),
        "export it again; onnx.checker.check_model says the same",
    ) from error


def _reference_model(
    path: Path, written: onnx.ModelProto, simplified: onnx.ModelProto
) -> Path | bytes:
    """Return the file, or its model with what ONNX Runtime computes exactly."""
    products = with_exact_products(written)
    exact = with_exact_transforms(products or written, simplified) or products
    if exact is None or exact.ByteSize() > _MOST_SERIALIZED:
        return path
    content: bytes = exact.SerializeToString()
    return content


def _loaded(model: Path | bytes) -> onnx.ModelProto:
    """Return what `_reference_model` returned as a model."""
    return onnx.load_model_from_string(model) if isinstance(model, bytes) else onnx.load(model)


def _session(what: str, model: Path | bytes) -> Any:
    """Return the session of the reference; raise ModelError if ONNX Runtime refuses the model."""
    try:
        return create_session(model)
    except Exception as exc:
        fix = "export the model for a lower opset_version, or update: pip install -U onnxruntime"
        raise ModelError(
            f"{what}: ONNX Runtime, which is the reference, refuses the model",
            _SIGNATURE.sub("", one_line_error(exc)),
            fix,
        ) from exc


def _to_relax(model: onnx.ModelProto, inputs: Sequence[TensorSpec], what: str) -> Any:
    """Return the Relax module of a model; raise ModelError if TVM cannot import it."""
    from tvm.relax.frontend.onnx import from_onnx

    from farm.importers.onnx.if_to_selection import replace_relax_ifs_by_where

    fed = inputs_without_initializers(model.graph)
    del model.graph.input[:]
    model.graph.input.extend(fed)
    shapes = {spec.name: list(spec.shape) for spec in inputs if not spec.open}
    try:
        with (
            suppress_output_warnings_and_logs(),
            install_converters(),
            layer_names.recording_onnx_names() as names,
        ):
            return farm_kernels.replace_operators_by_farm_kernels(
                replace_relax_ifs_by_where(
                    layer_names.rename_variables(from_onnx(model, shape_dict=shapes), names)
                )
            )
    except Exception as exc:
        node = _failing_node(exc)
        where = (
            f"operator {node.op_type} (node {node.name or node.output[0]!r})"
            if node is not None
            else "the model"
        )
        raise ModelError(
            f"{what}: TVM cannot import {where}",
            one_line_error(exc),
            (
                "export the model with another opset_version, with fixed shapes, or without this "
                "operator"
            ),
        ) from exc


def _failing_node(error: Exception) -> onnx.NodeProto | None:
    """Return the node that TVM's importer was converting; its messages do not name it."""
    nodes = [frame.f_locals.get("node") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((node for node in reversed(nodes) if isinstance(node, onnx.NodeProto)), None)


def _reference(
    session: Any, outputs: list[str], known: Mapping[str, np.ndarray], what: str
) -> Reference:
    """Return a function that runs `session` on inputs by name, and the `known` ones."""

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        try:
            return [np.asarray(output) for output in session.run(outputs, {**inputs, **known})]
        except Exception as exc:
            fix = "check the shapes and values of the inputs"
            raise ModelError(
                f"{what}: ONNX Runtime, which is the reference, cannot run the model",
                one_line_error(exc),
                fix,
            ) from exc

    return run
