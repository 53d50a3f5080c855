"""Estimate the remaining time of the jobs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from farm import formatting
from farm.dashboard.job_board import JobRow


@dataclass(frozen=True, slots=True)
class TimeLeftEstimate:
    """Estimated seconds left.

    `at_least` marks a lower bound: some remaining job has no measured duration to estimate it from.
    """

    seconds: float
    at_least: bool

    @property
    def in_words(self) -> str:
        """Return the estimate as text: ≈2:30 left, or ≥2:30 left for a lower bound."""
        if self.seconds < 1:
            return "" if self.at_least else "nearly done"
        return (
            f"{'≥' if self.at_least else '≈'}{formatting.format_duration(round(self.seconds))} left"
        )


def device_time_left(rows: Iterable[JobRow], now: float) -> TimeLeftEstimate:
    """Estimate the remaining seconds of one device.

    A device runs its jobs one after the other. Each remaining job is assumed to take the median of
    the device's finished jobs. Without a finished job there is no estimate: boards differ too much
    to use another device's durations.
    """
    took, to_come, running = [], 0, 0.0
    for row in rows:
        if row.state in ("waiting", "running"):
            to_come += 1
            running = (
                now - row.reached if row.state == "running" and row.reached is not None else running
            )
        elif row.state in ("done", "failed") and row.reached is not None and row.ended is not None:
            took.append(row.ended - row.reached)
    if not to_come:
        return TimeLeftEstimate(0.0, False)
    if not took:
        return TimeLeftEstimate(0.0, True)
    typical = statistics.median(took)
    return TimeLeftEstimate(typical * to_come - min(running, typical), running > typical)


def total_time_left(devices: Mapping[str, list[JobRow]], now: float) -> TimeLeftEstimate:
    """Estimate the remaining seconds of all devices.

    Devices work in parallel, so the longest estimate counts.
    """
    each = [device_time_left(rows, now) for rows in devices.values()]
    return TimeLeftEstimate(
        max((left.seconds for left in each), default=0.0), any(left.at_least for left in each)
    )
