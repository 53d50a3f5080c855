"""Limit how many changes a person asks of the lab: each is stored, and disks are finite."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from farm.lab import refusals
from farm.lab.shared_places import person_of

_BURST_MINUTES = 2.0  # of changes, which may come at once
_MOST_PERSONS = 1000  # before those who have all of theirs left are forgotten


class ChangeBudget:
    """Count the changes that each person has left, refilled by the minute; 0 is no limit."""

    def __init__(self, a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_minute, self._clock = a_minute, clock
        self._most = a_minute * _BURST_MINUTES
        self._left: dict[str, tuple[float, float]] = {}  # how many, and when

    def spend(self, name: str) -> None:
        """Take one change of a person. Raises UnavailableError if there is none."""
        if not self._a_minute:
            return
        person, now = person_of(name), self._clock()
        left = self._left_of(person, now)
        if left < 1:
            wait_s = math.ceil((1 - left) * 60 / self._a_minute)
            raise refusals.too_many_changes_error(name, self._a_minute, wait_s)
        self._left[person] = left - 1, now
        if len(self._left) > _MOST_PERSONS:
            for one in [one for one in self._left if self._left_of(one, now) >= self._most]:
                del self._left[one]

    def _left_of(self, person: str, now: float) -> float:
        left, at = self._left.get(person, (self._most, now))
        return min(self._most, left + (now - at) * self._a_minute / 60)
