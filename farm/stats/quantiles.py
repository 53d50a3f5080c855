"""Percentiles of latencies, how sure they are, and from how many samples on they may be stated at all.

Latencies that follow each other are alike, so that n of them say less than n independent ones would: intervals count them as
`effective_count` does.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from farm.errors import DeviceError
from farm.stats.special import binomial_cdf, binomial_quantile
from farm.types import Latency

# The fewest samples of which the second largest is at or above the percentile with 99 % confidence: the smallest n with
# p^n + n (1 - p) p^(n-1) <= 0.01. It is where MLPerf's early stopping allows the percentile to be stated at all.
# https://github.com/mlcommons/inference/blob/master/loadgen/early_stopping.cc
P90_COUNT = 64
P95_COUNT = 130
P99_COUNT = 662

CONFIDENCE = 0.95  # of intervals that are shown
EARLY_CONFIDENCE = 0.99  # of MLPerf's early stopping
ROUNDS = 10
_LEAST_ROUNDS = 5

Interval = tuple[float, float]


def latency(seconds: Sequence[float], block: int = 1) -> Latency:
    """Summarise seconds per inference. Quantiles interpolate linearly between samples (numpy's default method).

    A sample that is the mean of a `block` of inferences hides the slow ones among them: then no percentile but the median is stated.
    Raises DeviceError when there are no samples or one is negative or no number: no clock gives such times.
    """
    if not seconds or not all(math.isfinite(s) and s >= 0 for s in seconds):
        why = f"{len(seconds)} samples" + (", of which one is negative or no number: its clock jumped" if seconds else "")
        raise DeviceError("the device reported no usable times", why, "")
    ordered = sorted(1e3 * s for s in seconds)
    effective = effective_count(seconds)

    def stated(q: float, least: int) -> tuple[float | None, Interval | None]:
        if len(ordered) < least or block > 1:
            return None, None
        return quantile(ordered, q), quantile_interval(ordered, q, effective=effective)

    (p90, p90_interval), (p95, p95_interval), (p99, p99_interval) = (
        stated(0.90, P90_COUNT),
        stated(0.95, P95_COUNT),
        stated(0.99, P99_COUNT),
    )
    return Latency(
        count=len(ordered),
        minimum_ms=ordered[0],
        p50_ms=quantile(ordered, 0.5),
        mean_ms=statistics.fmean(ordered),
        iqr_ms=quantile(ordered, 0.75) - quantile(ordered, 0.25),
        p90_ms=p90,
        p99_ms=p99,
        p95_ms=p95,
        p50_interval_ms=quantile_interval(ordered, 0.5, effective=effective),
        p90_interval_ms=p90_interval,
        p95_interval_ms=p95_interval,
        p99_interval_ms=p99_interval,
        p90_early_ms=early_stopping(ordered, 0.90) if block == 1 else None,
        block=block,
    )


def quantile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def spread(latency: Latency) -> float:
    """Interquartile range over median; inf where the clock could not see the inference at all."""
    return latency.iqr_ms / latency.p50_ms if latency.p50_ms > 0 else math.inf


def quantile_interval(ordered: Sequence[float], q: float, confidence: float = CONFIDENCE, effective: int | None = None) -> Interval | None:
    """The interval for the q-quantile between two of the sorted samples, whatever their distribution; None where there are too few.

    How many samples are below the quantile is binomial; `effective` of them count as independent, all by default.
    Conover, "Practical Nonparametric Statistics", 3.2.
    """
    count = len(ordered)
    tries = effective or count
    tail = (1 - confidence) / 2
    below = binomial_quantile(tail, tries, q) - 1
    above = binomial_quantile(1 - tail, tries, q)
    low, high = math.floor(below * count / tries), math.ceil(above * count / tries)
    return (ordered[low], ordered[high]) if below >= 0 and above < tries and high < count else None


def rounds(seconds: Sequence[float]) -> list[Sequence[float]]:
    """The samples in order of time, cut into rounds of (nearly) equal length: ten, or fewer of at least ten samples, but five at the least.

    Rounds that are long against what disturbs samples in a row are as good as independent, where single samples are not. None of fewer
    than five samples.
    """
    count = len(seconds)
    if count < _LEAST_ROUNDS:
        return []
    number = max(_LEAST_ROUNDS, min(ROUNDS, count // 10))
    ends = [round(index * count / number) for index in range(number + 1)]
    return [seconds[begin:end] for begin, end in itertools.pairwise(ends)]


def effective_count(seconds: Sequence[float]) -> int:
    """How many independent samples would place the median as surely: the shares of samples below it vary more from round to round than
    those of independent samples do, by this factor."""
    parts = rounds(seconds)
    if not parts:
        return len(seconds)
    middle = statistics.median(seconds)
    shares = [(sum(s < middle for s in part) + sum(s == middle for s in part) / 2) / len(part) for part in parts]
    independent = 0.25 * len(parts) / len(seconds)  # the variance of such a share
    excess = max(1.0, statistics.variance(shares) / independent)
    return max(1, round(len(seconds) / excess))


def early_stopping(ordered: Sequence[float], q: float, confidence: float = EARLY_CONFIDENCE) -> float | None:
    """MLPerf's estimate of the q-quantile: the smallest sample that is at or above it with this confidence; None for too few samples.

    It is the t-th largest, where t is the most samples that may be over it: see `least_queries`. The rule of SingleStream,
    https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc
    """
    count = len(ordered)
    if count < least_queries(1, q, confidence):
        return None
    low, high = 1, count  # the last t that holds, the first that does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_cdf(middle, count, 1 - q) < 1 - confidence else (low, middle)
    return ordered[count - low]


def least_queries(over: int, q: float, confidence: float = EARLY_CONFIDENCE) -> int:
    """The fewest queries of which `over` may take longer than the q-quantile, for the others to show it with this confidence."""
    low, high = over + 1, 2 * (over + 1)
    while binomial_cdf(over, high, 1 - q) >= 1 - confidence:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if binomial_cdf(over, middle, 1 - q) < 1 - confidence else (middle + 1, high)
    return low


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
