"""Durations as people write them: 90s, 30m, 2h, 1h30m, 7d."""

from __future__ import annotations

import re

from farm.errors import UsageError

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
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
