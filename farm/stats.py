"""Numbers from numbers: percentiles, how far two answers are apart, intervals, and what a run is worth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farm.errors import DeviceError
from farm.types import Agreement, Latency, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The fewest samples of which the second largest is at or above the percentile with 99 % confidence: the smallest n with
# p^n + n (1 - p) p^(n-1) <= 0.01. It is where MLPerf's early stopping allows the percentile to be stated at all.
# https://github.com/mlcommons/inference/blob/master/loadgen/early_stopping.cc
P90_COUNT = 64
P99_COUNT = 662

JUDGED_COUNT = 10  # hyperfine's least number of runs
HELD_UP_ABOVE = 0.05  # share of the time of measuring
NOISY_ABOVE = 0.10  # IQR over median, at which torch.utils.benchmark goes on measuring


def latency(seconds: Sequence[float]) -> Latency:
    """Summarise seconds per inference. Quantiles interpolate linearly between samples (numpy's default method).

    Raises DeviceError when there are no samples or one is negative or no number: no clock gives such times.
    """
    if not seconds or not all(math.isfinite(s) and s >= 0 for s in seconds):
        raise DeviceError("the device reported no usable times", f"{len(seconds)} samples, of which one is negative or no number", "")
    ms = sorted(1e3 * s for s in seconds)
    return Latency(
        count=len(ms),
        minimum_ms=ms[0],
        p50_ms=_quantile(ms, 0.5),
        mean_ms=statistics.fmean(ms),
        iqr_ms=_quantile(ms, 0.75) - _quantile(ms, 0.25),
        p90_ms=_quantile(ms, 0.9) if len(ms) >= P90_COUNT else None,
        p99_ms=_quantile(ms, 0.99) if len(ms) >= P99_COUNT else None,
    )


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def spread(latency: Latency) -> float:
    """Interquartile range over median; inf where the clock could not see the inference at all."""
    return latency.iqr_ms / latency.p50_ms if latency.p50_ms > 0 else math.inf


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


def verdict(device_emulated: bool, agreement: Agreement, latency: Latency | None, held_up: float | None = None) -> tuple[Verdict, str]:
    """What a run is worth, and why in words. A wrong answer outweighs all; a number from an emulator is none.

    `held_up` is the share of the time in which other work had the CPU: steady other work gives steady numbers that are too large.
    """
    if not agreement.right:
        if math.isinf(agreement.max_abs):
            return Verdict.WRONG, "the answer has another shape or dtype than the reference's, or NaN or infinity where that has none"
        return Verdict.WRONG, f"the answer is off by up to {agreement.max_abs:.2g}, more than the tolerance"
    if device_emulated:
        return Verdict.EMULATED, "latency under emulation is no benchmark"
    if latency is None:
        return Verdict.RIGHT, "the answer is right; it was not timed"
    if latency.count == 1:
        return Verdict.NOISY, "1 sample: an answer, not a benchmark"
    if latency.count < JUDGED_COUNT:
        return Verdict.NOISY, f"{latency.count} samples: too few to judge, {JUDGED_COUNT} are needed"
    if latency.p50_ms == 0:
        return Verdict.NOISY, "the median is 0 ms: the device's clock is too coarse for this model"
    figure = f"IQR {100 * spread(latency):.1f} % of the median"
    if spread(latency) > NOISY_ABOVE:
        return Verdict.NOISY, f"{figure}, above {100 * NOISY_ABOVE:.0f} %, {latency.count} samples"
    if held_up is not None and held_up > HELD_UP_ABOVE:
        return Verdict.NOISY, f"other work had the CPU for {100 * held_up:.0f} % of the time"
    return Verdict.STABLE, f"{figure}, {latency.count} samples"


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """An interval for the median, whatever the distribution: between order statistics, at least of the confidence asked for.

    The number of values below the median is binomial with p = 1/2. With too few values, it is from the least to the largest.
    David and Nagaraja, "Order Statistics", 3rd edition, section 7.1.
    """
    if not values:
        raise ValueError("no values")
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < count // 2 and tail + math.comb(count, rank) / 2**count <= (1 - confidence) / 2:
        tail += math.comb(count, rank) / 2**count
        rank += 1
    rank = max(1, rank)
    return ordered[rank - 1], ordered[count - rank]


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
