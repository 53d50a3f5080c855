"""ONNX files. The reference is ONNX Runtime on this machine's CPU."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime

from farm.errors import ModelError
from farm.importers import layers, own_kernels
from farm.importers.files import check_file, refuse_dtypes
from farm.importers.imported import Imported, Reference, example_inputs, with_fixed_shapes
from farm.importers.onnx_converters import installed
from farm.importers.onnx_folding import folded
from farm.importers.onnx_layers import onnx_layers
from farm.importers.onnx_operators import check_operators, has_converter
from farm.importers.onnx_quantized import plainly
from farm.importers.onnx_session import session
from farm.importers.onnx_shapes import input_specs, user_inputs
from farm.importers.relax_module import detach_weights, hushed, one_line, output_specs
from farm.types import Model, TensorSpec

_SIGNATURE = re.compile(r"/onnxruntime_src/\S+ [^()]*\([^()]*\) ")  # the C++ function that ONNX Runtime puts before its message


def load(source: Model) -> Imported:
    """Import the ONNX file that `source.source` names, with the shapes of `source.shapes` for its open axes; an open batch may stay so.

    Raises ModelError for a file that is missing, damaged or invalid, for operators that TVM or ONNX Runtime lack, and for open shapes.
    """
    return load_with(source, _session)


def load_with(source: Model, session_of: Callable[[Path], Any]) -> Imported:
    """`load`, with what makes the reference's session of a path: a test of the import that knows the answers needs none."""
    path = Path(source.source)
    what = path.name
    _, model, inputs = opened(source)
    outputs = [value.name for value in model.graph.output]
    try:
        check_operators(model, what)
        asked = session_of(path)
        module, weights = detach_weights(_to_relax(model, inputs, what), len(inputs))
        specs = output_specs(module, outputs)
    except ModelError as error:
        if not any(spec.open for spec in inputs):
            raise
        return replace(load_with(with_fixed_shapes(source, inputs), session_of), fixed=f"{error.what}: {error.why}")
    return Imported(
        module=module,
        weights=weights,
        inputs=inputs,
        outputs=specs,
        engine=f"onnxruntime {onnxruntime.__version__}",
        example=example_inputs(inputs),
        reference=_reference(asked, outputs, what),
        layers=lambda values: onnx_layers(onnx.load(path), values),
    )


def opened(source: Model) -> tuple[onnx.ModelProto, onnx.ModelProto, tuple[TensorSpec, ...]]:
    """The model as its file has it, as TVM gets it, and its inputs. Raises ModelError for what is no model, and for open shapes."""
    path = Path(source.source)
    refuse_dtypes(source)
    model = _read(path)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    inputs = input_specs(model.graph, source.shapes, path.name)
    for value in model.graph.output:
        if (kind := value.type.WhichOneof("value")) not in ("tensor_type", None):
            what = f"{path.name}: output {value.name!r} is a {str(kind).removesuffix('_type')}"
            raise ModelError(what, "farm reads tensors only", "export the model with its tensors as outputs of their own")
    return model, folded(plainly(model), inputs, has_converter), inputs


def _read(path: Path) -> onnx.ModelProto:
    """The checked model, with its external data."""
    check_file(path)
    again = "copy it again, or export it again"
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as exc:  # protobuf's DecodeError, under a name that depends on the version
        raise ModelError(f"{path} is not a whole ONNX file", f"{one_line(exc)}; it has {path.stat().st_size} bytes", again) from exc
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path} is not an ONNX model", "it holds no graph: it may be cut off, or of another format", again)
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as exc:
        fix = "put the file with the weights beside the model, as the exporter wrote it"
        raise ModelError(f"{path.name}: its external weights cannot be read", one_line(exc), fix) from exc
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as exc:
        _tolerate_or_raise(path, exc)
    return model


def _tolerate_or_raise(path: Path, error: Exception) -> None:
    """The checker knows only ONNX's own operators at versions up to its own; unknown ones get a better message later."""
    if "No Op registered" in str(error) or "No opset import" in str(error):
        return
    raise ModelError(
        f"{path.name} is not a valid ONNX model", one_line(error), "export it again; onnx.checker.check_model says the same"
    ) from error


def _session(path: Path) -> Any:
    try:
        return session(path)
    except Exception as exc:
        fix = "export the model for a lower opset_version, or update: pip install -U onnxruntime"
        raise ModelError(
            f"{path.name}: ONNX Runtime, which is the reference, refuses the model", _SIGNATURE.sub("", one_line(exc)), fix
        ) from exc


def _to_relax(model: onnx.ModelProto, inputs: Sequence[TensorSpec], what: str) -> Any:
    from tvm.relax.frontend.onnx import from_onnx

    fed = user_inputs(model.graph)
    del model.graph.input[:]
    model.graph.input.extend(fed)
    shapes = {spec.name: list(spec.shape) for spec in inputs if not spec.open}
    try:
        with hushed(), installed(), layers.of_onnx() as names:
            return own_kernels.compiled(layers.named(from_onnx(model, shape_dict=shapes), names))
    except Exception as exc:
        node = _failing_node(exc)
        where = f"operator {node.op_type} (node {node.name or node.output[0]!r})" if node is not None else "the model"
        raise ModelError(
            f"{what}: TVM cannot import {where}",
            one_line(exc),
            "export the model with another opset_version, with fixed shapes, or without this operator",
        ) from exc


def _failing_node(error: Exception) -> onnx.NodeProto | None:
    """The node that TVM's importer was at: its messages name none."""
    nodes = [frame.f_locals.get("node") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((node for node in reversed(nodes) if isinstance(node, onnx.NodeProto)), None)


def _reference(asked: Any, outputs: list[str], what: str) -> Reference:
    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        try:
            return [np.asarray(output) for output in asked.run(outputs, dict(inputs))]
        except Exception as exc:
            fix = "check the shapes and values of the inputs"
            raise ModelError(f"{what}: ONNX Runtime, which is the reference, cannot run the model", one_line(exc), fix) from exc

    return run
