"""The state of all jobs: what the events so far say of each. `Board.apply` is a pure function of it and an event."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm import stats, words
from farm.types import Event, Job, Run, Stage, Verdict

BAD_STATES = ("failed", "unavailable", "skipped")
_ON_DEVICE = (Stage.CONNECTING, Stage.UPLOADING, Stage.LOADING, Stage.RUNNING, Stage.MEASURING, Stage.ACCURACY)


@dataclass(frozen=True, slots=True)
class Row:
    """One job as it stands. `began` and `ended` are moments of the monotonic clock; None before they come."""

    device: str
    profile: str
    model: str
    stage: Stage = Stage.WAITING
    note: str = ""
    fraction: float | None = None
    began: float | None = None
    ended: float | None = None
    run: Run | None = None
    reached: float | None = None  # when its device was first spoken to
    trend: str = ""  # its latency over the time of measuring, as a sparkline

    @property
    def state(self) -> str:
        """One of waiting, running, done, failed, unavailable and skipped. A wrong answer is a failure."""
        if self.run and self.run.verdict is Verdict.UNAVAILABLE:
            return "unavailable"
        if self.run and self.run.verdict is Verdict.SKIPPED:
            return "skipped"
        if self.stage is Stage.FAILED or (self.run and self.run.verdict in (Verdict.WRONG, Verdict.FAILED)):
            return "failed"
        if self.stage in (Stage.WAITING, Stage.READY):
            return "waiting"
        return "done" if self.stage is Stage.DONE else "running"

    @property
    def bad(self) -> bool:
        return self.state in BAD_STATES

    @property
    def error(self) -> str:
        return words.why(self.run) if self.run else self.note

    def elapsed(self, now: float) -> float:
        return 0.0 if self.began is None else (now if self.ended is None else self.ended) - self.began


@dataclass(frozen=True, slots=True)
class Board:
    """All jobs, in the order given; `began` is a moment of the monotonic clock."""

    rows: Mapping[tuple[str, str], Row]
    began: float

    @property
    def devices(self) -> dict[str, list[Row]]:
        """The rows of each device, in the order given."""
        found: dict[str, list[Row]] = {}
        for row in self.rows.values():
            found.setdefault(row.device, []).append(row)
        return found

    @classmethod
    def start(cls, jobs: Sequence[Job], now: float) -> Board:
        return cls({(job.device.name, job.title): Row(job.device.name, job.device.profile.name, job.title) for job in jobs}, now)

    def apply(self, event: Event, now: float) -> Board:
        """The board after an event. A job that was not in the plan gets a row of its own."""
        key = (event.device, event.model)
        before = self.rows.get(key) or Row(event.device, "", event.model)
        ended = event.stage in (Stage.DONE, Stage.FAILED)
        row = dataclasses.replace(
            before,
            stage=event.stage,
            note=event.note,
            fraction=event.fraction,
            began=now if before.began is None and event.stage is not Stage.WAITING else before.began,
            ended=now if ended else None,
            run=event.run,
            reached=now if before.reached is None and event.stage in _ON_DEVICE else before.reached,
            trend=_trend(event.run) if event.run else "",
        )
        return Board({**self.rows, key: row}, self.began)


def _trend(run: Run) -> str:
    """The medians of the rounds of a run, oldest first. None of an emulated one."""
    if run.samples is None or run.emulated or run.latency is None:
        return ""
    medians = [statistics.median(part) for part in stats.rounds(run.samples.seconds)]
    return words.sparkline(medians) if medians and max(medians) > 0 else ""
