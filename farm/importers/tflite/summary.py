"""Summarise a TFLite file for `farm check` without importing it.

The outline lists inputs, outputs, weights, operators and everything that cannot be imported.
"""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np

from farm.importers.summary import ModelSummary
from farm.importers.tflite.converter import import_problems
from farm.importers.tflite.tflite_file import TfliteFile
from farm.types import Model, describe_shape


def summarize(source: Model) -> ModelSummary:
    """Return the outline of a file; raise ModelError if it is unreadable or shapes do not fit."""
    opened = TfliteFile(source)
    details = {int(one["index"]): one for one in opened.interpreter.get_output_details()}
    shown = (
        (
            f"{name} {details[index]['dtype'].__name__} "
            f"{[int(extent) for extent in details[index]['shape']]}"
        )
        for index, name in opened.outputs.items()
    )
    weights = [
        one
        for one in opened.interpreter.get_tensor_details()
        if opened.is_constant(int(one["index"]))
    ]
    return ModelSummary(
        inputs=tuple(f"{spec.name} {spec.dtype} {describe_shape(spec)}" for spec in opened.inputs),
        outputs=tuple(shown),
        parameters=sum(prod(map(int, weight["shape"])) for weight in weights),
        parameter_bytes=sum(
            prod(map(int, weight["shape"])) * np.dtype(weight["dtype"]).itemsize
            for weight in weights
        ),
        operators=dict(Counter(operator.name for operator in opened.operators).most_common()),
        problems=tuple(import_problems(opened)),
        source=opened.what,
    )
