"""Quantize numbers for an input that is quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from farm.types import TensorSpec

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


def quantize_input(numbers: Array, spec: TensorSpec) -> Array:
    """Return numbers quantized by the input's scale and zero point, clipped to its dtype.

    The quotient by the scale is rounded to the nearest integer.

    The definition:
    https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/quantization_spec
    """
    limits = np.iinfo(spec.dtype)
    steps = np.rint(np.asarray(numbers, np.float32) / np.float32(spec.scale)) + np.float32(
        spec.zero
    )
    return np.asarray(np.clip(steps, limits.min, limits.max), spec.dtype, order="C")
