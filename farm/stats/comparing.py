"""Whether one run is slower than another: how much, and how surely.

Latencies that follow each other are alike (a burst of other work, a clock that changes), so single samples are no independent
evidence: taken as such, they find a "significant" difference between almost any two runs of one program. The unit here is the round, a
part of a run (`quantiles.rounds`). Even rounds know nothing of what differs from one run to the next with nothing changed, such as where
the memory lies; differences below FLOOR are therefore never called one.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from farm.stats.quantiles import Interval, rounds
from farm.stats.special import normal_cdf, student_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.99
# What runs of one unchanged program differ by: Mytkowicz et al., "Producing wrong data without doing anything obviously wrong!", ASPLOS
# 2009, found up to 8 % by the place of things in memory alone; farm's own repeated runs on a quiet core stay within 2 %.
FLOOR = 0.02
RESAMPLES = 2000
_RESAMPLES_TO_STOP = 200
_SEED = 20090307
_MOST = 4000  # samples of a run that are looked at
_LEAST = 1e-12  # seconds, where a clock saw none
_EXACT_BELOW = 9  # samples of each side; scipy's limit


class Change(str, Enum):
    """What a comparison says of the second run. UNSURE: neither a difference nor its absence is shown."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of medians, second over first, with its interval at `CONFIDENCE`, the Mann-Whitney test's p over rounds (corrected where
    several comparisons were made), and what follows from them, with the reason in words."""

    ratio: float
    interval: Interval | None
    p: float | None
    change: Change
    reason: str

    def reaches(self, slowdown: float) -> bool:
        """Whether it is surely slower, and by this fraction as far as one can tell: the interval does not stay below it."""
        return self.change is Change.SLOWER and self.interval is not None and self.interval[1] >= 1 + slowdown


def compare(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], confidence: float = CONFIDENCE) -> list[Comparison]:
    """Each pair of runs (seconds per inference, in order of time): is the second slower than the first?

    All tests together raise a false alarm with a probability of at most 1 - `confidence`.
    """
    parts = [(rounds(first), rounds(second)) for first, second in pairs]
    tested = [index for index, (a, b) in enumerate(parts) if a and b and statistics.median(pairs[index][0]) > 0]
    raw = [mann_whitney(*([statistics.median(part) for part in side] for side in parts[index])) for index in tested]
    corrected = dict(zip(tested, holm(raw), strict=True))
    found = []
    for index, (first, second) in enumerate(pairs):
        if index in corrected:
            level = 1 - (1 - confidence) / len(tested)
            found.append(judged(_ratio(first, second), ratio_interval(first, second, level), corrected[index], confidence))
        else:
            found.append(Comparison(_ratio(first, second), None, None, Change.UNSURE, "too few samples to compare, 5 are needed"))
    return found


def _ratio(first: Sequence[float], second: Sequence[float]) -> float:
    if not first or not second or statistics.median(first) <= 0:
        return math.nan
    return statistics.median(second) / statistics.median(first)


def judged(ratio: float, interval: Interval, p: float, confidence: float, advice: str = "measure longer, or more quietly") -> Comparison:
    """What follows from a ratio, its interval and a test's corrected p."""
    low, high = interval
    certain = p <= 1 - confidence
    between = f"{_percent(low)} to {_percent(high)}"
    if certain and low > 1 + FLOOR:
        return Comparison(ratio, interval, p, Change.SLOWER, f"slower by {_percent(ratio)} ({between})")
    if certain and high < 1 - FLOOR:
        return Comparison(ratio, interval, p, Change.FASTER, f"faster by {_percent(ratio)} ({between})")
    widest = max(high - 1, 1 - low)
    if widest <= 0.05:
        return Comparison(ratio, interval, p, Change.SAME, f"no difference beyond {100 * max(FLOOR, widest):.1f} % ({between})")
    return Comparison(ratio, interval, p, Change.UNSURE, f"cannot tell: {between}; {advice}")


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def ratio_interval(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE, resamples: int = RESAMPLES) -> Interval:
    """The interval for the ratio of medians, second over first, by a bootstrap whose units are rounds. Deterministic.

    The percentiles are taken further out than the confidence says, for so few units: the expanded percentile interval of Hesterberg,
    "What teachers should know about the bootstrap", The American Statistician 69 (2015), 3.4. Its width is not less than if each
    run's median were as uncertain as `_drift` finds it.
    """
    import numpy as np

    sides = [rounds(_thinned(first)), rounds(_thinned(second))]
    drawn = _drawn((len(sides[1]), len(sides[0])), resamples)
    ratios = np.log(_medians(sides[1], drawn[0])) - np.log(_medians(sides[0], drawn[1]))
    units = min(len(side) for side in sides)
    tail = 1 - normal_cdf(math.sqrt(units / (units - 1)) * student_quantile((1 + confidence) / 2, units - 1))
    low, high = np.quantile(ratios, [tail, 1 - tail])
    centre = math.log(_ratio(first, second))
    drift = math.hypot(*map(_drift, sides)) * student_quantile((1 + confidence) / 2, units - 1)
    return math.exp(min(float(low), centre - drift)), math.exp(max(float(high), centre + drift))


