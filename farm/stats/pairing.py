"""Whether one build is slower than another that was measured with it in turns: how much, and how surely.

The unit is the round, in which both were measured one right after the other: what disturbs the machine for longer than a moment disturbs
both, and leaves their ratio alone. The order changes from round to round, so where the builds do not differ, the logarithm of the ratio is
as likely so far above zero as below: Wilcoxon's test. The ratio is the median of the rounds' ratios, its interval lies between two of them.
Most ratios are close to each other and a few far off, where only one of the two was disturbed, and what is surest of such is the median.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farm.stats.comparing import CONFIDENCE, Change, Comparison, holm, judged
from farm.stats.quantiles import Interval, median_interval
from farm.stats.special import normal_cdf, normal_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

LEAST_ROUNDS = 10  # of fewer, the test cannot be sure
_EXACT_UP_TO = 50  # rounds, as scipy's
_LEAST = 1e-12  # seconds, where a clock saw none
_REACH = 0.05  # of the rounds: how far apart two are looked at for being alike


def compare_in_turns(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], confidence: float = CONFIDENCE) -> list[Comparison]:
    """Each pair of builds (seconds per inference in each round, of the same rounds): is the second slower than the first?

    All tests together raise a false alarm with a probability of at most 1 - `confidence`.
    """
    logs = [_log_ratios(first, second) for first, second in pairs]
    tested = [index for index, values in enumerate(logs) if len(values) >= LEAST_ROUNDS]
    corrected = dict(zip(tested, holm([_p(logs[index]) for index in tested]), strict=True))
    found = []
    for index, values in enumerate(logs):
        if index in corrected:
            ratio, interval = _location(values, 1 - (1 - confidence) / len(tested))
            found.append(judged(ratio, interval, corrected[index], confidence, "measure longer"))
        else:
            few = f"cannot tell: {len(values)} rounds are too few, {LEAST_ROUNDS} are needed"
            found.append(Comparison(math.nan, None, None, Change.UNSURE, few))
    return found


def ratio_in_turns(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, Interval]:
    """The ratio, second over first, and its interval. Where rounds that follow each other are alike, it is as much wider as that makes the
    ratio less sure. Raises ValueError where there are no rounds."""
    return _location(_log_ratios(first, second), confidence)


def signed_rank(values: Sequence[float] | Values) -> float:
    """The two-sided p of Wilcoxon's signed rank test that values lie symmetrically about zero; those that are zero are left out. Exact for
    up to 50 values without ties, else by the normal approximation with a correction for ties.

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
        return min(1.0, 2 * sum(_ways(count)[round(largest) :]) / (1 << count))
    variance = count * (count + 1) * (2 * count + 1) / 24 - float((ties**3 - ties).sum()) / 48
    return min(1.0, 2 * (1 - normal_cdf((largest - count * (count + 1) / 4) / math.sqrt(variance))))


def _log_ratios(first: Sequence[float], second: Sequence[float]) -> Values:
    import numpy as np

    one, other = (np.maximum(np.asarray(side, np.float64), _LEAST) for side in (first, second))
    ratios: Values = np.log(other) - np.log(one)
    return ratios


def _location(values: Values, confidence: float) -> tuple[float, Interval]:
    """The ratio and its interval, of log ratios."""
    import numpy as np

    centre = float(np.median(values))
    tail = normal_cdf(normal_quantile((1 - confidence) / 2) * math.sqrt(_alike(np.sign(values - centre))))
    low, high = median_interval(values.tolist(), 1 - 2 * tail)
    return math.exp(centre), (math.exp(low), math.exp(high))


def _p(values: Values) -> float:
    """Wilcoxon's, less sure where rounds that follow each other are alike."""
    import numpy as np

    if not 0 < (p := signed_rank(values)) < 1:
        return p
    apart = values - np.median(values)
    signed_ranks: Values = np.sign(apart) * _ranks(np.abs(apart))[0]
    return 2 * normal_cdf(normal_quantile(p / 2) / math.sqrt(_alike(signed_ranks)))


def _alike(scores: Values) -> float:
    """How many times as large the variance of the scores' mean is as if they were independent, one at the least: by their
    autocorrelations, with Bartlett's weights (Newey and West, Econometrica 55, 1987)."""
    scores = scores - scores.mean()
    if not (total := float(scores @ scores)):
        return 1.0
    reach, found = max(1, round(_REACH * len(scores))), 1.0
    for lag in range(1, reach + 1):
        found += 2 * (1 - lag / (reach + 1)) * float(scores[:-lag] @ scores[lag:]) / total
    return max(1.0, found)


def _ranks(values: Values) -> tuple[Values, Values]:
    """Ranks from 1, the mean of its places for values that are equal; and how many are equal, for each different one."""
    import numpy as np

    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse], counts.astype(np.float64)


@functools.cache
def _ways(count: int) -> tuple[int, ...]:
    """In how many ways the signs of the ranks 1 to `count` make their positive sum 0, 1, 2, ..."""
    ways = [1] + [0] * (count * (count + 1) // 2)
    for rank in range(1, count + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return tuple(ways)
