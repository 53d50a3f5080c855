"""Extents as sums of constants and of counts that are known when the model runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import NamedTuple


class Count(NamedTuple):
    """A number that a kernel computes: the name of its tensor, int64 [1], and its upper bound.

    The lower bound is 0.
    """

    tensor: str
    upper_bound: int


@dataclass(frozen=True, slots=True)
class Extent:
    """A constant, plus counts, each times a factor that is not 0. `terms` are sorted."""

    constant: int
    terms: tuple[tuple[Count, int], ...] = ()

    @classmethod
    def of(cls, count: Count) -> Extent:
        """Return the extent that is a count."""
        return cls(0, ((count, 1),))

    @property
    def is_constant(self) -> bool:
        """Return whether no count is in it."""
        return not self.terms

    @property
    def upper_bound(self) -> int:
        """Return an upper bound."""
        return self.constant + sum(
            factor * count.upper_bound for count, factor in self.terms if factor > 0
        )

    @property
    def lower_bound(self) -> int:
        """Return a lower bound."""
        return self.constant + sum(
            factor * count.upper_bound for count, factor in self.terms if factor < 0
        )

    def __add__(self, other: Extent | int) -> Extent:
        """Return the sum."""
        other = other if isinstance(other, Extent) else Extent(other)
        factors = dict(self.terms)
        for count, factor in other.terms:
            factors[count] = factors.get(count, 0) + factor
        return _extent(self.constant + other.constant, factors)

    def __sub__(self, other: Extent | int) -> Extent:
        """Return the difference."""
        return self + other * -1

    def __mul__(self, factor: int) -> Extent:
        """Return the product with a number."""
        return _extent(
            self.constant * factor, {count: number * factor for count, number in self.terms}
        )

    def divided(self, divisor: int) -> Extent | None:
        """Return the quotient; None if the divisor does not divide every part."""
        numbers = (self.constant, *(factor for _, factor in self.terms))
        if divisor == 0 or any(number % divisor for number in numbers):
            return None
        return _extent(
            self.constant // divisor, {count: factor // divisor for count, factor in self.terms}
        )


def _extent(constant: int, factors: Mapping[Count, int]) -> Extent:
    return Extent(constant, tuple(sorted((one, by) for one, by in factors.items() if by)))


@dataclass(frozen=True, slots=True)
class Product:
    """A product of extents: a number, times extents that no number divides. They are sorted.

    Two products of one form are equal for all counts.
    """

    number: int
    factors: tuple[Extent, ...] = ()

    @classmethod
    def of(cls, extents: Iterable[Extent]) -> Product:
        """Return the product of extents."""
        return reduce(cls._times, extents, cls(1))

    def _times(self, extent: Extent) -> Product:
        if self.number == 0 or extent == Extent(0):
            return Product(0)
        if extent.is_constant:
            return Product(self.number * extent.constant, self.factors)
        common = gcd(extent.constant, *(factor for _, factor in extent.terms))
        rest = extent.divided(common)
        assert rest is not None
        factors = sorted((*self.factors, rest), key=lambda one: (one.terms, one.constant))
        return Product(self.number * common, tuple(factors))

    def divided(self, other: Product) -> Product | None:
        """Return the quotient; None if it is not a product."""
        left = list(self.factors)
        for factor in other.factors:
            if factor not in left:
                return None
            left.remove(factor)
        if other.number == 0 or self.number % other.number:
            return None
        return Product(self.number // other.number, tuple(left))

    @property
    def extent(self) -> Extent | None:
        """Return the product as one extent; None if it has several that are not constant."""
        if len(self.factors) > 1:
            return None
        return self.factors[0] * self.number if self.factors else Extent(self.number)


def pair_reshaped_axes(
    before: list[Extent], after: list[Extent]
) -> list[tuple[list[int], list[int]]] | None:
    """Return the axes of a shape and of the reshaped one in groups of equal products.

    Each group is as small as can be. Returns None if the products of the whole shapes differ.
    """
    groups: list[tuple[list[int], list[int]]] = []
    left, right = 0, 0
    while left < len(before) or right < len(after):
        ins = [left] if left < len(before) else []
        outs = [right] if right < len(after) else []
        while True:
            one = Product.of(before[index] for index in ins)
            two = Product.of(after[index] for index in outs)
            if one == two:
                break
            more_ins, more_outs = left + len(ins) < len(before), right + len(outs) < len(after)
            if not (more_ins or more_outs):
                return None
            # The side whose product divides the other's is the one that lacks axes
            if more_ins and (two.divided(one) is not None or not more_outs):
                ins.append(left + len(ins))
            elif more_outs and (one.divided(two) is not None or not more_ins):
                outs.append(right + len(outs))
            else:
                ins.append(left + len(ins))
                outs.append(right + len(outs))
        groups.append((ins, outs))
        left, right = left + len(ins), right + len(outs)
    return groups
