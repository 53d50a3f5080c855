"""Extents that are open until a model runs: those of its batch, as expressions of a variable.

Whatever must be chosen while compiling (tiles, threads, the cost of a kernel) is chosen as for a batch of one. The code is right for every
batch all the same: what is open is only ever the number of times that something whole is done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from tvm import tirx
from tvm.sym import Analyzer

Extent: TypeAlias = Any  # an int, or where it is open a tirx expression


def is_open(extent: Extent) -> bool:
    """Whether an extent is known only when the model runs."""
    return not isinstance(extent, int | tirx.IntImm)


def at_one(extent: Extent) -> int:
    """An extent at a batch of one. Raises TypeError where a batch does not settle it."""
    if not is_open(extent):
        return int(extent)
    analyzer = Analyzer()
    for variable in tirx.analysis.undefined_vars(tirx.Evaluate(extent)):
        analyzer.bind(variable, tirx.const(1, str(variable.ty)))
    return int(analyzer.simplify(extent))


def plain(extents: Iterable[Extent]) -> list[Extent]:
    """Extents as numbers, the open ones as they are."""
    return [extent if is_open(extent) else int(extent) for extent in extents]


def same(one: Sequence[Extent], other: Sequence[Extent]) -> bool:
    """Whether two shapes are the same for every batch."""
    return len(one) == len(other) and all(map(_equal, one, other))


def _equal(one: Extent, other: Extent) -> bool:
    if is_open(one) or is_open(other):
        return bool(Analyzer().can_prove_equal(one, other))
    return int(one) == int(other)


def covering(extent: Extent, unit: int) -> Extent:
    """The least multiple of `unit` that is not less than an extent."""
    if unit == 1:
        return extent
    return (extent + unit - 1) // unit * unit


def product_at_one(extents: Iterable[Extent]) -> int:
    return math.prod(map(at_one, extents))
