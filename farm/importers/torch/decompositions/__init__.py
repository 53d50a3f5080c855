"""Decompositions of torch's operators that neither torch's own table nor the importer knows.

Each is a function of torch with the operator's arguments, of operators that the importer converts.

    functions    mathematical functions of each element
    scans        running maximums, minimums and sums
    selection    elements that are chosen by masks and indices
    reductions   reductions of axes and of all elements
    frames       sums of frames and patches that overlap
    matrices     inverses, determinants, distances, sums of products
    sampling     images at places between their pixels
    slices       rolls, and tensors taken apart along an axis
    transformer_layers
                 attention and encoder layers that torch runs fused
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from farm.importers.torch.decompositions import (
    frames,
    functions,
    matrices,
    reductions,
    sampling,
    scans,
    selection,
    slices,
    transformer_layers,
)

_PARTS = (
    frames,
    functions,
    matrices,
    reductions,
    sampling,
    scans,
    selection,
    slices,
    transformer_layers,
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator, for `ExportedProgram.run_decompositions`."""
    found: dict[Any, Callable[..., Any]] = {}
    for part in _PARTS:
        for name, function in part.DECOMPOSITIONS.items():
            operator, _, overload = name.partition(".")
            found[getattr(getattr(torch.ops.aten, operator), overload or "default")] = function
    return found
