"""What a command uses: the board in place on a terminal, or a line for each stage of each job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from farm import words
from farm.dashboard.board import Board, Row
from farm.dashboard.draw import render
from farm.dashboard.parts import REFRESH_S
from farm.dashboard.placing import placed
from farm.types import Event, Job

SHARE = 0.04  # of a core that drawing may take


class Show:
    """Takes events and keeps the board. This one shows nothing."""

    def __init__(self, jobs: Sequence[Job], clock: Callable[[], float]) -> None:
        self.clock = clock
        self.board = Board.start(jobs, clock())

    def __call__(self, event: Event) -> None:
        self.board = self.board.apply(event, self.clock())

    def tick(self) -> None:
        """Show the time that has passed."""


class _Screen(Show):
    """The board in place, on a terminal, between `start` and `stop`. No thread draws it: `show(event)` and `tick()` do."""

    def __init__(self, jobs: Sequence[Job], clock: Callable[[], float], console: Console) -> None:
        super().__init__(jobs, clock)
        self._console = console

    def start(self) -> None:
        """Appear below what the terminal shows; a Live that was stopped would remember where it stood before."""
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()
        self._next = -math.inf
        self.tick()

    def stop(self) -> None:
        """Go, and leave nothing."""
        self._live.stop()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        self.tick()

    def tick(self) -> None:
        now = self.clock()
        if self._live.is_started and now >= self._next:  # it makes room for a question
            begin = time.process_time()
            size = self._live.console.size
            self._live.update(render(self.board, size.width, size.height - 1, now), refresh=True)
            self._next = now + max(REFRESH_S, (time.process_time() - begin) / SHARE)


class _Lines(Show):
    """A line for each stage that a job enters, for logs."""

    def __init__(self, jobs: Sequence[Job], clock: Callable[[], float], console: Console) -> None:
        super().__init__(jobs, clock)
        self._console = console

    def __call__(self, event: Event) -> None:
        before = self.board.rows.get((event.device, event.model))
        super().__call__(event)
        row = self.board.rows[event.device, event.model]
        if before is None or before.stage is not row.stage:
            passed = words.elapsed(self.clock() - self.board.began)
            self._console.print(Text(f"{passed:>7}  {_line_of(row)}"), soft_wrap=True)


def _line_of(row: Row) -> str:
    """One job as it stands, in one line: pi3 digits: EMULATED, emulated, top-1 97.8 % (ref 97.8 %)."""
    if row.bad:
        said = [row.run.verdict.value if row.run else row.stage.value, row.error]
    elif row.run:
        said = [row.run.verdict.value, "" if row.run.emulated else words.latency(row.run), words.answers(row.run)[0]]
    else:
        said = [row.stage.value, row.note]
    return words.plain(f"{row.device} {row.model}: {', '.join(part for part in said if part)}")


def show(
    console: Console, jobs: Sequence[Job], *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
) -> AbstractContextManager[Show]:
    """Show a board for as long as the block lasts; it is gone after it. `console` should write to stderr, and honours NO_COLOR."""
    return placed(
        console,
        quiet,
        nothing=lambda: Show(jobs, clock),
        screen=lambda: _Screen(jobs, clock, console),
        lines=lambda: _Lines(jobs, clock, console),
    )
