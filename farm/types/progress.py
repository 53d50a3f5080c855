"""What is said on the way."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from farm.types.runs import Run


class Stage(str, Enum):
    """Where a job is. The order is the order in which a job goes through them."""

    WAITING = "waiting"
    IMPORTING = "importing"
    COMPILING = "compiling"
    AGENT = "agent"
    READY = "ready"
    CONNECTING = "connecting"
    UPLOADING = "uploading"
    LOADING = "loading"
    RUNNING = "running"
    MEASURING = "measuring"
    ACCURACY = "accuracy"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker says on the way: the stage it is in, a note in words, and the fraction done where it is known."""

    stage: Stage
    note: str = ""
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something to show about a job: its stage, a note in words, and the fraction done where it is known.

    `run` comes with the last event of a job.
    """

    device: str
    model: str
    stage: Stage
    note: str = ""
    fraction: float | None = None
    run: Run | None = None
