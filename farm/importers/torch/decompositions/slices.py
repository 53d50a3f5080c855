"""Operators that move whole slices: rolls, and tensors taken apart along an axis.

torch's own decompositions take a roll by indices, one by one, and each piece by a slice of its own.
Compiled, these are kernels that read the tensor once more each, where the pieces of one split can
be written by the kernel before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Shift the elements along axes cyclically."""
    extents = [x.shape[dim] for dim in dims] or x.shape
    if not all(isinstance(number, int) for number in (*shifts, *extents)):  # some are open
        made: torch.Tensor = decomposition_table[torch.ops.aten.roll.default](x, shifts, dims)
        return made
    if not dims:
        return _roll(x.flatten(), shifts, [0]).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        extent = x.shape[dim]
        if extent and (last := shift % extent):
            pieces = [x.narrow(dim, extent - last, last), x.narrow(dim, 0, extent - last)]
            x = torch.cat(pieces, dim)
    return x.clone()


def _unbind(x: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    """Return the slices along an axis, without that axis."""
    if x.is_complex() or not x.shape[dim]:
        slices: list[torch.Tensor] = decomposition_table[torch.ops.aten.unbind.int](x, dim)
        return slices
    return [piece.squeeze(dim) for piece in torch.split(x, [1] * x.shape[dim], dim)]


DECOMPOSITIONS: dict[str, Any] = {"roll": _roll, "unbind.int": _unbind}
