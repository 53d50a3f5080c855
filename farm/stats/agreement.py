"""Agreement of an output with the reference, and the Wilson interval of a proportion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from farm.stats.tied_rows import reorder_tied_rows
from farm.types import Agreement, OutputErrorLimits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Relative differences count only for values of at least this fraction of the largest value.
_COUNTS = 0.01


def compare_outputs_with_reference(
    outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]], limits: OutputErrorLimits
) -> Agreement:
    """Return the agreement of outputs with the reference's: the worst over all outputs.

    The outputs may have any shape; never raises. An output is right if it is within all limits. The
    limit of the absolute difference is `max_abs * max(1, max|reference|)`; with it, integers must
    be equal. A missing output, another shape or dtype, and NaN or infinity on one side only have an
    infinite difference and are never right; the same NaN or infinity on both sides has difference
    0. Rows that are sorted by a key may be in another order where their keys are equal but for
    rounding (see `reorder_tied_rows`).
    """
    if not reference or len(outputs) != len(reference):
        return Agreement(math.inf, -math.inf, None, False)
    found = _compare_all(outputs, reference, limits)
    if limits.max_abs is not None and not all(one.within for one in found):
        reordered = reorder_tied_rows(outputs, reference, limits.max_abs)
        again = _compare_all(reordered, reference, limits)
        if all(one.within for one in again):
            outputs, found = reordered, again
    top1, top5 = _shares(outputs, reference)
    result = Agreement(
        max_abs=max(one.max_abs for one in found),
        snr_db=min(one.snr_db for one in found),
        same_top1=None if top1 is None else top1 == 1,
        right=True,
        max_rel=max(one.max_rel for one in found),
        cosine=min(one.cosine for one in found),
        top1=top1,
        top5=top5,
    )
    why = _beyond(result, limits)
    right = not why and math.isfinite(result.max_abs) and all(one.within for one in found)
    return replace(result, right=right, why=why if math.isfinite(result.max_abs) else "")


def _compare_all(
    outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]], limits: OutputErrorLimits
) -> list[_Compared]:
    return [
        _compare(ours, theirs, limits.max_abs)
        for ours, theirs in zip(outputs, reference, strict=True)
    ]


def _beyond(found: Agreement, limits: OutputErrorLimits) -> str:
    """Return which limit other than the absolute one is exceeded, in words; empty if none is."""
    if limits.min_snr_db is not None and found.snr_db < limits.min_snr_db:
        return (
            f"its signal to noise is {found.snr_db:.1f} dB, and {limits.min_snr_db:g} dB are the "
            "limit"
        )
    if (
        limits.min_cosine is not None
        and found.cosine is not None
        and found.cosine < limits.min_cosine
    ):
        return (
            f"its cosine with the reference is {found.cosine:.4f}, and {limits.min_cosine:g} is "
            "the limit"
        )
    if limits.same_top1 and found.same_top1 is False:
        return (
            f"its best class is the reference's in {100 * (found.top1 or 0):.0f} % of the rows only"
        )
    return ""


@dataclass(frozen=True, slots=True)
class _Compared:
    """The comparison of one output: its difference, and whether it is within the absolute limit."""

    max_abs: float
    max_rel: float
    snr_db: float
    cosine: float
    within: bool


_EQUAL = _Compared(0.0, 0.0, math.inf, 1.0, True)
_OTHER = _Compared(math.inf, math.inf, -math.inf, 0.0, False)


def _compare(ours: NDArray[Any], theirs: NDArray[Any], most: float | None) -> _Compared:
    import numpy as np

    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return _OTHER
    if theirs.size == 0:
        return _EQUAL
    if theirs.dtype.kind in "biu":
        distance = _integer_distance(ours, theirs)
        signal, bar = np.abs(theirs.astype(np.float64)), 0.0
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
    else:
        try:
            wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
            a, b = ours.astype(wide), theirs.astype(wide)
        except (TypeError, ValueError):  # strings and records
            return _EQUAL if ours.tobytes() == theirs.tobytes() else _OTHER
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.where(same, 0.0, np.abs(a - b))
            signal = np.where(np.isfinite(b), np.abs(b), 0.0)
        distance[np.isnan(distance)] = np.inf
        bar = (most or 0.0) * max(1.0, float(signal.max()))
    max_abs = float(distance.max())
    within = math.isfinite(max_abs) and (most is None or max_abs <= bar)
    return _Compared(
        max_abs,
        _relative(distance, signal),
        _snr_db(signal, distance),
        _cosine(a, b, max_abs),
        within,
    )


def _relative(distance: NDArray[np.float64], signal: NDArray[np.float64]) -> float:
    """Return the largest relative difference from the reference.

    It is taken over the reference's values of at least 1 % of its largest magnitude.
    """
    import numpy as np

    large = (signal >= _COUNTS * signal.max()) & (signal > 0)
    if not large.any():
        return 0.0 if not distance.any() else math.inf
    with np.errstate(over="ignore"):
        return float((distance[large] / signal[large]).max())


def _cosine(ours: NDArray[Any], theirs: NDArray[Any], max_abs: float) -> float:
    """Return the cosine of the angle between two outputs over their finite values."""
    import numpy as np

    if max_abs == 0:
        return 1.0
    if not math.isfinite(max_abs):
        return 0.0
    finite = np.isfinite(ours) & np.isfinite(theirs)
    # scaled so that squares stay in range
    a, b = (
        values[finite] / (np.abs(values[finite]).max(initial=0) or 1.0) for values in (ours, theirs)
    )
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(np.vdot(b, a).real) / norms if norms else 0.0


def _integer_distance(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.float64]:
    """Return |ours - theirs|, exact up to the last conversion.

    Differences of 64-bit integers wrap around, and are correct when read as unsigned integers.
    """
    import numpy as np

    wide = np.uint64 if theirs.dtype.kind == "u" else np.int64
    a, b = ours.astype(wide), theirs.astype(wide)
    with np.errstate(over="ignore"):
        distance = np.where(a > b, a - b, b - a)
    return distance.astype(np.uint64, casting="unsafe").astype(np.float64)


def _snr_db(signal: NDArray[np.float64], noise: NDArray[np.float64]) -> float:
    """Return the signal-to-noise ratio in decibels; infinity without noise."""
    if not noise.any():
        return math.inf
    if not math.isfinite(noise.max()) or not signal.any():
        return -math.inf
    return 20.0 * (_log10_norm(signal) - _log10_norm(noise))


def _log10_norm(values: NDArray[np.float64]) -> float:
    """Return log10 of the Euclidean norm, scaled so that squares neither overflow nor underflow."""
    import numpy as np

    largest = float(values.max())
    scaled = values / largest
    return math.log10(largest) + math.log10(float(np.sum(scaled * scaled))) / 2


def _shares(
    outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]]
) -> tuple[float | None, float | None]:
    """Return the top-1 and top-5 agreement of the first output that is a matrix of class scores.

    The matrix is rows x classes. Top-1 is the share of rows with the same best class, top-5 the
    share of rows whose reference class is among the five best. Both are None if no output is such a
    matrix.
    """
    import numpy as np

    for ours, theirs in zip(outputs, reference, strict=True):
        if (
            theirs.ndim == 2
            and theirs.shape[1] > 1
            and theirs.shape[0] > 0
            and theirs.dtype.kind in "fiu"
        ):
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                return 0.0, 0.0
            wanted = theirs.argmax(1)
            score = np.take_along_axis(ours, wanted[:, None], 1)
            # ties: lower index first
            before = (ours > score) | (
                (ours == score) & (np.arange(ours.shape[1]) < wanted[:, None])
            )
            # a NaN score is never among the best
            among = (before.sum(1) < 5) & (score[:, 0] == score[:, 0])
            return float((ours.argmax(1) == wanted).mean()), float(among.mean())
    return None, None


def wilson_interval(correct: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion, as fractions; (0, 1) if `total` is 0.

    The default `z` gives 95 % confidence. Raises ValueError unless 0 <= correct <= total.

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
