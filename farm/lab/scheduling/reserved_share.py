"""How much of a kind's boards one owner has reserved within some hours: pure and synchronous.

Who may reserve all boards, one time after another, has them for good: nothing is lent that would
last into reserved time. Time between two reservations of an owner that is too short for others
counts as reserved.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnedPeriod:
    """So many boards that an owner has, from one time until another."""

    starts_at: float
    until: float
    count: int


def most_board_seconds(
    owned: Sequence[OwnedPeriod], wanted: OwnedPeriod, within_s: float, gap_s: float
) -> float:
    """Return the most board seconds of an owner in any `within_s`, with a period that is wanted.

    Of those times that the wanted one can make any difference to. Gaps shorter than `gap_s` count.
    """
    closed = _without_gaps([*owned, wanted], gap_s)
    first, last = wanted.starts_at - gap_s, wanted.until + gap_s
    begins = {one.starts_at for one in closed} | {one.until - within_s for one in closed}
    return max(
        (
            sum(
                one.count * max(0.0, min(one.until, begin + within_s) - max(one.starts_at, begin))
                for one in closed
            )
            for begin in begins
            if begin < last and first < begin + within_s
        ),
        default=0.0,
    )


def _without_gaps(periods: Sequence[OwnedPeriod], gap_s: float) -> list[OwnedPeriod]:
    """Return periods that are taken in the whole, for each number of boards one after another."""
    times = sorted({at for one in periods for at in (one.starts_at, one.until)})
    counts = [sum(one.count for one in periods if one.starts_at <= at < one.until) for at in times]
    found: list[OwnedPeriod] = []
    for lower, level in itertools.pairwise(sorted({0, *counts})):
        merged: list[list[float]] = []
        for (starts_at, until), count in zip(itertools.pairwise(times), counts, strict=False):
            if count < level:
                continue
            if merged and starts_at - merged[-1][1] < gap_s:
                merged[-1][1] = until
            else:
                merged.append([starts_at, until])
        found += [OwnedPeriod(starts_at, until, level - lower) for starts_at, until in merged]
    return found
