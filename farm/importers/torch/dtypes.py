"""Convert element types of torch to numpy's, in which inputs, weights and outputs are stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farm.errors import ModelError
from farm.types import TensorSpec


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type without "torch."."""
    return str(dtype).removeprefix("torch.")


def is_numpy_dtype(dtype: torch.dtype) -> bool:
    """Return whether numpy has the type; it lacks bfloat16 and the floats of 8 bits."""
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return False
    return True


def tensor_spec(
    name: str, shape: Sequence[int], dtype: torch.dtype, what: str, side: str = "input"
) -> TensorSpec:
    """Return the spec of an input, or of an output if `side` says so.

    Raises ModelError for a type that numpy lacks.
    """
    if not is_numpy_dtype(dtype):
        fix = (
            "convert it in the module, x.float() or x.to(...), so that what goes in and comes out "
            "is of another type"
        )
        raise ModelError(
            f"{what}: {side} {name!r} is a {dtype_name(dtype)} tensor",
            "numpy has no such type",
            fix,
        )
    return TensorSpec(name, tuple(shape), dtype_name(dtype))
