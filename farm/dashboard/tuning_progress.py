"""Progress of a tuning search: a table in place on a terminal, or a log line for each step."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from farm import formatting
from farm.dashboard.display import LogLines, TerminalRegion, open_display

if TYPE_CHECKING:
    from farm.pipeline.tuning.loop import TuningState
    from farm.pipeline.tuning.search import KernelSearch

_WIDE, _WIDEST = (
    110,
    140,
)  # terminal widths: the least that has room for the choice, and the largest that is used
_UNREMARKABLE = re.compile(
    r" (s1,1|p0,0,0,0|d1,1|g1)(?= |$)"
)  # default strides, padding, dilation and groups in a workload's name
_OTHER_LINES = 6  # that a screen needs besides the rows of kernels


class QuietDisplay:
    """Display that shows nothing, and the base class of the others."""

    def __call__(self, work: TuningState, line: str) -> None:
        """Show the state of the search and its latest message."""


class LogDisplay(QuietDisplay):
    """Log a line for each step."""

    def __init__(self, log: LogLines) -> None:
        self._log, self._last = log, ""

    def __call__(self, _: TuningState, line: str) -> None:
        """Log the message unless it repeats the last one."""
        if line and line != self._last:
            self._last = line
            self._log.line(line)


class LiveDisplay(QuietDisplay):
    """Draw the table in place on a terminal. `minutes` is the time limit of the search."""

    def __init__(self, screen: TerminalRegion, minutes: float) -> None:
        self._screen, self._began, self._minutes, self._last = screen, time.monotonic(), minutes, ""

    def __call__(self, work: TuningState, line: str) -> None:
        """Redraw the table."""
        self._last = line or self._last

        def table(width: int, height: int, now: float) -> Group:
            passed = f"{formatting.format_duration(now - self._began)} of {self._minutes:g} min"
            return render(work, passed, self._last, width, height)

        self._screen.draw(table)


def render(work: TuningState, passed: str, last: str, width: int, height: int) -> Group:
    """Return the header, the kernels and the latest message, in at most `height` lines."""
    boards = ", ".join(f"{board.device.name} {board.said}".strip() for board in work.boards)
    head = Text(
        f"farm tune {work.model.name}   {passed}   {formatting.sanitized_line(boards)}",
        "bold",
        no_wrap=True,
        overflow="ellipsis",
    )
    most = max(1, height - _OTHER_LINES)
    hidden = len(work.search.kernels) - most
    said = [f"{hidden} more kernels"] if hidden > 0 else []
    foot = Text(
        "   ".join([*said, _UNREMARKABLE.sub("", formatting.sanitized_line(last))]),
        "bright_black",
        no_wrap=True,
        overflow="ellipsis",
    )
    return Group(head, kernel_table(work, width, most), foot)


def kernel_table(work: TuningState, width: int, most: int | None = None) -> Table:
    """Return a table of at most `most` kernels, the one with the most total time first.

    Columns: share of the time, best time, speed-up over the default, candidates tried, best choice.
    Figures are never cut: the kernel's name gets the remaining width, and the choice is shown if
    the terminal has at least `_WIDE` columns.
    """
    table, wide = (
        Table(box=box.SIMPLE_HEAD, pad_edge=False, width=min(width, _WIDEST)),
        width >= _WIDE,
    )
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", ratio=1)
    longest = max((len(_figures(work, kernel)[3]) for kernel in work.search.kernels), default=0)
    for title, least in (
        ("share %", 7),
        ("best us", 7),
        ("speed-up", 8),
        ("tried", max(5, longest)),
    ):
        table.add_column(title, justify="right", width=least, no_wrap=True)
    if wide:
        table.add_column(
            "choice",
            width=max((len(kernel.best.words) for kernel in work.search.kernels), default=6),
            no_wrap=True,
        )
    kernels = sorted(work.search.kernels, key=lambda kernel: -kernel.total_s)
    for kernel in kernels[:most]:
        share, best, speedup, tried = _figures(work, kernel)
        cells: list[str | Text] = [
            share,
            best,
            Text(speedup, "green" if kernel.speedup > 1 else ""),
            tried,
        ]
        if wide:
            cells.append(Text(kernel.best.words))
        table.add_row(
            Text(_UNREMARKABLE.sub("", kernel.task.workload), "bold" if kernel.busy else ""), *cells
        )
    return table


def _figures(work: TuningState, kernel: KernelSearch) -> tuple[str, str, str, str]:
    """Return share, best time, speed-up and candidates tried.

    The first three are empty before they are known.
    """
    if not kernel.best_s:
        return "", "", "", kernel.progress
    return (
        f"{100 * work.search.share(kernel):.1f}",
        formatting.format_number(1e6 * kernel.best_s),
        f"{kernel.speedup:.2f}x",
        kernel.progress,
    )


def show_tuning_progress(
    console: Console, minutes: float, *, quiet: bool = False
) -> AbstractContextManager[QuietDisplay]:
    """Return a context manager that shows a search. `console` should write to stderr."""
    return open_display(
        console,
        quiet,
        nothing=QuietDisplay,
        screen=lambda screen: LiveDisplay(screen, minutes),
        lines=LogDisplay,
    )
