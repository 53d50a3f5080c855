"""Log messages about the peers of a tracker.

Clean, and so much at most that a flood of them fills no log.
"""

from __future__ import annotations

from collections.abc import Callable

from farm import sanitize

_MOST = 20
_PERIOD_S = 10.0
_MOST_CHARACTERS = 500


class LimitedLog:
    """Pass on a limited number of lines in each period, and say how many were left out."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = float("-inf")
        self._said = 0

    def note(self, text: str, now: float) -> None:
        """Pass on a line, or count it."""
        if now - self._began >= _PERIOD_S:
            self.tick(now)
            self._began, self._said = now, 0
        self._said += 1
        if self._said <= _MOST:
            self._say(sanitize.sanitized_line(text[:_MOST_CHARACTERS]))

    def tick(self, now: float) -> None:
        """Say how many lines were left out, after the period in which they were."""
        if self._said > _MOST and now - self._began >= _PERIOD_S:
            self._say(f"{self._said - _MOST} more such lines in the last {_PERIOD_S:.0f} s")
            self._said = 0
