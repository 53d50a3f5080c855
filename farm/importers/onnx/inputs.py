"""Divide the inputs of an ONNX model into those that a caller feeds and those that are constants.

Constants are the inputs whose values the user states, and those that have no elements: the cache
of a decoder before its first token, [1, 8, 0, 64].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from farm.errors import ModelError
from farm.importers.onnx.input_shapes import input_specs
from farm.importers.onnx.rewrites.inputs_to_initializers import user_values_as_arrays
from farm.types import Model, TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class DividedInputs:
    """The inputs of a model: `fed` in the order of the file, `constants` by name."""

    fed: tuple[TensorSpec, ...]
    constants: dict[str, Array]


def divide_inputs(graph: onnx.GraphProto, source: Model) -> DividedInputs:
    """Return the inputs of `graph`, with the shapes and values that `source` states.

    Raises ModelError for shapes and values that do not fit, and if no input is left.
    """
    what = Path(source.source).name
    stated = user_values_as_arrays(graph, source.values, source.shapes, what)
    specs = input_specs(graph, source.shapes, stated, what)
    empty = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs if 0 in spec.shape}
    fed = tuple(spec for spec in specs if spec.name not in empty)
    if empty and not fed:
        name, first = next(iter(empty.items()))
        raise ModelError(
            f"{what} has no input left",
            f"{name} has no elements in the shape {list(first.shape)}",
            "state extents of at least 1",
        )
    return DividedInputs(fed, stated | empty)
