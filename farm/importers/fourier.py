"""Fourier transforms as products with matrices, which farm's kernels compute at full speed.

A transform of N = N1 x N2 points is one of N1 points, a product with the twiddle factors, and one
of N2 points (J. W. Cooley and J. W. Tukey, "An Algorithm for the Machine Calculation of Complex
Fourier Series", 1965). Of 2,048 points it takes a sixth of the operations that one product takes,
and matrices of 60 KB instead of 17 MB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

_LEAST_POINTS = 64  # of a transform in two steps
_LEAST_POINTS_TO_REALS = 256
_LEAST_FACTOR = 4
_LONGEST_PRODUCT = 4096  # points; the matrix of a complex transform then has 256 MiB

Array = np.ndarray[Any, Any]


def fourier_transform(
    builder: relax.BlockBuilder,
    parts: Sequence[relax.Expr],
    bins: int,
    *,
    inverse: bool = False,
    window: Array | None = None,
) -> list[relax.Expr]:
    """Emit the sums of x[n] exp(-2 pi i n k / N) over the last axis, for the first `bins` k.

    `parts` are the real part [..., N] of x and, if it is complex, the imaginary one. The result are
    the two parts of the sums, [..., bins], which are not divided by N. The exponents are positive
    if `inverse`. x is multiplied by `window`, if there is one. Raises NotImplementedError if N has
    too large a factor for a matrix.
    """
    *others, last = parts[0].ty.shape
    count = int(last)
    dtype = str(parts[0].ty.dtype)
    first = _smaller_factor(count)
    if count < _LEAST_POINTS or first < _LEAST_FACTOR:
        _check_points(count)
        matrix = _roots(np.outer(np.arange(count), np.arange(bins)), count, inverse=inverse)
        if window is not None:
            matrix *= window[:, None]
        return _product(builder, parts, matrix, dtype)
    # n = second * n1 + n2, k = k1 + first * k2
    second = count // first
    _check_points(second)
    columns = -(-bins // first)
    if window is not None:
        factors = relax.const(window, dtype)
        parts = [builder.emit(relax.op.multiply(part, factors)) for part in parts]
    axes = [*range(len(others)), len(others) + 1, len(others)]

    def shaped(part: relax.Expr, *extents: int) -> relax.Expr:
        return builder.emit(relax.op.reshape(part, [*others, *extents]))

    def swapped(part: relax.Expr) -> relax.Expr:
        return builder.emit(relax.op.permute_dims(part, axes))

    parts = [swapped(shaped(part, first, second)) for part in parts]  # [.., n2, n1]
    ones, twos = np.arange(first), np.arange(second)
    roots = _roots(np.outer(ones, ones), first, inverse=inverse)
    parts = _product(builder, parts, roots, dtype)  # [.., n2, k1]
    twiddles = _roots(np.outer(twos, ones), count, inverse=inverse)
    parts = [swapped(part) for part in _scaled(builder, parts, twiddles, dtype)]
    roots = _roots(np.outer(twos, np.arange(columns)), second, inverse=inverse)
    parts = [swapped(part) for part in _product(builder, parts, roots, dtype)]  # [.., k2, k1]
    parts = [shaped(part, columns * first) for part in parts]
    if columns * first == bins:
        return parts
    axis = len(others)
    return [builder.emit(relax.op.strided_slice(part, [axis], [0], [bins])) for part in parts]


def inverse_transform_to_reals(
    builder: relax.BlockBuilder, parts: Sequence[relax.Expr], count: int
) -> relax.Expr:
    """Emit `count` real numbers [..., count] from the first half of their Fourier transform.

    `parts` are the parts of the sums, [..., count // 2 + 1]; further sums may be left out at the
    end. The result is not divided by `count`. Raises NotImplementedError for too many numbers.
    """
    first = _smaller_factor(count)
    if count < _LEAST_POINTS_TO_REALS or first < _LEAST_FACTOR:
        _check_points(count)
        return _product_to_reals(builder, parts, count)
    # k = second * k1 + k2, n = n1 + first * n2. Of the sums over k1, which depend on k2, the second
    # half mirrors the first as the transform itself does.
    second = count // first
    _check_points(second)
    dtype = str(parts[0].ty.dtype)
    others = list(parts[0].ty.shape)[:-1]
    axes = [*range(len(others)), len(others) + 1, len(others)]
    columns = second // 2 + 1

    def swapped(part: relax.Expr) -> relax.Expr:
        return builder.emit(relax.op.permute_dims(part, axes))

    parts = _with_mirror_images(builder, parts, count)
    parts = [builder.emit(relax.op.reshape(part, [*others, first, second])) for part in parts]
    parts = [
        swapped(builder.emit(relax.op.strided_slice(part, [len(others) + 1], [0], [columns])))
        for part in parts
    ]  # [.., k2, k1]
    ones, twos = np.arange(first), np.arange(columns)
    roots = _roots(np.outer(ones, ones), first, inverse=True)
    parts = _product(builder, parts, roots, dtype)  # [.., k2, n1]
    twiddles = _roots(np.outer(twos, ones), count, inverse=True)
    parts = [swapped(part) for part in _scaled(builder, parts, twiddles, dtype)]
    numbers = swapped(_product_to_reals(builder, parts, second))  # [.., n2, n1]
    return builder.emit(relax.op.reshape(numbers, [*others, count]))


def _product_to_reals(
    builder: relax.BlockBuilder, parts: Sequence[relax.Expr], count: int
) -> relax.Expr:
    """Emit `count` real numbers from the first half of their transform, by one product."""
    bins, dtype = np.arange(int(parts[0].ty.shape[-1])), str(parts[0].ty.dtype)
    roots = _roots(np.outer(bins, np.arange(count)), count, inverse=True)
    mirrored = (bins > 0) & (2 * bins != count)  # these stand for their mirror images, too
    roots *= np.where(mirrored, 2, 1)[:, None]
    rows = np.concatenate([roots.real, -roots.imag][: len(parts)])
    wide = builder.emit(relax.op.concat(list(parts), -1)) if len(parts) > 1 else parts[0]
    return builder.emit(relax.op.matmul(wide, relax.const(rows, dtype)))


def _with_mirror_images(
    builder: relax.BlockBuilder, parts: Sequence[relax.Expr], count: int
) -> list[relax.Expr]:
    """Emit all `count` sums of real numbers from the first of them; those left out are zeros."""
    *others, last = parts[0].ty.shape
    axis, half, mirrored = len(others), count // 2 + 1, (count - 1) // 2
    known, dtype = int(last), str(parts[0].ty.dtype)
    made = []
    for part, sign in zip(parts, (1, -1), strict=False):
        if known < half:
            zeros = builder.emit(relax.op.zeros([*others, half - known], dtype))
            part = builder.emit(relax.op.concat([part, zeros], axis))
        tail = builder.emit(relax.op.strided_slice(part, [axis], [1], [mirrored + 1]))
        tail = builder.emit(relax.op.flip(tail, axis))
        if sign < 0:
            tail = builder.emit(relax.op.negative(tail))
        made.append(builder.emit(relax.op.concat([part, tail], axis)))
    return made


def _check_points(count: int) -> None:
    if count > _LONGEST_PRODUCT:
        raise NotImplementedError(
            f"a Fourier transform of {count} points: farm computes it as a product with a matrix, "
            f"of at most {_LONGEST_PRODUCT} points"
        )


def _smaller_factor(count: int) -> int:
    """Return the largest divisor whose square is at most `count`."""
    return next(one for one in range(math.isqrt(max(count, 1)), 0, -1) if count % one == 0)


def _roots(exponents: Array, count: int, *, inverse: bool) -> Array:
    """Return exp(-2 pi i exponent / count), or its conjugate."""
    angles = 2 * np.pi * (exponents % count) / count
    roots: Array = np.exp(1j * (angles if inverse else -angles))
    return roots


def _product(
    builder: relax.BlockBuilder, parts: Sequence[relax.Expr], matrix: Array, dtype: str
) -> list[relax.Expr]:
    """Emit the parts of x @ matrix: one product, with both parts of x side by side."""
    columns = matrix.shape[1]
    rows = [np.concatenate([matrix.real, matrix.imag], 1)]
    wide = parts[0]
    if len(parts) > 1:
        rows.append(np.concatenate([-matrix.imag, matrix.real], 1))
        wide = builder.emit(relax.op.concat(list(parts), -1))
    both = builder.emit(relax.op.matmul(wide, relax.const(np.concatenate(rows), dtype)))
    axis = len(both.ty.shape) - 1
    return [
        builder.emit(relax.op.strided_slice(both, [axis], [begin], [begin + columns]))
        for begin in (0, columns)
    ]


def _scaled(
    builder: relax.BlockBuilder, parts: Sequence[relax.Expr], factors: Array, dtype: str
) -> list[relax.Expr]:
    """Emit the parts of x * factors."""
    real, imaginary = parts
    cosines, sines = (relax.const(part, dtype) for part in (factors.real, factors.imag))

    def times(part: relax.Expr, factor: relax.Expr) -> relax.Expr:
        return builder.emit(relax.op.multiply(part, factor))

    return [
        builder.emit(relax.op.subtract(times(real, cosines), times(imaginary, sines))),
        builder.emit(relax.op.add(times(real, sines), times(imaginary, cosines))),
    ]
