"""Where progress is shown: in place on a terminal, line by line off it, nowhere for who wants quiet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from rich.console import Console

from farm.asking import terminal


class InPlace(Protocol):
    """A display that takes up lines of the terminal between `start` and `stop`, and leaves none; it may be started again."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


Display = TypeVar("Display")
Screen = TypeVar("Screen", bound=InPlace)


@contextlib.contextmanager
def placed(
    console: Console, quiet: bool, *, nothing: Callable[[], Display], screen: Callable[[], Screen], lines: Callable[[], Display]
) -> Iterator[Display | Screen]:
    """The display that suits the console, for as long as the block lasts. It makes room for a question on the terminal."""
    if quiet:
        with terminal.lent():
            yield nothing()
    elif console.file.isatty() and not console.is_dumb_terminal and not console.options.ascii_only:
        live = screen()
        live.start()
        try:
            with terminal.lent(live.stop, live.start):
                yield live
        finally:
            live.stop()
    else:
        with terminal.lent():
            yield lines()
