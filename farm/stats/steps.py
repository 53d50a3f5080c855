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
    penalty = _PENALTY * math.log(count)
    best = [0.0] + [math.inf] * count
    cut = [0] * (count + 1)
    for begin in range(count - _LEAST_LENGTH + 1):
        if best[begin] < math.inf:
            for end, deviation in _deviations(logs, begin):
                cost = best[begin] + deviation / noise + penalty
                if end - begin >= _LEAST_LENGTH and cost < best[end]:
                    best[end], cut[end] = cost, begin
    ends = [count]
    while ends[-1]:
        ends.append(cut[ends[-1]])
    bounds = ends[::-1]
    typical = [statistics.median(values[begin:end]) for begin, end in itertools.pairwise(bounds)]
    return [Step(index, a, b) for index, a, b in zip(bounds[1:-1], typical, typical[1:], strict=False)]


def _deviations(logs: Sequence[float], begin: int) -> list[tuple[int, float]]:
    """For each end, the sum of absolute deviations of logs[begin:end] from their median."""
    ordered: list[float] = []
    low = total = 0.0  # sums of the lower half, without an odd one's middle, and of all
    found = []
    for end in range(begin + 1, len(logs) + 1):
        value, half = logs[end - 1], len(ordered) // 2
        place = bisect.bisect_right(ordered, value)
        ordered.insert(place, value)
        total += value
        if place < half:
            low += value - ordered[half]  # which the new one has pushed out
        odd = len(ordered) % 2
        if not odd:
            low += ordered[half]
        found.append((end, max(0.0, total - 2 * low - (ordered[half] if odd else 0.0))))
    return found
