"""Element types of torch, as far as numpy has them: what is fed, kept and compared is numpy's."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farm.errors import ModelError
from farm.types import TensorSpec


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def is_numpys(dtype: torch.dtype) -> bool:
    """Whether numpy has the type: not bfloat16, nor the floats of 8 bits."""
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return False
    return True


def spec_of(name: str, shape: Sequence[int], dtype: torch.dtype, what: str, side: str = "input") -> TensorSpec:
    """What an input, or another side of a model, is. Raises ModelError for a type that numpy lacks."""
    if not is_numpys(dtype):
        fix = "convert it in the module, x.float() or x.to(...), so that what goes in and comes out is of another type"
        raise ModelError(f"{what}: {side} {name!r} is a {dtype_name(dtype)} tensor", "numpy has no such type", fix)
    return TensorSpec(name, tuple(shape), dtype_name(dtype))
