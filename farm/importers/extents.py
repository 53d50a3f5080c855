"""Questions about the extents of Relax tensors, of which some are open: known when a model runs."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.sym import Analyzer


def is_open(extent: Any) -> bool:
    """Return whether an extent is known only when the model runs."""
    return not isinstance(extent, int | tirx.IntImm)


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two extents are equal whenever the model runs."""
    return bool(Analyzer().can_prove_equal(one, other))
