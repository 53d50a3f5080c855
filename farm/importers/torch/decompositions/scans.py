"""Running maximums, minimums and sums, in as many steps as the length has binary digits.

Step k combines each element with that 2**k places before it (Hillis and Steele, 1986).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Parts = tuple[torch.Tensor, ...]


def _scan(parts: Parts, dim: int, combine: Callable[[Parts, Parts], Parts]) -> Parts:
    """Return the scan of tensors along an axis; `combine` is given the earlier parts first."""
    length, step = parts[0].shape[dim], 1
    while step < length:
        before = tuple(part.narrow(dim, 0, length - step) for part in parts)
        after = tuple(part.narrow(dim, step, length - step) for part in parts)
        parts = tuple(
            torch.cat([part.narrow(dim, 0, step), made], dim)
            for part, made in zip(parts, combine(before, after), strict=True)
        )
        step *= 2
    return parts


def _extreme(larger: bool) -> Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]:
    def combine(before: Parts, after: Parts) -> Parts:
        (left, where_left), (right, where_right) = before, after
        chosen = right >= left if larger else right <= left
        if right.is_floating_point():
            chosen = torch.isnan(right) | (chosen & ~torch.isnan(left))
        value = torch.where(chosen, right, left)
        return value, torch.where(chosen, where_right, where_left)

    def decompose(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        if x.ndim == 0:
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        shape = [1] * x.ndim
        shape[dim] = x.shape[dim]
        places = torch.arange(x.shape[dim]).reshape(shape).expand(x.shape)
        value, where = _scan((x, places), dim, combine)
        return value, where

    return decompose


def _logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Compute logarithms of running sums of exponentials, each relative to its largest."""
    if x.ndim == 0:
        return x.clone()
    value = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

    def combine(before: Parts, after: Parts) -> Parts:
        largest = torch.maximum(before[0], after[0])
        smallest = torch.minimum(before[0], after[0])
        same = (smallest == largest) | torch.isinf(largest)
        small = torch.where(same, torch.zeros_like(largest), smallest - largest)
        sums = largest + torch.log1p(torch.exp(small))
        return (torch.where(torch.isinf(largest), largest, sums),)

    (made,) = _scan((value,), dim, combine)
    return made.to(x.dtype)


DECOMPOSITIONS = {
    "cummax": _extreme(larger=True),
    "cummin": _extreme(larger=False),
    "logcumsumexp": _logcumsumexp,
}
