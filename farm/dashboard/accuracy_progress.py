"""Progress of an accuracy run: a bar per participant on a terminal, or periodic log lines."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from farm import formatting
from farm.dashboard.display import LogLines, TerminalRegion, open_display
from farm.types import Progress

if TYPE_CHECKING:
    from farm.pipeline.accuracy import AccuracyParticipant, AccuracyProgressState

_LINE_S = 15.0
_BAR = 24


class QuietDisplay:
    """Display that shows nothing, and the base class of the others.

    Call it with the state of the run; `told` takes the progress of the preparation.
    """

    def __call__(self, counting: AccuracyProgressState) -> None:
        """Show the state of the run."""

    def told(self, progress: Progress) -> None:
        """Show the progress of the preparation."""


class LogDisplay(QuietDisplay):
    """Log a line for each participant when it starts, when it ends, and every `_LINE_S` seconds."""

    def __init__(self, log: LogLines) -> None:
        self._log = log
        self._told: dict[str, tuple[float, bool]] = {}
        self._stage = ""

    def told(self, progress: Progress) -> None:
        """Log a line for each new stage of the preparation."""
        if progress.stage.value != self._stage:
            self._stage = progress.stage.value
            self._log.line(f"{progress.stage.value} {progress.note}".strip())

    def __call__(self, counting: AccuracyProgressState) -> None:
        """Log participants that started or ended, or whose last line is `_LINE_S` seconds old."""
        now = time.monotonic()
        for participant in counting.participants:
            done = len(participant.best) == len(counting.wanted) or participant.failure is not None
            when, was_done = self._told.get(participant.name, (0.0, False))
            if was_done or not (done or now - when > _LINE_S):
                continue
            self._told[participant.name] = now, done
            self._log.line(f"{participant.name}: {_state(counting, participant, now)}")


class LiveDisplay(QuietDisplay):
    """Draw the bars in place on a terminal."""

    def __init__(self, screen: TerminalRegion) -> None:
        self._screen = screen

    def told(self, progress: Progress) -> None:
        """Draw the current stage of the preparation."""
        share = "" if progress.fraction is None else f" {progress.fraction:.0%}"
        text = Text(
            formatting.sanitized_line(f"{progress.stage.value} {progress.note}{share}".strip())
        )
        self._screen.draw(lambda *_: text, at_once=True)

    def __call__(self, counting: AccuracyProgressState) -> None:
        """Redraw the bars."""
        self._screen.draw(lambda _width, _height, now: progress_table(counting, now))


def progress_table(counting: AccuracyProgressState, now: float) -> Table:
    """Return a table with a progress bar for each participant."""
    table = Table.grid(padding=(0, 1))
    total = max(1, len(counting.wanted))
    for participant in counting.participants:
        state = Text(
            formatting.sanitized_line(_state(counting, participant, now)),
            "red" if participant.failure else "",
        )
        table.add_row(
            Text(participant.name, "bold"), ProgressBar(total, len(participant.best), _BAR), state
        )
    return table


def _state(counting: AccuracyProgressState, participant: AccuracyParticipant, now: float) -> str:
    """Return "257 of 1000, 3:20 left".

    Without an estimate, the participant's note replaces the time.
    """
    if participant.failure is not None:
        return participant.failure.what
    said = f"{len(participant.best)} of {len(counting.wanted)}"
    if len(participant.best) == len(counting.wanted):
        return said
    left = counting.remaining_s(participant, now)
    note = f"{formatting.format_duration(left)} left" if left is not None else participant.note
    return f"{said}, {note}"


def show_accuracy_progress(
    console: Console, *, quiet: bool = False
) -> AbstractContextManager[QuietDisplay]:
    """Return a context manager that shows an accuracy run and clears the display at the end."""
    return open_display(console, quiet, nothing=QuietDisplay, screen=LiveDisplay, lines=LogDisplay)
