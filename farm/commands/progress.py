"""Progress of a command with a single task: a spinner on a terminal, or plain lines."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from farm import sanitize
from farm.commands.common import Session
from farm.commands.output import Styled, echo
from farm.processes import signals
from farm.prompts import terminal

if TYPE_CHECKING:
    from types import TracebackType

    from rich.status import Status

    from farm.types import Progress


class Spinner:
    """A spinner that shows the current stage of the work; it shows nothing with --quiet."""

    def __init__(self, session: Session, title: str) -> None:
        output = session.progress()
        self._console = None if callable(output) or output.is_dumb_terminal else output
        self._title, self._last = title, ""
        self._live = session.verbosity >= 0 and self._console is not None
        self._quiet = session.verbosity < 0
        self._status: Status | None = None
        self._block = ExitStack()

    def __enter__(self) -> Spinner:
        self._block.enter_context(signals.defer_signals())
        self._start()
        self._block.callback(self._stop)
        self._block.enter_context(terminal.lent(self._stop, self._start))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, error, trace)

    def say(self, *parts: str | Styled) -> None:
        """Print a line on stdout, above the spinner."""
        self._stop()  # otherwise the line would be written into the spinner's line
        echo(*parts)
        self._start()

    def _start(self) -> None:
        if self._live and self._console:
            self._status = self._console.status(_plain(self._title))
            self._status.start()

    def _stop(self) -> None:
        if self._status:
            self._status.stop()
            self._status = None

    def show(self, progress: Progress) -> None:
        """Show the current stage."""
        text = (
            f"{self._title}: {progress.stage.value}{', ' if progress.note else ''}{progress.note}"
        )
        if progress.fraction is not None:
            text += f" {progress.fraction:.0%}"
        if self._status:
            self._status.update(_plain(text))
        elif not (self._live or self._quiet) and progress.stage.value != self._last:
            self._last = progress.stage.value
            echo(text, err=True)


def _plain(text: str):  # type: ignore[no-untyped-def]
    from rich.text import Text

    return Text(sanitize.sanitized_line(text))
