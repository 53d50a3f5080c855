"""Where progress is shown: in place on a terminal, line by line off it, nowhere for who wants quiet."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from farm import words
from farm.asking import terminal

REFRESH_S = 1 / 8
SHARE = 0.04  # of a core that drawing may take

Clock = Callable[[], float]
Display = TypeVar("Display")


class Screen:
    """The lines of a terminal that a display takes up between `start` and `stop`, of which it leaves none. No thread draws: `draw` does."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock = console, clock

    def start(self) -> None:
        """Appear below what the terminal shows; a Live that was stopped would remember where it stood before."""
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()
        self._next = -math.inf

    def stop(self) -> None:
        """Go, and leave nothing."""
        self._live.stop()

    def draw(self, render: Callable[[int, int, float], RenderableType], *, at_once: bool = False) -> None:
        """What `render` makes for so many columns and lines at the moment, if it is time to draw again, or has to be `at_once`."""
        now = self._clock()
        if self._live.is_started and (at_once or now >= self._next):  # it makes room for a question
            begin = time.process_time()
            size = self._live.console.size
            self._live.update(render(size.width, size.height - 1, now), refresh=True)
            self._next = now + max(REFRESH_S, (time.process_time() - begin) / SHARE)


class Log:
    """Lines, each with the time that has passed, for files."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock, self._began = console, clock, clock()

    def line(self, text: str) -> None:
        passed = words.elapsed(self._clock() - self._began)
        self._console.print(Text(f"{passed:>7}  {words.plain(text)}"), soft_wrap=True)


@contextlib.contextmanager
def placed(
    console: Console,
    quiet: bool,
    *,
    nothing: Callable[[], Display],
    screen: Callable[[Screen], Display],
    lines: Callable[[Log], Display],
    clock: Clock = time.monotonic,
) -> Iterator[Display]:
    """The display that suits the console, for as long as the block lasts. It makes room for a question on the terminal."""
    if quiet:
        with terminal.lent():
            yield nothing()
    elif console.file.isatty() and not console.is_dumb_terminal and not console.options.ascii_only:
        place = Screen(console, clock)
        place.start()
        try:
            with terminal.lent(place.stop, place.start):
                yield screen(place)
        finally:
            place.stop()
    else:
        with terminal.lent():
            yield lines(Log(console, clock))
