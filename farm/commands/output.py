"""Print to the terminal, and sanitize text from outside.

    echo("parameters ", name)             one line on stdout
    echo(Styled("error", "red"), ": x")   a part in a colour
    echo_text(markdown)                   a document of several lines
    echo_json(value)                      JSON, whose strings are escaped by their format
    console(stderr=True)                  a rich Console, for tables and progress
    show_error(error)                     a FarmError

tests/project/test_architecture.py refuses print, click.echo, sys.stdout and Console elsewhere.
`sanitize_standard_streams` also sanitizes the warnings, logs and tracebacks of libraries. Data goes
to stdout; progress and errors go to stderr.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

from farm import sanitize
from farm.errors import FarmError

if TYPE_CHECKING:
    from rich.console import Console

_INDENT = " " * 7  # of continuation lines: the width of "error: "


@dataclass(frozen=True, slots=True)
class Styled:
    """A part of a line in a colour of the terminal, or bold."""

    text: str
    colour: str | None = None
    bold: bool | None = None


def echo(*parts: str | Styled, err: bool = False) -> None:
    """Print one line. Line breaks and control characters in a part are shown as escapes."""
    _write("".join(map(_rendered, parts)) + "\n", err)


def echo_text(text: str) -> None:
    """Print a document of several lines. Control characters except tabs are shown as escapes."""
    _write("\n".join(_lines_with_tabs(text.rstrip("\n"))) + "\n", False)


def echo_json(value: Any) -> None:
    """Print a JSON document. Raises ValueError for nan and infinity."""
    _write(json.dumps(value, indent=1, allow_nan=False) + "\n", False)


def show_error(error: FarmError) -> None:
    """Print an error on stderr. Lines after the first of a part are indented."""
    for label, text, colour in zip(
        ("error", "why", "fix"), error.parts(), ("red", "yellow", "green"), strict=True
    ):
        first, *rest = sanitize.sanitized_lines(str(text)) or [""]
        if text:
            echo(Styled(label, colour, bold=True), f": {first}", err=True)
        for line in rest:
            echo(f"{_INDENT}{line}", err=True)


def console(*, stderr: bool) -> Console:
    """Return a console for tables and progress that does not interpret markup in strings."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    from farm.commands.rich_theme import theme

    class CleanConsole(Console):
        """A console that drops unsafe characters and links that the cells did not sanitize."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            """Yield the segments without unsafe characters and links."""
            for segment in super().render(renderable, options):
                text, style, control = segment
                if control or (_is_drawn(text) and not (style and style.link)):
                    yield segment
                else:
                    kept = "".join(filter(_is_drawn, text))
                    yield Segment(kept, style.update_link(None) if style else None)

        def on_broken_pipe(self) -> None:
            """Raise BrokenPipeError for the command line; rich would exit with an error code."""
            raise BrokenPipeError

    return CleanConsole(
        file=_unguarded(stderr), highlight=False, emoji=False, markup=False, theme=theme()
    )


def is_terminal(*, err: bool) -> bool:
    """Return whether stdout, or stderr, is a terminal."""
    stream = _unguarded(err)
    return bool(stream and stream.isatty())  # it may be closed


@contextlib.contextmanager
def sanitize_standard_streams() -> Iterator[None]:
    """Sanitize what libraries write to sys.stdout and sys.stderr while the block lasts."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Guarded(stream) if stream else stream for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def defer_warnings() -> Iterator[None]:
    """Print the warnings of farm's log on stderr when the block ends, below what is shown live."""
    log, kept = logging.getLogger("farm"), _Kept()
    propagates, log.propagate = log.propagate, False
    log.addHandler(kept)
    try:
        yield
    finally:
        log.removeHandler(kept)
        log.propagate = propagates
        for text in dict.fromkeys(kept.texts):
            echo(Styled("warning", "yellow", bold=True), f": {text}", err=True)


class _Kept(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class _Guarded:
    """A stream that sanitizes what is written to it, except by this module."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write("\n".join(_lines_with_tabs(text)))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _write(text: str, err: bool) -> None:
    click.echo(
        text, file=_unguarded(err), nl=False, color=False if os.environ.get("NO_COLOR") else None
    )


def _unguarded(err: bool) -> TextIO:
    stream = sys.stderr if err else sys.stdout
    return stream.stream if isinstance(stream, _Guarded) else stream


def _rendered(part: str | Styled) -> str:
    if isinstance(part, str):
        return sanitize.sanitized_line(part)
    return click.style(sanitize.sanitized_line(part.text), fg=part.colour, bold=part.bold)


def _lines_with_tabs(text: str) -> list[str]:
    return ["\t".join(map(sanitize.sanitized_line, line.split("\t"))) for line in text.split("\n")]


def _is_drawn(text: str) -> bool:
    """Return whether a segment's text is safe, ignoring line ends and the spaces within numbers."""
    return sanitize.is_terminal_safe(text) or sanitize.is_terminal_safe(
        text.replace("\n", "").replace("\u202f", "").replace("\xa0", "")
    )
