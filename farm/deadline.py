"""A moment in the future, passed down instead of a number of seconds that each level would count anew."""

from __future__ import annotations

import time


class Deadline:
    """`Deadline(5)` expires five seconds from now by the monotonic clock."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._at - time.monotonic())

    @property
    def expired(self) -> bool:
        return self.remaining == 0.0

    def extend(self, seconds: float) -> None:
        """Move the moment, for time in which the work was paused."""
        self._at += seconds
