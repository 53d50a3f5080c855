"""The state of all jobs according to the events so far.

`Board.apply` is a pure function of a board and an event.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm import formatting, stats
from farm.types import Event, Job, Run, Stage, Verdict

BAD_STATES = ("failed", "unavailable", "skipped")
_ON_DEVICE = (
    Stage.CONNECTING,
    Stage.UPLOADING,
    Stage.LOADING,
    Stage.RUNNING,
    Stage.MEASURING,
    Stage.ACCURACY,
)


@dataclass(frozen=True, slots=True)
class JobRow:
    """The state of one job.

    `began` and `ended` are times of the monotonic clock, None until they are known.
    """

    device: str
    profile: str
    model: str
    stage: Stage = Stage.WAITING
    note: str = ""
    fraction: float | None = None
    began: float | None = None
    ended: float | None = None
    run: Run | None = None
    reached: float | None = None  # when the job's first stage on its device began
    trend: str = ""  # its latency over the measurement, as a sparkline
    tag: str = ""  # the device's first

    @property
    def state(self) -> str:
        """Return waiting, running, done, failed, unavailable or skipped.

        A wrong answer is failed.
        """
        if self.run and self.run.verdict is Verdict.UNAVAILABLE:
            return "unavailable"
        if self.run and self.run.verdict is Verdict.SKIPPED:
            return "skipped"
        if self.stage is Stage.FAILED or (
            self.run and self.run.verdict in (Verdict.WRONG, Verdict.FAILED)
        ):
            return "failed"
        if self.stage in (Stage.WAITING, Stage.READY):
            return "waiting"
        return "done" if self.stage is Stage.DONE else "running"

    @property
    def bad(self) -> bool:
        """Return whether the job failed, was skipped, or its device was unavailable."""
        return self.state in BAD_STATES

    @property
    def error(self) -> str:
        """Return the reason of the run's verdict, or the current note if there is no run."""
        return formatting.verdict_reason(self.run) if self.run else self.note

    def elapsed(self, now: float) -> float:
        """Return the seconds since the job began, up to its end; 0 if it has not begun."""
        return (
            0.0 if self.began is None else (now if self.ended is None else self.ended) - self.began
        )


@dataclass(frozen=True, slots=True)
class JobBoard:
    """All jobs, in the order given; `began` is a time of the monotonic clock."""

    rows: Mapping[tuple[str, str], JobRow]
    began: float

    @property
    def devices(self) -> dict[str, list[JobRow]]:
        """Return the rows of each device, in the order given."""
        found: dict[str, list[JobRow]] = {}
        for row in self.rows.values():
            found.setdefault(row.device, []).append(row)
        return found

    @classmethod
    def start(cls, jobs: Sequence[Job], now: float) -> JobBoard:
        """Return a board on which all jobs are waiting."""
        rows = (
            JobRow(
                job.device.name,
                job.device.profile.name,
                job.title,
                tag=next(iter(job.device.tags), ""),
            )
            for job in jobs
        )
        return cls({(row.device, row.model): row for row in rows}, now)

    def apply(self, event: Event, now: float) -> JobBoard:
        """Return the board after an event. A job that was not in the plan gets a row of its own."""
        key = (event.device, event.model)
        before = self.rows.get(key) or JobRow(event.device, "", event.model)
        ended = event.stage in (Stage.DONE, Stage.FAILED)
        row = dataclasses.replace(
            before,
            stage=event.stage,
            note=event.note,
            fraction=event.fraction,
            began=now
            if before.began is None and event.stage is not Stage.WAITING
            else before.began,
            ended=now if ended else None,
            run=event.run,
            reached=now if before.reached is None and event.stage in _ON_DEVICE else before.reached,
            trend=_trend(event.run) if event.run else "",
        )
        return JobBoard({**self.rows, key: row}, self.began)


def _trend(run: Run) -> str:
    """Return a sparkline of a run's medians by round, oldest first; empty if emulated."""
    if run.samples is None or run.emulated or run.latency is None:
        return ""
    medians = [statistics.median(part) for part in stats.split_into_rounds(run.samples.seconds)]
    return formatting.sparkline(medians) if medians and max(medians) > 0 else ""
