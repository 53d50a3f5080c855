"""Where a series of latencies takes a step and stays there."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_NOISE = 0.005  # of a value: differences below are no step
_LEAST_LENGTH = 2  # values on each side: a single one out of line is no step
_PENALTY = 3.0  # times log n, for each step


@dataclass(frozen=True, slots=True)
class Step:
    """From `index` on the typical value is `after`; up to there it was `before`."""

    index: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


def steps(values: Sequence[float]) -> list[Step]:
    """The steps in a series of positive values, oldest first.

    The series is cut into the segments of which the sum of absolute deviations from their medians, over the noise, with a
    penalty for each cut, is the least; by dynamic programming. The noise is the typical difference of neighbours.
    """
    logs = [math.log(value) for value in values]
    count = len(logs)
    if count < 2 * _LEAST_LENGTH:
        return []
    jumps = [abs(b - a) for a, b in itertools.pairwise(logs)]
    noise = max(_LEAST_NOISE, statistics.median(jumps) / math.log(2))  # Laplace's scale, where differences have that median or less
    scaled, penalty = [value / noise for value in logs], _PENALTY * math.log(count)
    best = [0.0] + [math.inf] * count
    cut = [0] * (count + 1)
    for begin in range(count - _LEAST_LENGTH + 1):
        if best[begin] < math.inf:
            _extend(scaled, begin, best[begin] + penalty, best, cut)
    ends = [count]
    while ends[-1]:
        ends.append(cut[ends[-1]])
    bounds = ends[::-1]
    typical = [statistics.median(values[begin:end]) for begin, end in itertools.pairwise(bounds)]
    return [Step(index, a, b) for index, a, b in zip(bounds[1:-1], typical, typical[1:], strict=False)]


def _extend(values: Sequence[float], begin: int, cost: float, best: list[float], cut: list[int]) -> None:
    """Offer a segment that begins here to each end: `best` is the least cost up to an end, `cut` where its last segment begins.

    A segment costs the sum of the absolute deviations from its median, to which one more value adds its distance from the median of those
    before, or from the two in the middle where it is not between them.
    """
    ordered = [values[begin]]
    half, odd = 0, True
    for end in range(begin + 2, len(values) + 1):
        value = values[end - 1]
        if odd:
            cost += abs(value - ordered[half])
            half += 1
        elif value < ordered[half - 1]:
            cost += ordered[half - 1] - value
        elif value > ordered[half]:
            cost += value - ordered[half]
        odd = not odd
        bisect.insort(ordered, value)
        if cost < best[end] and end - begin >= _LEAST_LENGTH:
            best[end], cut[end] = cost, begin
