"""Reductions of axes and of all elements."""

from __future__ import annotations

from typing import Any

import torch


def _variance_and_mean(
    x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute torch.var_mean by its parts."""
    mean = torch.ops.aten.mean.dim(x, dim, keepdim)
    return torch.ops.aten.var.correction(x, dim, correction=correction, keepdim=keepdim), mean


def _kth_value(
    x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k-th smallest elements of an axis, and where they are."""
    if x.ndim == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, places = torch.sort(x, dim=dim, stable=True)
    made = tuple(one.narrow(dim, k - 1, 1) for one in (values, places))
    if not keepdim:
        made = tuple(one.squeeze(dim) for one in made)
    return made[0], made[1]


def _median(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lower medians of an axis, and where they are: NaN where there is one."""
    count = x.shape[dim] if x.ndim else 1
    value, place = _kth_value(x, (count + 1) // 2, dim, keepdim)
    if not x.is_floating_point() or x.ndim == 0:
        return value, place
    undefined = torch.isnan(x)
    first = torch.argmax(undefined.to(torch.int32), dim, keepdim)
    any_undefined = undefined.any(dim, keepdim)
    return (
        torch.where(any_undefined, torch.full_like(value, float("nan")), value),
        torch.where(any_undefined, first, place),
    )


def _median_of_all(x: torch.Tensor) -> torch.Tensor:
    """Return the lower median of all elements."""
    return _median(x.reshape(-1), 0)[0]


def _histogram(
    x: torch.Tensor,
    bins: int = 100,
    min: float = 0,  # noqa: A002
    max: float = 0,  # noqa: A002
) -> torch.Tensor:
    """Count the elements in each of so many equal parts of a range; the last has its end."""
    flat = x.reshape(-1)
    if min == max:
        low, high = flat.amin(), flat.amax()
        same = low == high
        low, high = torch.where(same, low - 1, low), torch.where(same, high + 1, high)
    else:
        low, high = torch.full((), min, dtype=x.dtype), torch.full((), max, dtype=x.dtype)
    part = torch.floor((flat - low) * (bins / (high - low)))
    part = torch.where(flat == high, torch.full_like(part, bins - 1), part)
    found = part.unsqueeze(-1) == torch.arange(bins)
    inside = (flat >= low) & (flat <= high)
    return (found & inside.unsqueeze(-1)).sum(0).to(x.dtype)


def _distance(x: torch.Tensor, y: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """Compute the norm of a difference."""
    return torch.linalg.vector_norm(x - y, p)


DECOMPOSITIONS = {
    "var_mean.correction": _variance_and_mean,
    "kthvalue": _kth_value,
    "median": _median_of_all,
    "median.dim": _median,
    "histc": _histogram,
    "dist": _distance,
}
