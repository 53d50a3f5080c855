"""How much of a kind's boards one owner has reserved within some hours: pure and synchronous.

Who may reserve all boards, one time after another, has them for good: nothing is lent that would
last into reserved time. Time between two reservations of an owner that is too short for others
counts as reserved.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnedPeriod:
    """Hold how many boards an owner has from one time until another."""

    starts_at: float
    until: float
    count: int


def most_board_seconds(
    owned: Sequence[OwnedPeriod], wanted: OwnedPeriod, within_s: float, gap_s: float
) -> float:
    """Return the most board seconds of an owner in any `within_s`, with a period that is wanted.

    Of those times that the wanted one can make any difference to. Gaps shorter than `gap_s` count.
    """
    first, last = wanted.starts_at - gap_s, wanted.until + gap_s
    since, before = first - within_s - gap_s, last + within_s + gap_s
    near = [one for one in owned if since < one.until and one.starts_at < before]
    changes = _changes_without_gaps([*near, wanted], gap_s)
    had = _BoardSeconds(changes)
    begins = {at if change > 0 else at - within_s for at, change in changes.items() if change}
    return max(
        (
            had.until(begin + within_s) - had.until(begin)
            for begin in begins
            if begin < last and first < begin + within_s
        ),
        default=0.0,
    )


class _BoardSeconds:
    """How many board seconds an owner has until a time, by when the number of boards changes."""

    def __init__(self, changes: Mapping[float, int]) -> None:
        self._times = sorted(changes)
        self._counts = list(itertools.accumulate(changes[at] for at in self._times))
        lasts = (until - at for at, until in itertools.pairwise(self._times))
        seconds = (count * s for count, s in zip(self._counts, lasts, strict=False))
        self._sums = list(itertools.accumulate(seconds, initial=0.0))

    def until(self, time: float) -> float:
        """Return the board seconds until a time."""
        last = bisect.bisect_right(self._times, time) - 1
        return (
            self._sums[last] + self._counts[last] * (time - self._times[last]) if last >= 0 else 0
        )


def _changes_without_gaps(periods: Sequence[OwnedPeriod], gap_s: float) -> Counter[float]:
    """Return by how much the number of boards changes, and when.

    For each number of boards, shorter times without so many count as with them.
    """
    changes: Counter[float] = Counter()
    for one in periods:
        changes[one.starts_at] += one.count
        changes[one.until] -= one.count
    times = sorted(changes)
    counts = itertools.accumulate(changes[at] for at in times)
    ends: list[tuple[float, int]] = []  # when so many were had last: fewer of them, later
    for (starts_at, until), count in zip(itertools.pairwise(times), counts, strict=False):
        had = 0  # that were had since
        while ends and had < count:
            ended_at, before = ends[-1]
            closed = min(before, count)
            if starts_at - ended_at < gap_s:
                changes[ended_at] += closed - had
                changes[starts_at] -= closed - had
            had = closed
            if before > count:
                break
            ends.pop()
        if count:
            ends.append((until, count))
    return changes
