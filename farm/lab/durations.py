"""Durations and times as people write them: 90s, 30m, 1h30m, 7d; 14:00, tomorrow 09:30, +2h."""

from __future__ import annotations

import datetime
import re
import time

from farm.errors import UsageError

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NEAR_S = 18 * 3600.0  # for which the time of the day is enough
_CLOCK = re.compile(r"(?:(today|tomorrow)\s+)?(\d{1,2}):(\d{2})")
_FORM = re.compile(r"(?=\d)(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?")


def parse_duration(text: str) -> float:
    """Return a duration in seconds. Raises UsageError."""
    found = _FORM.fullmatch(text.strip().lower())
    seconds = (
        sum(
            int(part or 0) * unit
            for part, unit in zip(found.groups(), _UNITS.values(), strict=True)
        )
        if found
        else 0
    )
    if not seconds:
        raise UsageError(
            f"{text!r} is no duration",
            "a number with a unit: s, m, h or d",
            "for example 30m, or 1h30m",
        )
    return float(seconds)


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as 1h30m."""
    left, parts = max(0, round(seconds)), []
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def parse_time(text: str, now: float) -> float:
    """Return a time in seconds since 1970, by the clock and the zone of this machine.

    A time of the day that is past is that of tomorrow. Raises UsageError.
    """
    words = text.strip().lower()
    if words.startswith("+"):
        return now + parse_duration(words[1:])
    try:
        if found := _CLOCK.fullmatch(words):
            day, hour, minute = found[1], int(found[2]), int(found[3])
            today = datetime.datetime.fromtimestamp(now)
            at = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
            past = day is None and at.timestamp() <= now
            return (at + datetime.timedelta(days=past or day == "tomorrow")).timestamp()
        if len(words) > len("2026-11-26"):  # a day alone is no time
            return datetime.datetime.fromisoformat(words.upper()).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    raise UsageError(
        f"{text[:100]!r} is no time",
        "it is HH:MM, today or tomorrow HH:MM, a date and time, or + and a duration",
        "for example 14:00, 'tomorrow 09:30', 2026-11-26T14:00, or +2h",
    )


def clock_time(at: float, now: float) -> str:
    """Return a time by the clock of this machine: of the day if it is near, else with its date."""
    form = "%H:%M" if abs(at - now) < _NEAR_S else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(at))
