"""Samples being counted: a bar for each lane in place on a terminal, or a line now and then."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from farm import words
from farm.dashboard.placing import Log, Screen, placed
from farm.types import Progress

if TYPE_CHECKING:
    from farm.pipeline.accuracy import Counting, Lane

_LINE_S = 15.0
_BAR = 24


class Quiet:
    """Takes the state of a run, and what is done before it; this one shows nothing."""

    def __call__(self, counting: Counting) -> None:
        pass

    def told(self, progress: Progress) -> None:
        pass


class Lines(Quiet):
    """A line for each lane as it starts and ends, and now and then."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._told: dict[str, tuple[float, bool]] = {}
        self._stage = ""

    def told(self, progress: Progress) -> None:
        if progress.stage.value != self._stage:
            self._stage = progress.stage.value
            self._log.line(f"{progress.stage.value} {progress.note}".strip())

    def __call__(self, counting: Counting) -> None:
        now = time.monotonic()
        for lane in counting.lanes:
            done = len(lane.best) == len(counting.wanted) or lane.failure is not None
            when, was_done = self._told.get(lane.name, (0.0, False))
            if was_done or not (done or now - when > _LINE_S):
                continue
            self._told[lane.name] = now, done
            self._log.line(f"{lane.name}: {_state(counting, lane, now)}")


class InPlace(Quiet):
    """The bars in place."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def told(self, progress: Progress) -> None:
        share = "" if progress.fraction is None else f" {progress.fraction:.0%}"
        text = Text(words.plain(f"{progress.stage.value} {progress.note}{share}".strip()))
        self._screen.draw(lambda *_: text, at_once=True)

    def __call__(self, counting: Counting) -> None:
        self._screen.draw(lambda _width, _height, now: render(counting, now))


def render(counting: Counting, now: float) -> Table:
    """The lanes, a bar each."""
    table = Table.grid(padding=(0, 1))
    total = max(1, len(counting.wanted))
    for lane in counting.lanes:
        state = Text(words.plain(_state(counting, lane, now)), "red" if lane.failure else "")
        table.add_row(Text(lane.name, "bold"), ProgressBar(total, len(lane.best), _BAR), state)
    return table


def _state(counting: Counting, lane: Lane, now: float) -> str:
    """257 of 1000, 3:20 left; of an early lane what it is doing."""
    if lane.failure is not None:
        return lane.failure.what
    said = f"{len(lane.best)} of {len(counting.wanted)}"
    if len(lane.best) == len(counting.wanted):
        return said
    left = counting.remaining_s(lane, now)
    return f"{said}, {f'{words.elapsed(left)} left' if left is not None else lane.note}"


def show_counting(console: Console, *, quiet: bool = False) -> AbstractContextManager[Quiet]:
    """Show a run for as long as the block lasts; it is gone after it."""
    return placed(console, quiet, nothing=Quiet, screen=InPlace, lines=Lines)
