"""The state of a device: whether it can be used now, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceAvailability:
    """The state of a device: usable or not, and the reason.

    `word` is the state (`ready`, `emulated`, `unavailable`, ...). If the device is not usable,
    `why` is the reason and `fix` the remedy.
    """

    word: str
    usable: bool
    why: str = ""
    fix: str = ""
