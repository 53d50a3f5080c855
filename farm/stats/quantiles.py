"""Percentiles of latencies, their intervals, and the sample counts that they require.

Successive latencies are correlated, so n of them carry less information than n independent ones:
intervals use `effective_sample_size` instead of n.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from farm.errors import DeviceError
from farm.stats.probability_distributions import binomial_cdf, binomial_quantile
from farm.types import Latency

# The smallest sample count whose second largest sample is at or above the percentile with 99 %
# confidence: the smallest n with p^n + n (1 - p) p^(n-1) <= 0.01. MLPerf's early stopping allows a
# percentile from the same count on.
# https://github.com/mlcommons/inference/blob/master/loadgen/early_stopping.cc
P90_COUNT = 64
P95_COUNT = 130
P99_COUNT = 662

CONFIDENCE = 0.95  # confidence of displayed intervals
EARLY_CONFIDENCE = 0.99  # confidence of MLPerf's early stopping
ROUNDS = 10
_LEAST_ROUNDS = 5

Interval = tuple[float, float]


def summarize_latency(seconds: Sequence[float], block: int = 1) -> Latency:
    """Summarise seconds per inference.

    Quantiles interpolate linearly between samples (numpy's default method). If samples are means of
    a `block` of inferences, slow inferences are hidden in the means: then no percentile except the
    median is stated. Raises DeviceError if there are no samples, or if one is negative or not
    finite: no clock gives such times.
    """
    if not seconds or not all(math.isfinite(s) and s >= 0 for s in seconds):
        why = f"{len(seconds)} samples" + (
            ", of which one is negative or no number: its clock jumped" if seconds else ""
        )
        raise DeviceError("the device reported no usable times", why, "")
    ordered = sorted(1e3 * s for s in seconds)
    effective = effective_sample_size(seconds)

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
        p90_early_ms=early_stopping_estimate(ordered, 0.90) if block == 1 else None,
        block=block,
    )


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the q-quantile of sorted values by linear interpolation."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def relative_iqr(latency: Latency) -> float:
    """Return the interquartile range over the median; inf if the median is 0.

    The median is 0 if the clock is too coarse for the inference.
    """
    return latency.iqr_ms / latency.p50_ms if latency.p50_ms > 0 else math.inf


def quantile_interval(
    ordered: Sequence[float], q: float, confidence: float = CONFIDENCE, effective: int | None = None
) -> Interval | None:
    """Return the distribution-free interval for the q-quantile; None if there are too few samples.

    The interval lies between two of the sorted samples. The number of samples below the quantile is
    binomial. `effective` is the number of independent samples, by default all. Conover, "Practical
    Nonparametric Statistics", 3.2.
    """
    count = len(ordered)
    tries = effective or count
    tail = (1 - confidence) / 2
    below = binomial_quantile(tail, tries, q) - 1
    above = binomial_quantile(1 - tail, tries, q)
    low, high = math.floor(below * count / tries), math.ceil(above * count / tries)
    return (ordered[low], ordered[high]) if below >= 0 and above < tries and high < count else None


def split_into_rounds(seconds: Sequence[float]) -> list[Sequence[float]]:
    """Return the samples, in order of time, cut into rounds of (nearly) equal length.

    There are ten rounds; with fewer than 100 samples, fewer rounds of at least ten samples, but at
    least five rounds. There are none for fewer than five samples. Rounds that are long compared
    with the disturbances are practically independent; single samples are not.
    """
    count = len(seconds)
    if count < _LEAST_ROUNDS:
        return []
    number = max(_LEAST_ROUNDS, min(ROUNDS, count // 10))
    ends = [round(index * count / number) for index in range(number + 1)]
    return [seconds[begin:end] for begin, end in itertools.pairwise(ends)]


def effective_sample_size(seconds: Sequence[float]) -> int:
    """Return the number of independent samples that would locate the median equally well.

    The shares of samples below the median vary more from round to round than those of independent
    samples do; the sample count is divided by the ratio of the two variances.
    """
    parts = split_into_rounds(seconds)
    if not parts:
        return len(seconds)
    middle = statistics.median(seconds)
    shares = [
        (sum(s < middle for s in part) + sum(s == middle for s in part) / 2) / len(part)
        for part in parts
    ]
    independent = 0.25 * len(parts) / len(seconds)  # variance of a share of independent samples
    excess = max(1.0, statistics.variance(shares) / independent)
    return max(1, round(len(seconds) / excess))


def early_stopping_estimate(
    ordered: Sequence[float], q: float, confidence: float = EARLY_CONFIDENCE
) -> float | None:
    """Return MLPerf's early-stopping estimate of the q-quantile; None for too few samples.

    It is the smallest sample that is at or above the quantile with this confidence: the t-th
    largest sample, with t the largest number of samples that may exceed the quantile, see
    `minimum_query_count`. This is the rule of MLPerf's SingleStream scenario,
    https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc
    """
    count = len(ordered)
    if count < minimum_query_count(1, q, confidence):
        return None
    low, high = 1, count  # the largest t known to hold, the smallest known not to
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if binomial_cdf(middle, count, 1 - q) < 1 - confidence else (low, middle)
        )
    return ordered[count - low]


def minimum_query_count(over: int, q: float, confidence: float = EARLY_CONFIDENCE) -> int:
    """Return the fewest queries that show the q-quantile if `over` of them exceed it.

    `confidence` is that of the statement that the quantile is at most the slowest of the other
    queries.
    """
    low, high = over + 1, 2 * (over + 1)
    while binomial_cdf(over, high, 1 - q) >= 1 - confidence:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if binomial_cdf(over, middle, 1 - q) < 1 - confidence
            else (middle + 1, high)
        )
    return low


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return a distribution-free interval for the median, between order statistics.

    Its confidence is at least `confidence`. The number of values below the median is binomial with
    p = 1/2. With too few values, the interval reaches from the smallest to the largest. Raises
    ValueError for no values. David and Nagaraja, "Order Statistics", 3rd edition, section 7.1.
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
