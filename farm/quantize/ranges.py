"""Choose the range that a tensor's 256 integers cover, from its observed numbers.

    minmax         all observed numbers
    percentile     all but the largest magnitudes, such as 0.01 % of them
    kl_divergence  the cut-off that loses the least information
    global_scale   the same step for every tensor, 8.0 / 128 by default

kl_divergence: S. Migacz, "8-bit Inference with TensorRT", GTC 2017. global_scale: TVM's relay
quantizer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farm.types import QuantizeSettings

Array = np.ndarray[Any, Any]
BINS = 2048
_CANDIDATE_STEP = 8  # bins between candidates, 0.4 % of the range
_LEAST = 1e-12  # least probability, so that its logarithm is finite
_LEAST_RANGE = 1e-30  # a smaller range counts as zero: its steps would not be normal numbers
_BYTE = 255
_HALF = 128  # integers on either side of zero


@dataclass
class ObservedRange:
    """The observed range of a tensor and, after a second pass, the histogram of its magnitudes.

    Zeros are counted separately: every scale represents them exactly, so they do not affect which
    scale is best.
    """

    low: float = 0.0
    high: float = 0.0
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.int64))
    zeros: int = 0

    def widen(self, values: Array) -> None:
        """Extend the range by these values. Raises ValueError for NaN and infinity."""
        low, high = float(values.min()), float(values.max())
        if not np.isfinite([low, high]).all():
            raise ValueError("NaN or infinity")
        self.low, self.high = min(self.low, low), max(self.high, high)

    def count(self, values: Array) -> None:
        """Add values to the histogram. All of them must have been passed to `widen` before."""
        if self.largest < _LEAST_RANGE:
            self.zeros += values.size
            return
        magnitudes = np.abs(values[values != 0])
        self.zeros += values.size - magnitudes.size
        bins = np.minimum((magnitudes * (BINS / self.largest)).astype(np.int32), BINS - 1)
        self.counts += np.bincount(bins, minlength=BINS)

    @property
    def largest(self) -> float:
        """Return the largest magnitude."""
        return max(-self.low, self.high)

    @property
    def signed(self) -> bool:
        """Return True if there are negative numbers."""
        return self.low < 0


def needs_histogram(settings: QuantizeSettings) -> bool:
    """Return True if the calibration method reads histograms."""
    return settings.calibration in ("kl_divergence", "percentile")


def scale_and_zero_point(seen: ObservedRange, settings: QuantizeSettings) -> tuple[float, int]:
    """Return the uint8 scale and zero point of a tensor."""
    if settings.calibration == "global_scale":
        return settings.global_scale / _HALF, _HALF if seen.signed else 0
    bound = seen.largest
    if settings.calibration == "percentile":
        bound = percentile_bound(seen, settings.percentile)
    elif settings.calibration == "kl_divergence":
        bound = divergence_bound(seen)
    low, high = max(seen.low, -bound), min(seen.high, bound)
    scale = float(np.float32((high - low) / _BYTE))
    if high - low < _LEAST_RANGE:
        return 1.0, 0
    return scale, int(np.clip(np.rint(-low / scale), 0, _BYTE))


def percentile_bound(seen: ObservedRange, percentile: float) -> float:
    """Return the magnitude that `percentile` per cent of the numbers do not exceed."""
    wanted = (seen.zeros + seen.counts.sum()) * percentile / 100
    within = seen.zeros + np.cumsum(seen.counts)
    return float(seen.largest * (min(int(np.searchsorted(within, wanted)), BINS - 1) + 1) / BINS)


def divergence_bound(seen: ObservedRange) -> float:
    """Return the magnitude to cut off at, by the least Kullback-Leibler divergence.

    The divergence is that of the quantized histogram from the histogram up to the cut-off. A tensor
    of one sign has 256 integers for its magnitudes, others have 128.
    """
    if not seen.counts.any():
        return seen.largest
    levels = _HALF if seen.signed and seen.high > 0 else 2 * _HALF
    candidates = range(levels, BINS + 1, _CANDIDATE_STEP)
    best = min(candidates, key=lambda kept: _divergence(seen.counts, kept, levels))
    return seen.largest * best / BINS


def _divergence(counts: Array, kept: int, levels: int) -> float:
    """Return the divergence between the first `kept` bins and their form in `levels` integers.

    The last of the bins also holds what is cut off.
    """
    inside = counts[:kept].astype(np.float64)
    ours = inside.copy()
    ours[-1] += counts[kept:].sum()
    starts = np.arange(levels) * kept // levels
    filled = inside > 0
    sums, occupied = (
        np.add.reduceat(inside, starts),
        np.add.reduceat(filled.astype(np.float64), starts),
    )
    each = np.divide(sums, occupied, out=np.zeros(levels), where=occupied > 0)
    theirs = np.repeat(each, np.diff(np.append(starts, kept))) * filled
    if not theirs.any():
        return float("inf")
    ours, theirs = ours / ours.sum(), np.maximum(theirs / theirs.sum(), _LEAST)
    return float(np.sum(ours[ours > 0] * np.log(ours[ours > 0] / theirs[ours > 0])))


def weight_scales(weight: Array, axis: int, settings: QuantizeSettings) -> Array:
    """Return the float32 scales of an int8 weight: one per index of an axis, or a single one."""
    others = tuple(place for place in range(weight.ndim) if place != axis)
    largest = np.abs(weight).max(others if settings.per_channel else None).astype(np.float64)
    scale = largest / (_HALF - 1)
    if settings.weight_scale == "power2":
        scale = 2.0 ** np.ceil(np.log2(np.where(scale > 0, scale, 1.0)))
    return np.asarray(np.where(largest > 0, scale, 1.0), np.float32)


def quantize_weight_by_given_scales(weight: Array, scales: Array, axis: int) -> Array:
    """Return a weight as int8, from -127 to 127."""
    shape = [-1 if place == axis else 1 for place in range(weight.ndim)] if scales.ndim else []
    steps = np.rint(weight.astype(np.float64) / scales.reshape(shape))
    return np.clip(steps, -(_HALF - 1), _HALF - 1).astype(np.int8)
