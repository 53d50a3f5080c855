"""Progress reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.types.runs import Run


class Stage(StrEnum):
    """The stage of a job, in the order in which a job passes through them."""

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
    """A worker's progress: its stage, a note in words, and the fraction done.

    `fraction` is None if it is not known.
    """

    stage: Stage
    note: str = ""
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """The progress of a job for display: its stage, a note in words, and the fraction done.

    `fraction` is None if it is not known. `run` is set in the last event of a job.
    """

    device: str
    model: str
    stage: Stage
    note: str = ""
    fraction: float | None = None
    run: Run | None = None
