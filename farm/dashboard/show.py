"""What a command uses: the board in place on a terminal, or a line for each stage of each job."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from rich.console import Console

from farm import words
from farm.dashboard.board import Board, Row
from farm.dashboard.draw import render
from farm.dashboard.placing import Clock, Log, Screen, placed
from farm.types import Event, Job

_SILENCE_S = 30.0  # after which a log says what goes on


class Show:
    """Takes events and keeps the board. This one shows nothing."""

    def __init__(self, jobs: Sequence[Job], clock: Clock) -> None:
        self.clock = clock
        self.board = Board.start(jobs, clock())

    def __call__(self, event: Event) -> None:
        self.board = self.board.apply(event, self.clock())

    def tick(self) -> None:
        """Show the time that has passed."""


class _InPlace(Show):
    """The board in place, on a terminal. `show(event)` and `tick()` draw it."""

    def __init__(self, jobs: Sequence[Job], clock: Clock, screen: Screen) -> None:
        super().__init__(jobs, clock)
        self._screen = screen
        self.tick()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        self.tick()

    def tick(self) -> None:
        self._screen.draw(functools.partial(render, self.board))


class _Lines(Show):
    """A line for each stage that a job enters, and now and then one for what takes long."""

    def __init__(self, jobs: Sequence[Job], clock: Clock, log: Log) -> None:
        super().__init__(jobs, clock)
        self._log, self._said = log, clock()

    def __call__(self, event: Event) -> None:
        before = self.board.rows.get((event.device, event.model))
        super().__call__(event)
        row = self.board.rows[event.device, event.model]
        if before is None or before.stage is not row.stage:
            self._say(_line_of(row))

    def tick(self) -> None:
        running = [row for row in self.board.rows.values() if row.state == "running"]
        if running and self.clock() - self._said >= _SILENCE_S:
            more = f" (and {len(running) - 1} more)" if len(running) > 1 else ""
            self._say(f"{_line_of(running[0])}{more}")

    def _say(self, line: str) -> None:
        self._log.line(line)
        self._said = self.clock()


def _line_of(row: Row) -> str:
    """One job as it stands, in one line: pi3 digits: EMULATED, emulated, top-1 97.8 % (ref 97.8 %)."""
    if row.bad:
        said = [row.run.verdict.value if row.run else row.stage.value, row.error]
    elif row.run:
        said = [row.run.verdict.value, "" if row.run.emulated else words.latency(row.run), words.answers(row.run)[0]]
    else:
        said = [row.stage.value, row.note]
    return f"{row.device} {row.model}: {', '.join(part for part in said if part)}"


def show(console: Console, jobs: Sequence[Job], *, quiet: bool = False, clock: Clock = time.monotonic) -> AbstractContextManager[Show]:
    """Show a board for as long as the block lasts; it is gone after it. `console` should write to stderr, and honours NO_COLOR."""
    return placed(
        console,
        quiet,
        nothing=lambda: Show(jobs, clock),
        screen=lambda screen: _InPlace(jobs, clock, screen),
        lines=lambda log: _Lines(jobs, clock, log),
        clock=clock,
    )
