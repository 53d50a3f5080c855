"""Deadline: a point in time, passed down instead of a duration that each level would restart."""

from __future__ import annotations

import time


class Deadline:
    """A point in time: `Deadline(5)` expires five seconds from now by the monotonic clock."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """The seconds left, never below zero."""
        return max(0.0, self._at - time.monotonic())

    @property
    def expired(self) -> bool:
        """Return whether no time is left."""
        return self.remaining == 0.0

    def extend(self, seconds: float) -> None:
        """Postpone the deadline, to compensate for time in which the work was paused."""
        self._at += seconds
