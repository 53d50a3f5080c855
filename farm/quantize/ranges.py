"""Which range of numbers a tensor's 256 integers are to cover, by what was seen of it: histograms, and rules that read them.

minmax         all that was seen
percentile     all but the largest magnitudes, such as 0.01 % of them
kl_divergence  where cutting off loses the least information: S. Migacz, "8-bit Inference with TensorRT", GTC 2017
global_scale   the same step for every tensor, as TVM's relay quantizer had it: 8.0 / 128 by default
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farm.types import Quantize

Array = np.ndarray[Any, Any]
BINS = 2048
_CANDIDATE_STEP = 8  # bins, 0.4 % of the range: from one candidate to the next
_LEAST = 1e-12  # of a probability, so that its logarithm is finite
_LEAST_RANGE = 1e-30  # less is nothing: its steps would be no normal numbers
_BYTE = 255
_HALF = 128  # integers on either side of zero


@dataclass
class Seen:
    """What was seen of a tensor: its least and largest number; then, in a second pass, how its magnitudes are spread up to the largest.

    Zeros are counted apart: every scale has them exactly, so they say nothing about which is best.
    """

    low: float = 0.0
    high: float = 0.0
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.int64))
    zeros: int = 0

    def widen(self, values: Array) -> None:
        """Raises ValueError for NaN and infinity."""
        low, high = float(values.min()), float(values.max())
        if not np.isfinite([low, high]).all():
            raise ValueError("NaN or infinity")
        self.low, self.high = min(self.low, low), max(self.high, high)

    def count(self, values: Array) -> None:
        """Add to the histogram. All values must have been seen by `widen`."""
        if self.largest < _LEAST_RANGE:
            self.zeros += values.size
            return
        magnitudes = np.abs(values[values != 0])
        self.zeros += values.size - magnitudes.size
        bins = np.minimum((magnitudes * (BINS / self.largest)).astype(np.int32), BINS - 1)
        self.counts += np.bincount(bins, minlength=BINS)

    @property
    def largest(self) -> float:
        return max(-self.low, self.high)

    @property
    def signed(self) -> bool:
        return self.low < 0


def needs_histogram(settings: Quantize) -> bool:
    return settings.calibration in ("kl_divergence", "percentile")


def scale_of(seen: Seen, settings: Quantize) -> tuple[float, int]:
    """Scale and zero point of uint8 for a tensor."""
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


def percentile_bound(seen: Seen, percentile: float) -> float:
    """The magnitude that so many per cent of the numbers do not exceed."""
    wanted = (seen.zeros + seen.counts.sum()) * percentile / 100
    within = seen.zeros + np.cumsum(seen.counts)
    return float(seen.largest * (min(int(np.searchsorted(within, wanted)), BINS - 1) + 1) / BINS)


def divergence_bound(seen: Seen) -> float:
    """The magnitude to cut off at: the histogram up to there differs least, by the Kullback-Leibler divergence, from what is left of it.

    A tensor of one sign has 256 integers for its magnitudes, others 128.
    """
    if not seen.counts.any():
        return seen.largest
    levels = _HALF if seen.signed and seen.high > 0 else 2 * _HALF
    candidates = range(levels, BINS + 1, _CANDIDATE_STEP)
    best = min(candidates, key=lambda kept: _divergence(seen.counts, kept, levels))
    return seen.largest * best / BINS


def _divergence(counts: Array, kept: int, levels: int) -> float:
    """Between the first `kept` bins, the last of which takes what is cut off, and what as many integers as `levels` make of them."""
    inside = counts[:kept].astype(np.float64)
    ours = inside.copy()
    ours[-1] += counts[kept:].sum()
    starts = np.arange(levels) * kept // levels
    filled = inside > 0
    sums, occupied = np.add.reduceat(inside, starts), np.add.reduceat(filled.astype(np.float64), starts)
    each = np.divide(sums, occupied, out=np.zeros(levels), where=occupied > 0)
    theirs = np.repeat(each, np.diff(np.append(starts, kept))) * filled
    if not theirs.any():
        return float("inf")
    ours, theirs = ours / ours.sum(), np.maximum(theirs / theirs.sum(), _LEAST)
    return float(np.sum(ours[ours > 0] * np.log(ours[ours > 0] / theirs[ours > 0])))


def weight_scales(weight: Array, axis: int, settings: Quantize) -> Array:
    """The scales of an int8 weight: one for each of an axis, or one for all; of float32."""
    others = tuple(place for place in range(weight.ndim) if place != axis)
    largest = np.abs(weight).max(others if settings.per_channel else None).astype(np.float64)
    scale = largest / (_HALF - 1)
    if settings.weight_scale == "power2":
        scale = 2.0 ** np.ceil(np.log2(np.where(scale > 0, scale, 1.0)))
    return np.asarray(np.where(largest > 0, scale, 1.0), np.float32)


def quantized_weight(weight: Array, scales: Array, axis: int) -> Array:
    """A weight as int8, from -127 to 127."""
    shape = [-1 if place == axis else 1 for place in range(weight.ndim)] if scales.ndim else []
    steps = np.rint(weight.astype(np.float64) / scales.reshape(shape))
    return np.clip(steps, -(_HALF - 1), _HALF - 1).astype(np.int8)
