"""Numbers for an input that is quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from farm.types import TensorSpec

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


def quantized(numbers: Array, spec: TensorSpec) -> Array:
    """The elements that stand for numbers in an input with a scale: rounded, and cut off at the ends of its type.

    The definition: https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/quantization_spec
    """
    limits = np.iinfo(spec.dtype)
    steps = np.rint(np.asarray(numbers, np.float32) / np.float32(spec.scale)) + np.float32(spec.zero)
    return np.ascontiguousarray(np.clip(steps, limits.min, limits.max), spec.dtype)
