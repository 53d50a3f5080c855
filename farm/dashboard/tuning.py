"""The search for better choices as it goes: a table in place on a terminal, or a line for each step."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from farm import words
from farm.dashboard.placing import Log, Screen, placed

if TYPE_CHECKING:
    from farm.pipeline.search import Kernel
    from farm.pipeline.trials import Tuning

_WIDE, _WIDEST = 110, 140  # columns from which the choice has room, and of which more are no use
_UNREMARKABLE = re.compile(r" (s1,1|p0,0,0,0|d1,1|g1)(?= |$)")  # of a workload: strides, padding, dilation and groups that are none
_OTHER_LINES = 6  # that a screen needs beside the rows of kernels


class Quiet:
    """Takes what a search says, and shows nothing."""

    def __call__(self, work: Tuning, line: str) -> None:
        pass


class Lines(Quiet):
    """A line for each step."""

    def __init__(self, log: Log) -> None:
        self._log, self._last = log, ""

    def __call__(self, _: Tuning, line: str) -> None:
        if line and line != self._last:
            self._last = line
            self._log.line(line)


class InPlace(Quiet):
    """The table in place."""

    def __init__(self, screen: Screen, minutes: float) -> None:
        self._screen, self._began, self._minutes, self._last = screen, time.monotonic(), minutes, ""

    def __call__(self, work: Tuning, line: str) -> None:
        self._last = line or self._last

        def table(width: int, height: int, now: float) -> Group:
            passed = f"{words.elapsed(now - self._began)} of {self._minutes:g} min"
            return render(work, passed, self._last, width, height)

        self._screen.draw(table)


def render(work: Tuning, passed: str, last: str, width: int, height: int) -> Group:
    """The head, the kernels, and what happened last, in at most `height` lines."""
    boards = ", ".join(f"{board.device.name} {board.said}".strip() for board in work.boards)
    head = Text(f"farm tune {work.model.name}   {passed}   {words.plain(boards)}", "bold", no_wrap=True, overflow="ellipsis")
    most = max(1, height - _OTHER_LINES)
    hidden = len(work.search.kernels) - most
    said = [f"{hidden} more kernels"] if hidden > 0 else []
    foot = Text("   ".join([*said, _UNREMARKABLE.sub("", words.plain(last))]), "bright_black", no_wrap=True, overflow="ellipsis")
    return Group(head, kernel_table(work, width, most), foot)


def kernel_table(work: Tuning, width: int, most: int | None = None) -> Table:
    """Kernels, the hardest first: share of the time, speed-up over the default, how many candidates were tried, the best choice.

    Figures are never cut: the kernel is what gets the room that is left, and the choice is shown where that is enough for both.
    """
    table, wide = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=min(width, _WIDEST)), width >= _WIDE
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", ratio=1)
    longest = max((len(_figures(work, kernel)[3]) for kernel in work.search.kernels), default=0)
    for title, least in (("share %", 7), ("best us", 7), ("speed-up", 8), ("tried", max(5, longest))):
        table.add_column(title, justify="right", width=least, no_wrap=True)
    if wide:
        table.add_column("choice", width=max((len(kernel.best.words) for kernel in work.search.kernels), default=6), no_wrap=True)
    kernels = sorted(work.search.kernels, key=lambda kernel: -kernel.total_s)
    for kernel in kernels[:most]:
        share, best, speedup, tried = _figures(work, kernel)
        cells: list[str | Text] = [share, best, Text(speedup, "green" if kernel.speedup > 1 else ""), tried]
        if wide:
            cells.append(Text(kernel.best.words))
        table.add_row(Text(_UNREMARKABLE.sub("", kernel.task.workload), "bold" if kernel.busy else ""), *cells)
    return table


def _figures(work: Tuning, kernel: Kernel) -> tuple[str, str, str, str]:
    """Share, best time, speed-up and what was tried, in words; the first three empty before they are known."""
    if not kernel.best_s:
        return "", "", "", kernel.progress
    return f"{100 * work.search.share(kernel):.1f}", words.digits(1e6 * kernel.best_s), f"{kernel.speedup:.2f}x", kernel.progress


def show(console: Console, minutes: float, *, quiet: bool = False) -> AbstractContextManager[Quiet]:
    """Show a search for as long as the block lasts. `console` should write to stderr."""
    return placed(console, quiet, nothing=Quiet, screen=lambda screen: InPlace(screen, minutes), lines=Lines)
