"""Import `.tflite` files. The reference is LiteRT (formerly TensorFlow Lite) on this CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import numpy as np

from farm.errors import ModelError
from farm.importers import farm_kernels, layer_names
from farm.importers.imported_model import ImportedModel
from farm.importers.relax_postprocessing import (
    detach_weights,
    one_line_error,
    output_specs,
    suppress_output_warnings_and_logs,
)
from farm.importers.tflite.converter import FileConversion, import_problems
from farm.importers.tflite.tflite_file import TO_ONNX, TfliteFile
from farm.types import Model

_SHOWN = 3
Array = np.ndarray[Any, Any]


def load(source: Model) -> ImportedModel:
    """Import a file, with the shapes of `source.shapes` for open axes; an open batch becomes 1.

    Raises ModelError for a file that is missing, damaged or of another format, for operators that
    TVM or LiteRT lacks, and if packages are missing.
    """
    opened = TfliteFile(source)
    _check_operators(opened)
    opened.settle()
    module, weights = detach_weights(_to_relax(opened), len(opened.inputs))
    return ImportedModel(
        module=module,
        weights=weights,
        inputs=opened.inputs,
        outputs=output_specs(module, list(opened.outputs.values())),
        engine=f"litert {metadata.version('ai-edge-litert')}",
        example=opened.example(),
        reference=opened.answer,
        layers=lambda inputs: _layers(opened, inputs),
        fixed=opened.fixed,
    )


def _check_operators(opened: TfliteFile) -> None:
    """Raise ModelError if operators cannot be imported.

    The error names each of them, how often it occurs, and some of its places.
    """
    if found := import_problems(opened):
        names = [f"{one.operator} {one.what}".strip() for one in found]
        listed = [
            f"{name} x{len(one.nodes)} ({', '.join(one.nodes[:_SHOWN])})"
            for name, one in zip(names, found, strict=True)
        ]
        what = (
            f"{opened.what} uses {len(names)} operator{'s' if len(names) > 1 else ''} that cannot "
            f"be imported: {', '.join(names)}"
        )
        raise ModelError(
            what,
            f"neither TVM's importer of TFLite nor farm has a converter for {'; '.join(listed)}",
            found[0].fix,
        )


def _to_relax(opened: TfliteFile) -> Any:
    """Return the Relax module of a file; raise ModelError if TVM cannot import it."""
    from tvm.relax.frontend.tflite import from_tflite

    shapes = {
        opened.tensor_name(int(index)): spec.shape
        for index, spec in zip(opened.graph.InputsAsNumpy(), opened.inputs, strict=True)
    }
    conversion = FileConversion(opened)
    try:
        with suppress_output_warnings_and_logs():
            module = from_tflite(opened.model, shape_dict=shapes, op_converter=conversion)
            # The weights again, which are in the module already.
            module["main"] = module["main"].without_attr("params")
            return farm_kernels.replace_operators_by_farm_kernels(
                layer_names.rename_variables(module, conversion.names)
            )
    except Exception as exc:
        at = conversion.at
        where = f"operator {at.name} ({at.place})" if at is not None else "the model"
        why = one_line_error(exc)
        raise ModelError(
            f"{opened.what}: TVM cannot import {where}",
            why,
            f"convert the model to ONNX: {TO_ONNX}",
        ) from exc


def _layers(opened: TfliteFile, inputs: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]:
    """Yield the place, operator and first result of each operator, in order."""
    opened.run(inputs)
    for operator in opened.operators:
        if operator.outputs and operator.outputs[0] not in opened.known:
            yield operator.place, operator.name, opened.value(operator.outputs[0])
