"""Elements that are chosen by masks and indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Replace the elements of a mask by those of `source`, in order."""
    mask = mask.expand(x.shape).reshape(-1)
    places = (torch.cumsum(mask.to(torch.int64), 0) - 1).clamp(0, source.numel() - 1)
    taken = torch.index_select(source.reshape(-1), 0, places)
    return torch.where(mask, taken, x.reshape(-1)).reshape(x.shape)


def _searchsorted(
    boundaries: torch.Tensor,
    x: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Count the boundaries before each number; with `right`, also those that are equal to it."""
    if sorter is not None:
        boundaries = torch.gather(boundaries, -1, sorter)
    right = right or side == "right"
    dtype = torch.result_type(boundaries, x)
    one, other = boundaries.to(dtype), x.to(dtype).unsqueeze(-1)
    if one.ndim > 1:
        one = one.unsqueeze(-2)
    before = (one <= other) if right else (one < other)
    if dtype.is_floating_point:  # NaN is after all others
        before = before | torch.isnan(other)
    return before.sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _searchsorted_scalar(
    boundaries: torch.Tensor, x: float, **named: bool | str | torch.Tensor | None
) -> torch.Tensor:
    """Count the boundaries before a number."""
    number = torch.full((1,), x)
    return _searchsorted(boundaries, number, **named).reshape(())  # type: ignore[arg-type]


def _diagonal_scatter(
    x: torch.Tensor, source: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """Replace a diagonal of matrices."""
    moved = x.movedim((dim1, dim2), (-2, -1))
    rows = torch.arange(moved.shape[-2]).unsqueeze(-1)
    columns = torch.arange(moved.shape[-1])
    places = (rows.squeeze(-1) + min(offset, 0)).clamp(0, source.shape[-1] - 1)
    expanded = torch.index_select(source, -1, places).unsqueeze(-1).expand(moved.shape)
    made = torch.where(columns - rows == offset, expanded, moved)
    return made.movedim((-2, -1), (dim1, dim2))


def _as_strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Return the elements at the places that extents and strides give."""
    dense = _dense_strides(size)
    if not storage_offset and math.prod(size) == x.numel() and _same_order(size, stride, dense):
        return x.reshape(list(size))
    places = _places(x, size, stride, storage_offset)
    return torch.index_select(x.reshape(-1), 0, places.reshape(-1)).reshape(list(size))


def _dense_strides(size: Sequence[int]) -> list[int]:
    return [math.prod(size[axis + 1 :]) for axis in range(len(size))]


def _same_order(size: Sequence[int], stride: Sequence[int], dense: Sequence[int]) -> bool:
    return all(
        extent == 1 or step == other
        for extent, step, other in zip(size, stride, dense, strict=True)
    )


def _places(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> torch.Tensor:
    if not x.is_contiguous():
        raise NotImplementedError("as_strided of a tensor that is not contiguous")
    places = torch.full((), storage_offset or 0, dtype=torch.int64)
    for extent, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(extent) * step
    return places


def _as_strided_scatter(
    x: torch.Tensor,
    source: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """Replace the elements at the places that extents and strides give."""
    places = _places(x, size, stride, storage_offset)
    made = torch.scatter(x.reshape(-1), 0, places.reshape(-1), source.reshape(-1))
    return made.reshape(x.shape)


def _scatter_value_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, value: float, *, reduce: str
) -> torch.Tensor:
    """Combine elements with a number."""
    source = torch.full(index.shape, value, dtype=x.dtype)
    return torch.scatter(x, dim, index, source, reduce=reduce)


DECOMPOSITIONS = {
    "masked_scatter": _masked_scatter,
    "searchsorted.Tensor": _searchsorted,
    "searchsorted.Scalar": _searchsorted_scalar,
    "diagonal_scatter": _diagonal_scatter,
    "as_strided": _as_strided,
    "as_strided_scatter": _as_strided_scatter,
    "scatter.value_reduce": _scatter_value_reduce,
}
