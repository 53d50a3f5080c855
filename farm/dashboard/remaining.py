"""How long it will take yet, as far as that can be known."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from farm import words
from farm.dashboard.board import Row


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds; at the least so many, where something is to come of which nothing is known."""

    seconds: float
    at_least: bool

    @property
    def in_words(self) -> str:
        if self.seconds < 1:
            return "" if self.at_least else "nearly done"
        return f"{'≥' if self.at_least else '≈'}{words.elapsed(round(self.seconds))} left"


def of_device(rows: Iterable[Row], now: float) -> Left:
    """A device does one job after the other, and what it has done says how long the next ones take: each the median of those before. Of a
    device that has done none, nothing is known: boards differ too much to take another's."""
    took, to_come, running = [], 0, 0.0
    for row in rows:
        if row.state in ("waiting", "running"):
            to_come += 1
            running = now - row.reached if row.state == "running" and row.reached is not None else running
        elif row.state in ("done", "failed") and row.reached is not None and row.ended is not None:
            took.append(row.ended - row.reached)
    if not to_come:
        return Left(0.0, False)
    if not took:
        return Left(0.0, True)
    typical = statistics.median(took)
    return Left(typical * to_come - min(running, typical), running > typical)


def of_all(devices: Mapping[str, list[Row]], now: float) -> Left:
    """Devices work side by side: the last one to end is what counts."""
    each = [of_device(rows, now) for rows in devices.values()]
    return Left(max((left.seconds for left in each), default=0.0), any(left.at_least for left in each))
