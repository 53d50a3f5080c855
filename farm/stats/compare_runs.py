"""Test of whether one of two separate runs is slower, by how much and with which confidence.

Successive latencies are correlated (a burst of other work, a changing clock), so single samples are
not independent: treated as such, they show a "significant" difference between almost any two runs
of one program. The unit here is the round, a part of a run (`quantiles.split_into_rounds`). Even
rounds do not show what differs from one run to the next without any change of the program, such as
the placement in memory; differences below FLOOR are therefore never reported as one.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from farm.stats.probability_distributions import normal_cdf, student_quantile
from farm.stats.quantiles import Interval, split_into_rounds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.99
# Difference between runs of one unchanged program. Mytkowicz et al., "Producing wrong data without
# doing anything obviously wrong!", ASPLOS 2009, found up to 8 % from memory layout alone; farm's
# own repeated runs on a quiet core stay within 2 %.
MIN_CHANGE = 0.02
RESAMPLES = 2000
_RESAMPLES_TO_STOP = 200
_SEED = 20090307
_MOST = 4000  # samples of a run that are used
_LEAST = 1e-12  # seconds, in place of times that the clock could not resolve
_EXACT_BELOW = 9  # samples of the smaller side; scipy's limit


class ChangeVerdict(StrEnum):
    """The result of a comparison, for the second run.

    UNSURE: neither a difference nor its absence is shown.
    """

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of two times, second over first, its interval, the test's p, and the conclusion.

    For separate runs (`compare_separate_runs`), `ratio` is the ratio of their medians, and `p` is
    that of the Mann-Whitney test over rounds. For interleaved builds (`compare_in_turns`), it is
    the median of the rounds' ratios, and `p` is that of Wilcoxon's test. With several comparisons
    `p` is corrected for their number, and the interval is wider. `reason` explains the conclusion
    in words.
    """

    ratio: float
    interval: Interval | None
    p: float | None
    change: ChangeVerdict
    reason: str

    def reaches(self, slowdown: float) -> bool:
        """Return whether the second run is slower, by this fraction as far as the data can tell.

        The upper end of the interval must reach 1 + `slowdown`.
        """
        return (
            self.change is ChangeVerdict.SLOWER
            and self.interval is not None
            and self.interval[1] >= 1 + slowdown
        )


def compare_separate_runs(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], confidence: float = CONFIDENCE
) -> list[Comparison]:
    """Test, for each pair of runs, whether the second is slower than the first.

    A run is its seconds per inference, in order of time. All tests together raise a false alarm
    with a probability of at most 1 - `confidence`.
    """
    parts = [(split_into_rounds(first), split_into_rounds(second)) for first, second in pairs]
    tested = [
        index
        for index, (a, b) in enumerate(parts)
        if a and b and all(statistics.median(side) > 0 for side in pairs[index])
    ]
    raw = [
        mann_whitney_p(*([statistics.median(part) for part in side] for side in parts[index]))
        for index in tested
    ]
    corrected = dict(zip(tested, holm_correction(raw), strict=True))
    found = []
    for index, (first, second) in enumerate(pairs):
        if index in corrected:
            level = 1 - (1 - confidence) / len(tested)
            found.append(
                conclude(
                    _ratio(first, second),
                    ratio_interval(first, second, level),
                    corrected[index],
                    confidence,
                )
            )
        else:
            found.append(
                Comparison(
                    _ratio(first, second),
                    None,
                    None,
                    ChangeVerdict.UNSURE,
                    "too few samples to compare, 5 are needed",
                )
            )
    return found


def _ratio(first: Sequence[float], second: Sequence[float]) -> float:
    if not first or not second or statistics.median(first) <= 0:
        return math.nan
    return statistics.median(second) / statistics.median(first)


