"""Whether a device can be used, in a word and in full."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class State:
    """Whether a device can be used now: a word (`ready`, `emulated`, `unavailable`, ...), the reason where it cannot, and the cure."""

    word: str
    usable: bool
    why: str = ""
    fix: str = ""
