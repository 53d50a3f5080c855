"""How far two answers are apart, and how sure a share of right ones is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farm.types import Agreement

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def agreement(outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]], tolerance: float) -> Agreement:
    """How far outputs are from the reference's, the worst over all outputs. Any shapes; never raises.

    An output is right when its largest absolute difference is at most `tolerance * max(1, max|reference|)`: absolute for
    values up to one, relative to the largest beyond. Integers must be equal. A missing output, another shape or dtype,
    and NaN or infinity on one side only have an infinite difference; the same NaN or infinity on both sides has none.
    """
    if not reference or len(outputs) != len(reference):
        return Agreement(math.inf, -math.inf, None, False)
    pairs = [_compare(ours, theirs, tolerance) for ours, theirs in zip(outputs, reference, strict=True)]
    return Agreement(
        max_abs=max(max_abs for max_abs, _, _ in pairs),
        snr_db=min(snr_db for _, snr_db, _ in pairs),
        same_top1=_same_top1(outputs, reference),
        right=all(right for _, _, right in pairs),
    )


def _compare(ours: NDArray[Any], theirs: NDArray[Any], tolerance: float) -> tuple[float, float, bool]:
    """Largest absolute difference, signal-to-noise ratio in dB, and whether it is right, of one output."""
    import numpy as np

    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return math.inf, -math.inf, False
    if theirs.size == 0:
        return 0.0, math.inf, True
    if theirs.dtype.kind in "biu":
        distance = _integer_distance(ours, theirs)
        signal, bar = np.abs(theirs.astype(np.float64)), 0.0
    else:
        try:
            wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
            a, b = ours.astype(wide), theirs.astype(wide)
        except (TypeError, ValueError):  # strings and records
            equal = ours.tobytes() == theirs.tobytes()
            return (0.0, math.inf, True) if equal else (math.inf, -math.inf, False)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.where(same, 0.0, np.abs(a - b))
            signal = np.where(np.isfinite(b), np.abs(b), 0.0)
        distance[np.isnan(distance)] = np.inf
        bar = tolerance * max(1.0, float(signal.max()))
    max_abs = float(distance.max())
    return max_abs, _snr_db(signal, distance), math.isfinite(max_abs) and max_abs <= bar


def _integer_distance(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.float64]:
    """|ours - theirs|, exact up to the last conversion: differences of 64-bit integers wrap, and are right as unsigned ones."""
    import numpy as np

    wide = np.uint64 if theirs.dtype.kind == "u" else np.int64
    a, b = ours.astype(wide), theirs.astype(wide)
    with np.errstate(over="ignore"):
        distance = np.where(a > b, a - b, b - a)
    return distance.astype(np.uint64, casting="unsafe").astype(np.float64)


def _snr_db(signal: NDArray[np.float64], noise: NDArray[np.float64]) -> float:
    if not noise.any():
        return math.inf
    if not math.isfinite(noise.max()) or not signal.any():
        return -math.inf
    return 20.0 * (_log10_norm(signal) - _log10_norm(noise))


def _log10_norm(values: NDArray[np.float64]) -> float:
    """log10 of the Euclidean norm of magnitudes, scaled so that squares neither overflow nor vanish."""
    import numpy as np

    largest = float(values.max())
    scaled = values / largest
    return math.log10(largest) + math.log10(float(np.sum(scaled * scaled))) / 2


def _same_top1(outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]]) -> bool | None:
    """Whether every row of the first matrix of scores (rows x classes) has its largest element in the same place."""
    for ours, theirs in zip(outputs, reference, strict=True):
        if theirs.ndim == 2 and theirs.shape[1] > 1 and theirs.shape[0] > 0 and theirs.dtype.kind in "fiu":
            return ours.shape == theirs.shape and ours.dtype == theirs.dtype and bool((ours.argmax(1) == theirs.argmax(1)).all())
    return None


def wilson_interval(correct: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The interval for a proportion, as fractions; 95 % confidence by default, (0, 1) when nothing was tried.

    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    if not 0 <= correct <= total:
        raise ValueError(f"{correct} of {total}")
    if total == 0:
        return 0.0, 1.0
    p, z2 = correct / total, z * z
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = z / (1 + z2 / total) * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total))
    return max(0.0, centre - half), min(1.0, centre + half)
