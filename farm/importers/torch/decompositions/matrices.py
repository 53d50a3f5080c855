"""Inverses and determinants of small matrices, distances of rows, and sums of products.

LU factorization takes a column at a time, with partial pivoting (Golub and Van Loan, Matrix
Computations, 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_MOST_COLUMNS = 16  # each is about a dozen operators
_FEW_ROWS = 25  # torch subtracts up to so many rows from each other, and multiplies more of them
_EUCLIDEAN, _ALWAYS_BY_PRODUCT, _NEVER_BY_PRODUCT = 2.0, 1, 2  # modes of torch.cdist


def _lu_factors(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return L below and U on and above the diagonal; the order of rows; and how many swaps."""
    size = a.shape[-1]
    if size > _MOST_COLUMNS:
        raise NotImplementedError(f"inverses and determinants of {size} x {size} matrices")
    rows = torch.arange(size)
    order = rows.expand(a.shape[:-1])
    swaps = torch.zeros(a.shape[:-2], dtype=torch.int64)
    for column in range(size - 1):
        below = a[..., column:, column].abs()
        pivot = torch.argmax(below, -1, keepdim=True) + column
        swapped = torch.where(rows == column, pivot, torch.where(rows == pivot, column, rows))
        a = torch.gather(a, -2, swapped.unsqueeze(-1).expand(a.shape))
        order = torch.gather(order, -1, swapped)
        swaps = swaps + (pivot.squeeze(-1) != column).to(torch.int64)
        # before the column, a row has its factors
        top = a[..., column : column + 1, :]
        top = torch.where(rows >= column, top, torch.zeros_like(top))
        factors = a[..., :, column : column + 1] / top[..., column : column + 1]
        factors = torch.where(rows.unsqueeze(-1) > column, factors, torch.zeros_like(factors))
        rest = a - factors * top
        a = torch.where((rows == column) & (rows.unsqueeze(-1) > column), factors, rest)
    return a, order, swaps


def _lu_solve(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return X of `a` X = `b`, the LU factors of `a`, and its order of rows."""
    factored, order, _ = _lu_factors(a)
    size = a.shape[-1]
    right = torch.gather(b, -2, order.unsqueeze(-1).expand(b.shape))
    forward = [right[..., :1, :]]
    for row in range(1, size):
        known = torch.cat(forward, -2)
        forward.append(right[..., row : row + 1, :] - factored[..., row : row + 1, :row] @ known)
    solution: list[torch.Tensor] = []
    for row in reversed(range(size)):
        rest = forward[row]
        if solution:
            rest = rest - factored[..., row : row + 1, row + 1 :] @ torch.cat(solution, -2)
        solution.insert(0, rest / factored[..., row : row + 1, row : row + 1])
    return torch.cat(solution, -2), factored, order


def _inverse(a: torch.Tensor, **_: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Invert matrices [..., N, N]; singular ones are not reported."""
    made, _, _ = _lu_solve(a, torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape))
    return made, torch.zeros(a.shape[:-2], dtype=torch.int32)


def _first(
    count: int, function: Callable[..., tuple[torch.Tensor, ...]]
) -> Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]:
    """Return the decomposition with the first results only, for an operator without the others."""

    def decompose(*operands: torch.Tensor, **named: bool) -> Any:
        results = function(*operands, **named)
        return results[0] if count == 1 else results[:count]

    return decompose