def conclude(
    ratio: float,
    interval: Interval,
    p: float,
    confidence: float,
    advice: str = "measure longer, or more quietly",
) -> Comparison:
    """Return the conclusion from a ratio, its interval and a test's corrected p."""
    low, high = interval
    certain = p <= 1 - confidence
    between = f"{_percent(low)} to {_percent(high)}"
    if certain and low > 1 + MIN_CHANGE:
        return Comparison(
            ratio, interval, p, ChangeVerdict.SLOWER, f"slower by {_percent(ratio)} ({between})"
        )
    if certain and high < 1 - MIN_CHANGE:
        return Comparison(
            ratio, interval, p, ChangeVerdict.FASTER, f"faster by {_percent(ratio)} ({between})"
        )
    widest = max(high - 1, 1 - low)
    if widest <= 0.05:
        return Comparison(
            ratio,
            interval,
            p,
            ChangeVerdict.SAME,
            f"no difference beyond {100 * max(MIN_CHANGE, widest):.1f} % ({between})",
        )
    return Comparison(ratio, interval, p, ChangeVerdict.UNSURE, f"cannot tell: {between}; {advice}")


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def ratio_interval(
    first: Sequence[float],
    second: Sequence[float],
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the interval for the ratio of medians, second over first, by a bootstrap over rounds.

    The result is deterministic. Because there are few units, the percentiles are taken further out
    than `confidence` alone would require: the expanded percentile interval of Hesterberg, "What
    teachers should know about the bootstrap", The American Statistician 69 (2015), 3.4. The
    interval is at least as wide as if each run's median had the standard error that `_drift`
    estimates.
    """
    import numpy as np

    sides = [split_into_rounds(_thinned(first)), split_into_rounds(_thinned(second))]
    drawn = _drawn((len(sides[1]), len(sides[0])), resamples)
    ratios = np.log(_medians(sides[1], drawn[0])) - np.log(_medians(sides[0], drawn[1]))
    units = min(len(side) for side in sides)
    tail = 1 - normal_cdf(
        math.sqrt(units / (units - 1)) * student_quantile((1 + confidence) / 2, units - 1)
    )
    low, high = np.quantile(ratios, [tail, 1 - tail])
    centre = math.log(_ratio(first, second))
    drift = math.hypot(*map(_drift, sides)) * student_quantile((1 + confidence) / 2, units - 1)
    return math.exp(min(float(low), centre - drift)), math.exp(max(float(high), centre + drift))


def median_relative_standard_error(seconds: Sequence[float]) -> float:
    """Return the relative standard error of a run's median; inf for too few samples.

    It is the larger of two estimates: resampling of rounds, and autocorrelation of rounds
    (`_drift`). It determines how long to measure: two runs with 0.004 each can be told 5 % apart.
    """
    import numpy as np

    if not (parts := split_into_rounds(_thinned(seconds))):
        return math.inf
    resampled = np.log(_medians(parts, *_drawn((len(parts),), _RESAMPLES_TO_STOP)))
    return max(_drift(parts), float(resampled.std()))


def _drift(parts: Sequence[Sequence[float]]) -> float:
    """Return the relative standard error of a run's median, allowing for correlated rounds.

    It uses the rounds' autocovariances up to a third of the run, with Bartlett's weights (Newey and
    West, Econometrica 55, 1987).
    """
    values = [math.log(max(statistics.median(part), _LEAST)) for part in parts]
    mean, count = statistics.fmean(values), len(values)
    reach = max(1, count // 3)
    total = sum((v - mean) ** 2 for v in values)
    for lag in range(1, reach + 1):
        together = sum((a - mean) * (b - mean) for a, b in zip(values, values[lag:], strict=False))
        total += 2 * (1 - lag / (reach + 1)) * together
    return math.sqrt(max(0.0, total) / count / (count - 1))


def _thinned(seconds: Sequence[float]) -> Sequence[float]:
    """Return at most `_MOST` samples, evenly spaced."""
    step = -(-len(seconds) // _MOST)
    return seconds[::step]


@functools.lru_cache(maxsize=16)
def _drawn(counts: tuple[int, ...], resamples: int) -> tuple[NDArray[np.int32], ...]:
    """Return how often each resample draws each round: one array, rounds x resamples, per run.

    `counts` are the runs' numbers of rounds. The generator's seed is fixed: the result is always
    the same.
    """
    import numpy as np

    random = np.random.default_rng(_SEED)
    tables = [
        random.multinomial(count, np.full(count, 1 / count), size=resamples) for count in counts
    ]
    return tuple(np.ascontiguousarray(table.T, np.int32) for table in tables)


def _medians(parts: Sequence[Sequence[float]], drawn: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the medians of resamples of whole rounds.

    Each sample counts as often as its round was drawn.
    """
    import numpy as np

    values = np.concatenate([np.asarray(part, np.float64) for part in parts])
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(values, kind="stable")
    values, owner = np.maximum(values[order], _LEAST), owner[order]
    # rounds x samples: the number of the round's samples up to each sample
    below = np.cumsum(owner == np.arange(len(parts))[:, None], axis=1, dtype=np.int32)
    total = (below[:, -1:] * drawn).sum(axis=0)

    def first(reached: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> NDArray[np.int64]:
        """Return, for each resample, the index of the first sample that satisfies `reached`.

        The search is a bisection.
        """
        low, high = np.zeros(len(total), np.int64), np.full(len(total), len(values) - 1)
        while (low < high).any():
            middle = (low + high) // 2
            there = reached(2 * (below.take(middle, axis=1) * drawn).sum(axis=0))
            low, high = np.where(there, low, middle + 1), np.where(there, middle, high)
        return low

    lower, upper = first(lambda twice: twice >= total), first(lambda twice: twice > total)
    medians: NDArray[np.float64] = (values[lower] + values[upper]) / 2
    return medians


def mann_whitney_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p of the Mann-Whitney U test.

    It is exact for few values without ties, otherwise by the normal approximation with corrections
    for ties and continuity.

    Mann and Whitney, "On a test of whether one of two random variables is stochastically larger
    than the other", 1947.
    """
    n, m = len(first), len(second)
    values = sorted([*first, *second])
    ties = [values.count(value) for value in sorted(set(values))]
    u = sum((a > b) + (a == b) / 2 for a in first for b in second)
    largest = max(u, n * m - u)
    if max(ties) == 1 and min(n, m) < _EXACT_BELOW:
        ways = _ways(n, m)
        return min(1.0, 2 * sum(ways[round(largest) :]) / sum(ways))
    total = n + m
    variance = n * m / 12 * (total + 1 - sum(t**3 - t for t in ties) / (total * (total - 1)))
    if variance == 0:
        return 1.0
    z = (largest - n * m / 2 - 0.5) / math.sqrt(variance)
    return min(1.0, 2 * (1 - normal_cdf(z)))


def _ways(n: int, m: int) -> list[int]:
    """Return the numbers of orders of n and m distinct values for which U is 0, 1, ..., n m.

    They are the coefficients of the Gaussian binomial.
    """
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for power in range(n * m, m + i - 1, -1):
            counts[power] -= counts[power - m - i]
        for power in range(i, n * m + 1):
            counts[power] += counts[power - i]
    return counts


def holm_correction(ps: Sequence[float]) -> list[float]:
    """Return each p corrected for multiple comparisons.

    Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    corrected = [0.0] * len(ps)
    least = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        least = max(least, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = least
    return corrected
