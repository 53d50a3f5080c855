"""The search for better choices as it goes: a table in place on a terminal, or a line for each step."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from farm import words
from farm.dashboard.placing import placed

if TYPE_CHECKING:
    from farm.pipeline.trials import Tuning

_REFRESH_S = 0.2
_OTHER_LINES = 6  # that a screen needs beside the rows of kernels


class Quiet:
    """Takes what a search says, and shows nothing."""

    def __call__(self, work: Tuning, line: str) -> None:
        pass


class Lines(Quiet):
    """A line for each step, for logs."""

    def __init__(self, console: Console) -> None:
        self._console, self._began, self._last = console, time.monotonic(), ""

    def __call__(self, _: Tuning, line: str) -> None:
        if line and line != self._last:
            self._last = line
            self._console.print(Text(f"{words.elapsed(time.monotonic() - self._began):>7}  {words.plain(line)}"), soft_wrap=True)


class Screen(Quiet):
    """The table in place."""

    def __init__(self, console: Console, minutes: float) -> None:
        self._console, self._began, self._minutes, self._last, self._drawn = console, time.monotonic(), minutes, "", 0.0

    def start(self) -> None:
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def __call__(self, work: Tuning, line: str) -> None:
        self._last = line or self._last
        now = time.monotonic()
        if self._live.is_started and now - self._drawn >= _REFRESH_S:
            self._drawn = now
            size = self._live.console.size
            passed = f"{words.elapsed(now - self._began)} of {self._minutes:g} min"
            self._live.update(render(work, passed, self._last, size.width, size.height - 1), refresh=True)


def render(work: Tuning, passed: str, last: str, width: int, height: int) -> Group:
    """The head, the kernels, and what happened last, in at most `height` lines."""
    boards = ", ".join(f"{board.device.name} {board.said}".strip() for board in work.boards)
    head = Text(f"farm tune {work.model.name}   {passed}   {words.plain(boards)}", "bold", no_wrap=True, overflow="ellipsis")
    return Group(head, kernel_table(work, width, height - _OTHER_LINES), Text(words.plain(last), "bright_black", no_wrap=True))


def kernel_table(work: Tuning, width: int, most: int | None = None) -> Table:
    """Kernels, the hardest first: share of the time, the best choice, speed-up over the default, how many candidates were tried."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=min(width, 130))
    for title, right in (("kernel", False), ("share %", True), ("best us", True), ("choice", False), ("speed-up", True), ("tried", True)):
        table.add_column(title, justify="right" if right else "left", min_width=len(title), no_wrap=True, overflow="ellipsis")
    kernels = sorted(work.search.kernels, key=lambda kernel: -kernel.total_s)
    for kernel in kernels[:most]:
        known = kernel.best_s > 0
        table.add_row(
            Text(kernel.task.workload, "bold" if kernel.busy else ""),
            f"{100 * work.search.share(kernel):.1f}" if known else "",
            words.digits(1e6 * kernel.best_s) if known else "",
            Text(kernel.best.words),
            Text(f"{kernel.speedup:.2f}x", "green" if kernel.speedup > 1 else "") if known else "",
            f"{len(kernel.tried)}/{len(kernel.task.candidates)}",
        )
    return table


def show(console: Console, minutes: float, *, quiet: bool = False) -> AbstractContextManager[Quiet]:
    """Show a search for as long as the block lasts. `console` should write to stderr."""
    return placed(console, quiet, nothing=Quiet, screen=lambda: Screen(console, minutes), lines=lambda: Lines(console))