def _determinant(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the determinants of matrices [..., N, N]."""
    factored, order, swaps = _lu_factors(a)
    product = torch.diagonal(factored, dim1=-2, dim2=-1).prod(-1)
    return torch.where(swaps % 2 == 1, -product, product), factored, order.to(torch.int32)


def _sign_and_logarithm(
    a: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the sign of determinants, and the logarithms of their absolute values."""
    factored, order, swaps = _lu_factors(a)
    diagonal = torch.diagonal(factored, dim1=-2, dim2=-1)
    sign = torch.sign(diagonal).prod(-1)
    sign = torch.where(swaps % 2 == 1, -sign, sign)
    return sign, torch.log(diagonal.abs()).sum(-1), factored, order.to(torch.int32)


def _solve(
    a: torch.Tensor, b: torch.Tensor, *, left: bool = True, **_: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Solve A X = B, or X A = B; B may be vectors."""
    vectors = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    wide = b.unsqueeze(-1) if vectors else b
    one, other = (a, wide) if left else (a.mT, wide.mT)
    batch = torch.broadcast_shapes(one.shape[:-2], other.shape[:-2])
    one = one.expand(*batch, *one.shape[-2:])
    other = other.expand(*batch, *other.shape[-2:])
    made, factored, order = _lu_solve(one, other)
    made = made if left else made.mT
    info = torch.zeros(a.shape[:-2], dtype=torch.int32)
    return (made.squeeze(-1) if vectors else made), factored, order.to(torch.int32), info


def _cholesky(
    a: torch.Tensor, *, upper: bool = False, **_: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute L of L L^T, a column at a time; matrices that have none are not reported."""
    size = a.shape[-1]
    if size > _MOST_COLUMNS:
        raise NotImplementedError(f"the Cholesky decomposition of {size} x {size} matrices")
    a = a.mT if upper else a
    rows = torch.arange(size).unsqueeze(-1)
    columns: list[torch.Tensor] = []
    for column in range(size):
        rest = a[..., :, column : column + 1]
        if columns:
            known = torch.cat(columns, -1)
            rest = rest - known @ known[..., column : column + 1, :].mT
        made = rest / torch.sqrt(rest[..., column : column + 1, :])
        columns.append(torch.where(rows >= column, made, torch.zeros_like(made)))
    lower = torch.cat(columns, -1)
    return lower.mT if upper else lower, torch.zeros(a.shape[:-2], dtype=torch.int32)


def _distances(
    x: torch.Tensor, y: torch.Tensor, p: float, compute_mode: int | None
) -> torch.Tensor:
    """Compute the distances of rows [..., P, M] and [..., R, M]: [..., P, R]."""
    many = x.shape[-2] > _FEW_ROWS or y.shape[-2] > _FEW_ROWS
    by_product = compute_mode == _ALWAYS_BY_PRODUCT or (compute_mode != _NEVER_BY_PRODUCT and many)
    if p == _EUCLIDEAN and by_product:
        squares = (x * x).sum(-1, keepdim=True) + (y * y).sum(-1, keepdim=True).mT
        return torch.sqrt((squares - 2.0 * (x @ y.mT)).clamp(min=0.0))
    difference = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (difference != 0).to(x.dtype).sum(-1)
    if p == 1:
        return difference.sum(-1)
    if p == _EUCLIDEAN:
        return torch.sqrt((difference * difference).sum(-1))
    if p == math.inf:
        return difference.amax(-1)
    return torch.pow(torch.pow(difference, p).sum(-1), 1.0 / p)


def _addbmm(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """Add the sum of a batch of products."""
    return _scaled_sum(torch.bmm(a, b).sum(0, dtype=a.dtype), alpha, x, beta)


def _addmv(
    x: torch.Tensor, a: torch.Tensor, v: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """Add the product of a matrix and a vector."""
    return _scaled_sum(torch.mv(a, v), alpha, x, beta)


def _scaled_sum(product: torch.Tensor, alpha: float, x: torch.Tensor, beta: float) -> torch.Tensor:
    """Return alpha * product + beta * x; a beta of 0 leaves x out, whatever it is."""
    made = product if alpha == 1 else product * alpha
    if beta == 0:
        return made.expand(torch.broadcast_shapes(made.shape, x.shape))
    return made + (x if beta == 1 else x * beta)


def _integer_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply matrices of int8 into int32."""
    return torch.mm(a.to(torch.int32), b.to(torch.int32))


# torch's decompositions of the operators without `_ex` check for errors; the check would become an
# input of the program
DECOMPOSITIONS = {
    "linalg_inv": _first(1, _inverse),
    "inverse": _first(1, _inverse),
    "linalg_det": _first(1, _determinant),
    "linalg_slogdet": _first(2, _sign_and_logarithm),
    "linalg_solve": _first(1, _solve),
    "linalg_cholesky": _first(1, _cholesky),
    "linalg_inv_ex": _inverse,
    "_linalg_det": _determinant,
    "_linalg_slogdet": _sign_and_logarithm,
    "_linalg_solve_ex": _solve,
    "linalg_cholesky_ex": _cholesky,
    "_cdist_forward": _distances,
    "addbmm": _addbmm,
    "addmv": _addmv,
    "_int_mm": _integer_product,
}
