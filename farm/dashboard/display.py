"""Choose where progress is shown.

A terminal gets a region that is redrawn in place, other outputs get log lines, and `quiet` shows
nothing.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from farm import formatting
from farm.prompts import terminal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

REFRESH_S = 1 / 8
MAX_CPU_SHARE = 0.04  # of one CPU core: the most that drawing may use

Clock = Callable[[], float]
PrintLine = Callable[[str], None]
Display = TypeVar("Display")


class TerminalRegion:
    """The lines of a terminal that a display uses between `start` and `stop`.

    `stop` removes them. No thread draws; only `draw` does.
    """

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock = console, clock

    def start(self) -> None:
        """Start the display below the current output.

        A new Live is made each time, because a stopped one would return to its old position.
        """
        from rich.live import Live

        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
        )
        self._live.start()
        self._next = -math.inf

    def stop(self) -> None:
        """Stop the display and remove its lines."""
        self._live.stop()

    def draw(
        self, render: Callable[[int, int, float], RenderableType], *, at_once: bool = False
    ) -> None:
        """Draw `render(columns, lines, now)` if it is time to draw again, or if `at_once`.

        The interval is at least `REFRESH_S`, and long enough that drawing uses at most
        `MAX_CPU_SHARE` of a core.
        """
        now = self._clock()
        if self._live.is_started and (at_once or now >= self._next):  # stopped during a prompt
            begin = time.process_time()
            size = self._live.console.size
            self._live.update(render(size.width, size.height - 1, now), refresh=True)
            self._next = now + max(REFRESH_S, (time.process_time() - begin) / MAX_CPU_SHARE)


class LogLines:
    """Log lines that begin with the elapsed time, for files."""

    def __init__(self, print_line: PrintLine, clock: Clock) -> None:
        self._print, self._clock, self._began = print_line, clock, clock()

    def line(self, text: str) -> None:
        """Print one line."""
        passed = formatting.format_duration(self._clock() - self._began)
        self._print(f"{passed:>7}  {formatting.sanitized_line(text)}")


@contextlib.contextmanager
def open_display(
    output: Console | PrintLine,
    quiet: bool,
    *,
    nothing: Callable[[], Display],
    screen: Callable[[TerminalRegion], Display],
    lines: Callable[[LogLines], Display],
    clock: Clock = time.monotonic,
) -> Iterator[Display]:
    """Yield the display that suits the output, for as long as the block lasts.

    A function that prints a line is enough for an output that is no terminal. The terminal can be
    lent to a prompt meanwhile: the display is then removed and drawn again.
    """
    if quiet:
        with terminal.lent():
            yield nothing()
    elif callable(output):
        with terminal.lent():
            yield lines(LogLines(output, clock))
    elif output.file.isatty() and not output.is_dumb_terminal and not output.options.ascii_only:
        place = TerminalRegion(output, clock)
        place.start()
        try:
            with terminal.lent(place.stop, place.start):
                yield screen(place)
        finally:
            place.stop()
    else:
        with terminal.lent():
            yield lines(LogLines(functools.partial(_print_line, output), clock))


def _print_line(console: Console, text: str) -> None:
    from rich.text import Text

    console.print(Text(text), soft_wrap=True)
