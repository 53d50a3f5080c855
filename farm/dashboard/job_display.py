"""The display of a command's jobs: a board on a terminal, or a log line for each stage of a job."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from farm import formatting
from farm.dashboard.display import Clock, LogLines, PrintLine, TerminalRegion, open_display
from farm.dashboard.job_board import JobBoard, JobRow
from farm.types import Event, Job

if TYPE_CHECKING:
    from rich.console import Console

_SILENCE_S = 30.0  # without a line, after which a log names a running job


class QuietJobDisplay:
    """Keep the board up to date with the events. This base class shows nothing."""

    def __init__(self, jobs: Sequence[Job], clock: Clock) -> None:
        self.clock = clock
        self.board = JobBoard.start(jobs, clock())

    def __call__(self, event: Event) -> None:
        """Apply an event."""
        self.board = self.board.apply(event, self.clock())

    def tick(self) -> None:
        """Update the elapsed times."""


class _InPlace(QuietJobDisplay):
    """Draw the board in place on a terminal, after each event and tick."""

    def __init__(self, jobs: Sequence[Job], clock: Clock, screen: TerminalRegion) -> None:
        super().__init__(jobs, clock)
        self._screen = screen
        self.tick()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        self.tick()

    def tick(self) -> None:
        from farm.dashboard.render_job_board import render

        self._screen.draw(functools.partial(render, self.board))


class _Lines(QuietJobDisplay):
    """Log a line for each stage that a job enters.

    After `_SILENCE_S` without a line, log the state of a running job.
    """

    def __init__(self, jobs: Sequence[Job], clock: Clock, log: LogLines) -> None:
        super().__init__(jobs, clock)
        self._log, self._said = log, clock()

    def __call__(self, event: Event) -> None:
        before = self.board.rows.get((event.device, event.model))
        super().__call__(event)
        row = self.board.rows[event.device, event.model]
        if before is None or before.stage is not row.stage:
            self._say(_line_of(row))

    def tick(self) -> None:
        if self.clock() - self._said < _SILENCE_S:
            return
        if running := [row for row in self.board.rows.values() if row.state == "running"]:
            more = f" (and {len(running) - 1} more)" if len(running) > 1 else ""
            self._say(f"{_line_of(running[0])}{more}")

    def _say(self, line: str) -> None:
        self._log.line(line)
        self._said = self.clock()


def _line_of(row: JobRow) -> str:
    """Return a job's state as one line.

    Example: pi3 digits: EMULATED, emulated, top-1 97.8 % (ref 97.8 %).
    """
    if row.bad:
        said = [row.run.verdict.value if row.run else row.stage.value, row.error]
    elif row.run:
        said = [
            row.run.verdict.value,
            "" if row.run.emulated else formatting.format_median_latency_and_iqr(row.run),
            formatting.result_descriptions_longest_first(row.run)[0],
        ]
    else:
        said = [row.stage.value, row.note]
    return f"{row.device} {row.model}: {', '.join(part for part in said if part)}"


def show_jobs(
    output: Console | PrintLine,
    jobs: Sequence[Job],
    *,
    quiet: bool = False,
    clock: Clock = time.monotonic,
) -> AbstractContextManager[QuietJobDisplay]:
    """Return a context manager that shows a board and clears it at the end.

    `output` should write to stderr; a console honours NO_COLOR.
    """
    return open_display(
        output,
        quiet,
        nothing=lambda: QuietJobDisplay(jobs, clock),
        screen=lambda screen: _InPlace(jobs, clock, screen),
        lines=lambda log: _Lines(jobs, clock, log),
        clock=clock,
    )
