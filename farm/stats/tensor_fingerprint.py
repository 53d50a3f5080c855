"""Fingerprints that tell whether two tensors hold the same values, in any order of axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farm.types import TensorFingerprint

_WITHIN = 1e-3


def fingerprint(values: NDArray[Any]) -> TensorFingerprint:
    """Return a tensor's fingerprint: statistics that do not depend on the order of its elements."""
    import numpy as np

    from farm.types import TensorFingerprint

    wide = values.astype(np.float64).reshape(-1)
    if not wide.size:
        return TensorFingerprint(0, 0.0, 0.0, 0.0, 0.0)
    return TensorFingerprint(
        wide.size,
        float(np.linalg.norm(wide)),
        float(wide.sum()),
        float(wide.max()),
        float(wide.min()),
    )


def relative_distance(one: TensorFingerprint, other: TensorFingerprint) -> float:
    """Return the relative distance of two fingerprints; infinity if the tensors differ."""
    numbers = (
        one.norm,
        one.total,
        one.largest,
        one.smallest,
        other.norm,
        other.total,
        other.largest,
        other.smallest,
    )
    if one.count != other.count or not all(map(math.isfinite, numbers)):
        return math.inf
    scale = max(one.norm, other.norm) or 1.0
    largest = (
        max(abs(one.largest), abs(one.smallest), abs(other.largest), abs(other.smallest)) or 1.0
    )
    distance = max(
        abs(one.norm - other.norm) / scale,
        abs(one.total - other.total) / (scale * math.sqrt(max(1, one.count))),
        abs(one.largest - other.largest) / largest,
        abs(one.smallest - other.smallest) / largest,
    )
    return distance if distance <= _WITHIN else math.inf