def uncertainty(seconds: Sequence[float]) -> float:
    """The standard error of a run's median over the median, by resampling rounds and by how alike they are, whichever is more; inf for
    too few samples. It says how long to measure: two runs of 0.004 tell 5 % apart."""
    import numpy as np

    if not (parts := rounds(_thinned(seconds))):
        return math.inf
    resampled = np.log(_medians(parts, *_drawn((len(parts),), _RESAMPLES_TO_STOP)))
    return max(_drift(parts), float(resampled.std()))


def _drift(parts: Sequence[Sequence[float]]) -> float:
    """The standard error of a run's median over the median, where rounds are alike as samples are: by the sum of their
    autocovariances up to a third of the run, with Bartlett's weights (Newey and West, Econometrica 55, 1987)."""
    values = [math.log(max(statistics.median(part), _LEAST)) for part in parts]
    mean, count = statistics.fmean(values), len(values)
    reach = max(1, count // 3)
    total = sum((v - mean) ** 2 for v in values)
    for lag in range(1, reach + 1):
        together = sum((a - mean) * (b - mean) for a, b in zip(values, values[lag:], strict=False))
        total += 2 * (1 - lag / (reach + 1)) * together
    return math.sqrt(max(0.0, total) / count / (count - 1))


def _thinned(seconds: Sequence[float]) -> Sequence[float]:
    step = -(-len(seconds) // _MOST)
    return seconds[::step]


@functools.lru_cache(maxsize=16)
def _drawn(counts: tuple[int, ...], resamples: int) -> tuple[NDArray[np.int32], ...]:
    """How often each round is drawn in so many resamples, for runs of so many rounds each: rounds x resamples, the same every time."""
    import numpy as np

    random = np.random.default_rng(_SEED)
    tables = [random.multinomial(count, np.full(count, 1 / count), size=resamples) for count in counts]
    return tuple(np.ascontiguousarray(table.T, np.int32) for table in tables)


def _medians(parts: Sequence[Sequence[float]], drawn: NDArray[np.int32]) -> NDArray[np.float64]:
    """The medians of resamples of whole rounds: each sample counts as often as its round was drawn."""
    import numpy as np

    values = np.concatenate([np.asarray(part, np.float64) for part in parts])
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(values, kind="stable")
    values, owner = np.maximum(values[order], _LEAST), owner[order]
    below = np.cumsum(owner == np.arange(len(parts))[:, None], axis=1, dtype=np.int32)  # rounds x samples: how many up to a sample
    total = (below[:, -1:] * drawn).sum(axis=0)

    def first(reached: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> NDArray[np.int64]:
        """The place of the first sample up to which each resample has enough of its samples, by bisection."""
        low, high = np.zeros(len(total), np.int64), np.full(len(total), len(values) - 1)
        while (low < high).any():
            middle = (low + high) // 2
            there = reached(2 * (below.take(middle, axis=1) * drawn).sum(axis=0))
            low, high = np.where(there, low, middle + 1), np.where(there, middle, high)
        return low

    lower, upper = first(lambda twice: twice >= total), first(lambda twice: twice > total)
    medians: NDArray[np.float64] = (values[lower] + values[upper]) / 2
    return medians


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p of the Mann-Whitney U test: exact for few values without ties, else by the normal approximation with corrections
    for ties and continuity.

    Mann and Whitney, "On a test of whether one of two random variables is stochastically larger than the other", 1947.
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
    """In how many orders of n and m distinct values U is 0, 1, ..., n m: the coefficients of the Gaussian binomial."""
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for power in range(n * m, m + i - 1, -1):
            counts[power] -= counts[power - m - i]
        for power in range(i, n * m + 1):
            counts[power] += counts[power - i]
    return counts


def holm(ps: Sequence[float]) -> list[float]:
    """Each p, corrected for there being several: Holm, "A simple sequentially rejective multiple test procedure", 1979."""
    corrected = [0.0] * len(ps)
    least = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        least = max(least, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = least
    return corrected
