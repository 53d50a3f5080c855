"""Extents that are unknown until a model runs, as expressions of the batch.

Everything that is chosen while compiling (tiles, threads, the cost of a kernel) is chosen for a
batch of one. The code is correct for every batch, because an open extent is only ever the number
of times that something whole is done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from tvm import tirx
from tvm.sym import Analyzer

Extent: TypeAlias = Any  # an int; a tirx expression if it is open


def is_dynamic(extent: Extent) -> bool:
    """Return whether an extent is known only when the model runs."""
    return not isinstance(extent, int | tirx.IntImm)


def value_at_batch_one(extent: Extent) -> int:
    """Return an extent at a batch of one. Raises TypeError if the batch does not determine it."""
    if not is_dynamic(extent):
        return int(extent)
    analyzer = Analyzer()
    for variable in tirx.analysis.undefined_vars(tirx.Evaluate(extent)):
        analyzer.bind(variable, tirx.const(1, str(variable.ty)))
    return int(analyzer.simplify(extent))


def static_extents_as_ints(extents: Iterable[Extent]) -> list[Extent]:
    """Return the extents as ints, except open ones, which stay expressions."""
    return [extent if is_dynamic(extent) else int(extent) for extent in extents]


def shapes_are_equal(one: Sequence[Extent], other: Sequence[Extent]) -> bool:
    """Return whether two shapes are equal for every batch."""
    return len(one) == len(other) and all(map(_equal, one, other))


def _equal(one: Extent, other: Extent) -> bool:
    if is_dynamic(one) or is_dynamic(other):
        return bool(Analyzer().can_prove_equal(one, other))
    return int(one) == int(other)


def round_up_extent(extent: Extent, unit: int) -> Extent:
    """Return the least multiple of `unit` that is not less than an extent."""
    if unit == 1:
        return extent
    return (extent + unit - 1) // unit * unit


def product_at_batch_one(extents: Iterable[Extent]) -> int:
    """Return the product of extents at a batch of one."""
    return math.prod(map(value_at_batch_one, extents))
