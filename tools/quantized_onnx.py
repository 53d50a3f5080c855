"""An ONNX file as quantized by ONNX Runtime's own tools: what an engine's integer kernels are
measured on.

Weights are int8, a scale for each output channel; activations are uint8, with ranges seen on a few
random inputs. Accuracy is not the point: every engine gets the same file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_SAMPLES = 4

Array = np.ndarray[Any, Any]


def quantized(path: Path, feed: Mapping[str, Array], folder: Path) -> Path:
    """Write the QDQ form of a model of float32 into a folder; `feed` are inputs as the model takes
    them. Returns the file.
    """
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Inputs(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            numbers = np.random.default_rng(0)
            drawn = [
                {name: _like(value, numbers) for name, value in feed.items()}
                for _ in range(_SAMPLES - 1)
            ]
            self._left = iter([dict(feed), *drawn])

        def get_next(self) -> dict[str, Array] | None:
            return next(self._left, None)

    logging.disable(logging.WARNING)  # it advises on its own pre-processing, which has been done
    try:
        ready, result = folder / f"{path.stem}-ready.onnx", folder / f"{path.stem}-int8.onnx"
        quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
        types = {
            "activation_type": QuantType.QUInt8,
            "weight_type": QuantType.QInt8,
            "per_channel": True,
        }
        quantize_static(str(ready), str(result), Inputs(), quant_format=QuantFormat.QDQ, **types)
    finally:
        logging.disable(logging.NOTSET)
    return result


def _like(value: Array, numbers: np.random.Generator) -> Array:
    """Other numbers of the same shape, type and spread; integers as they are, for they are
    indices.
    """
    if value.dtype.kind != "f":
        return value
    return (numbers.standard_normal(value.shape) * value.std() + value.mean()).astype(value.dtype)


def snr_db(values: Array, exact: Array) -> float:
    """How much of the signal is no error, in decibels."""
    error = np.square(values.astype(np.float64) - exact).sum()
    return (
        float(10 * np.log10(np.square(exact.astype(np.float64)).sum() / error))
        if error
        else float("inf")
    )
