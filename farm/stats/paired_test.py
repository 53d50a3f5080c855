"""Test of whether one of two builds that were measured interleaved is slower, and by how much.

The unit is the round, in which both builds were measured directly one after the other: a
disturbance that lasts longer than a round affects both and leaves their ratio unchanged. The order
changes from round to round, so if the builds do not differ, the logarithm of the ratio is symmetric
about zero: Wilcoxon's test. The ratio is the median of the rounds' ratios, and its interval lies
between two of them. Most ratios are close to each other and a few are outliers, because only one of
the two builds was disturbed; for such data the median has the smallest uncertainty.

Effects that last as long as the builds are loaded, such as their placement in memory, are the same
in all rounds of a load, and no number of rounds reveals them. An interval therefore reaches at
least from the smallest to the largest median of the loads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farm.stats.compare_runs import CONFIDENCE, ChangeVerdict, Comparison, conclude, holm_correction
from farm.stats.probability_distributions import normal_cdf, normal_quantile
from farm.stats.quantiles import Interval, median_interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

LEAST_ROUNDS = 10  # with fewer rounds the test cannot reach the confidence
_EXACT_UP_TO = 50  # rounds; the same limit as scipy's
_LEAST = 1e-12  # seconds, in place of times that the clock could not resolve
_REACH = 0.05  # largest lag of the autocorrelation, as a fraction of the rounds


def compare_interleaved_pairs(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    confidence: float = CONFIDENCE,
    loads: Sequence[Sequence[int]] = (),
) -> list[Comparison]:
    """Test, for each pair of builds, whether the second is slower than the first.

    A build is its seconds per inference in each round; both builds of a pair have the same rounds.
    `loads` are, for each pair, the numbers of rounds of its loads, see `Paired`; without it, each
    pair was loaded once. All tests together raise a false alarm with a probability of at most 1 -
    `confidence`.
    """
    logs = [_log_ratios(first, second) for first, second in pairs]
    tested = [index for index, values in enumerate(logs) if len(values) >= LEAST_ROUNDS]
    corrected = dict(
        zip(tested, holm_correction([_p(logs[index]) for index in tested]), strict=True)
    )
    found = []
    for index, values in enumerate(logs):
        if index in corrected:
            ratio, interval = _location(
                values, 1 - (1 - confidence) / len(tested), loads[index] if loads else ()
            )
            found.append(conclude(ratio, interval, corrected[index], confidence, "measure longer"))
        else:
            few = f"cannot tell: {len(values)} rounds are too few, {LEAST_ROUNDS} are needed"
            found.append(Comparison(math.nan, None, None, ChangeVerdict.UNSURE, few))
    return found


def interleaved_ratio_interval(
    first: Sequence[float],
    second: Sequence[float],
    confidence: float = CONFIDENCE,
    loads: Sequence[int] = (),
) -> tuple[float, Interval]:
    """Return the ratio, second over first, and its interval.

    If successive rounds are correlated, the interval is wider accordingly. It contains the medians
    of all loads; `loads` are their numbers of rounds. Raises ValueError if there are no rounds.
    """
    return _location(_log_ratios(first, second), confidence, loads)


def signed_rank_p(values: Sequence[float] | Values, alike: float = 1.0) -> float:
    """Return the two-sided p of Wilcoxon's signed rank test for symmetry about zero.

    Values that are zero are left out. The p is exact for up to 50 values without ties, otherwise by
    the normal approximation with a correction for ties. `alike` is the factor by which the variance
    exceeds that of independent values; if it is not 1, the normal approximation is used as well.

    Wilcoxon, "Individual comparisons by ranking methods", 1945.
    """
    import numpy as np

    given = np.asarray(values, np.float64)
    given = given[given != 0]
    if not (count := len(given)):
        return 1.0
    ranks, ties = _ranks(np.abs(given))
    above = float(ranks[given > 0].sum())
    largest = max(above, count * (count + 1) / 2 - above)
    if count <= _EXACT_UP_TO and len(ties) == count:
        exact = min(1.0, 2 * sum(_ways(count)[round(largest) :]) / (1 << count))
        if alike == 1:
            return exact
        z = -normal_quantile(exact / 2)
    else:
        variance = count * (count + 1) * (2 * count + 1) / 24 - float((ties**3 - ties).sum()) / 48
        z = (largest - count * (count + 1) / 4) / math.sqrt(variance)
    # accurate even for a p so small that 1 - normal_cdf would round to zero
    return 2 * normal_cdf(-z / math.sqrt(alike))


def _log_ratios(first: Sequence[float], second: Sequence[float]) -> Values:
    """Return the logarithms of the rounds' ratios, second over first."""
    import numpy as np

    one, other = (np.maximum(np.asarray(side, np.float64), _LEAST) for side in (first, second))
    ratios: Values = np.log(other) - np.log(one)
    return ratios


def _location(values: Values, confidence: float, loads: Sequence[int]) -> tuple[float, Interval]:
    """Return the ratio and its interval, from log ratios."""
    import numpy as np

    centre = float(np.median(values))
    tail = normal_cdf(
        normal_quantile((1 - confidence) / 2) * math.sqrt(_alike(np.sign(values - centre)))
    )
    low, high = median_interval(values.tolist(), 1 - 2 * tail)
    middles = [
        float(np.median(load)) for load in np.split(values, np.cumsum(loads, dtype=np.int64)[:-1])
    ]
    return math.exp(centre), (math.exp(min(low, *middles)), math.exp(max(high, *middles)))


def _p(values: Values) -> float:
    """Return Wilcoxon's p, increased if successive rounds are correlated."""
    import numpy as np

    apart = values - np.median(values)
    signed_ranks: Values = np.sign(apart) * _ranks(np.abs(apart))[0]
    return signed_rank_p(values, _alike(signed_ranks))


def _alike(scores: Values) -> float:
    """Return the factor, at least 1, by which correlation increases the variance of the mean.

    It uses the scores' autocorrelations with Bartlett's weights (Newey and West, Econometrica 55,
    1987).
    """
    scores = scores - scores.mean()
    if not (total := float(scores @ scores)):
        return 1.0
    reach, found = max(1, round(_REACH * len(scores))), 1.0
    for lag in range(1, reach + 1):
        found += 2 * (1 - lag / (reach + 1)) * float(scores[:-lag] @ scores[lag:]) / total
    return max(1.0, found)


def _ranks(values: Values) -> tuple[Values, Values]:
    """Return the ranks from 1, and the number of equal values for each distinct value.

    Equal values get the mean of their ranks.
    """
    import numpy as np

    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse], counts.astype(np.float64)


@functools.cache
def _ways(count: int) -> tuple[int, ...]:
    """Return the numbers of sign patterns of ranks 1 to `count`, by positive sum 0, 1, ..."""
    ways = [1] + [0] * (count * (count + 1) // 2)
    for rank in range(1, count + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return tuple(ways)
