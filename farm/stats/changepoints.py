"""Change points: persistent steps in a series of latencies."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_NOISE = 0.005  # relative; smaller differences are not a step
_LEAST_LENGTH = 2  # values on each side: a single outlier is not a step
_PENALTY = 3.0  # times log n, for each step


@dataclass(frozen=True, slots=True)
class LevelShift:
    """A step at `index`: the typical value is `before` up to there and `after` from there on."""

    index: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """The typical value after the step over the one before."""
        return self.after / self.before


def find_level_shifts(values: Sequence[float]) -> list[LevelShift]:
    """Return the steps in a series of positive values, oldest first.

    The series is cut into the segments with the smallest cost, found by dynamic programming. The
    cost is the sum of absolute deviations of the logarithms from their segment's median, divided by
    the noise, plus a penalty for each cut. The noise is the typical difference of neighbours.
    """
    logs = [math.log(value) for value in values]
    count = len(logs)
    if count < 2 * _LEAST_LENGTH:
        return []
    jumps = [abs(b - a) for a, b in itertools.pairwise(logs)]
    # the scale of a Laplace distribution whose differences have at most that median
    noise = max(_LEAST_NOISE, statistics.median(jumps) / math.log(2))
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
    return [
        LevelShift(index, a, b)
        for index, a, b in zip(bounds[1:-1], typical, typical[1:], strict=False)
    ]


def _extend(
    values: Sequence[float], begin: int, cost: float, best: list[float], cut: list[int]
) -> None:
    """Try all segments that begin at `begin`; update `best` and `cut` at each possible end.

    `cost` is the cost of everything before `begin`, with the penalty of the cut. `best` is the
    smallest cost up to an end, `cut` the begin of the last segment there. The cost of a segment is
    the sum of absolute deviations from its median. One more value adds its distance from the median
    of the values before it; if there are two middle values, its distance from the interval between
    them, which is 0 inside.
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
