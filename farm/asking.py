"""Questions that only the user can answer: a password, a passphrase. Asked on the terminal; the answers stay in memory and nowhere else.

A task asks by `desk.ask`; its crew hands the question to `terminal` and the answer back. One question stands there at a time, and nobody
stands still for it: `answers` looks whether a line has been typed. What was answered once is not asked again while the command lasts,
unless it was wrong. Where there is no terminal, or we are in its background, every answer is None.
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

TRIES = 3
_ECHO_AT = 3  # the local modes in what tcgetattr gives
_MOST_BYTES = 4096  # of a line, as terminals have it


@dataclass(frozen=True, slots=True)
class Question:
    """Its text says whose secret is wanted: two questions of the same text have the same answer, unless answers are good `once` only.

    `wrong` is the answer to it that was refused.
    """

    text: str
    hidden: bool = True
    once: bool = False
    wrong: str | None = field(default=None, repr=False)


Ask = Callable[[Question], "str | None"]


def nobody(_: Question) -> None:
    """For who has nobody to ask."""


class _Clock(Protocol):
    def extend(self, seconds: float) -> None: ...


def patiently(ask: Ask, deadline: _Clock) -> Ask:
    """`ask`, with a deadline that waits for the answer too."""

    def asked(question: Question) -> str | None:
        begin = time.monotonic()
        try:
            return ask(question)
        finally:
            deadline.extend(time.monotonic() - begin)

    return asked


class _Line:
    """A question on the terminal, and as much of the answer as has been typed. The terminal is as it was once this is closed."""

    def __init__(self, descriptor: int, question: Question) -> None:
        self._descriptor, self._typed = descriptor, b""
        self._before = termios.tcgetattr(descriptor)
        modes = termios.tcgetattr(descriptor)
        modes[_ECHO_AT] |= termios.ICANON | termios.ISIG
        if question.hidden:
            modes[_ECHO_AT] &= ~termios.ECHO
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, modes)  # what was typed before was not meant for us
        again = "That was refused, once more: " if question.wrong is not None else ""
        self._say("".join(char if char.isprintable() else " " for char in again + question.text))

    def read(self) -> str | None:
        """The answer once its line has ended, else None. Empty where nothing was typed, or the terminal is gone."""
        while select.select([self._descriptor], [], [], 0)[0]:
            try:
                piece = os.read(self._descriptor, _MOST_BYTES)
            except OSError:
                piece = b""
            self._typed += piece
            if not piece or piece.endswith(b"\n"):
                return self._typed.rstrip(b"\r\n").decode(errors="replace")
        return None

    def close(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # it is gone
            self._say("\n")
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        os.close(self._descriptor)

    def _say(self, text: str) -> None:
        os.write(self._descriptor, text.encode())


class Terminal:
    """Who is at the terminal, and what they have answered so far."""

    def __init__(self, path: str = "/dev/tty") -> None:
        self._path = path
        self._waiting: dict[str, Question] = {}  # by who asks, in the order of asking
        self._known: dict[str, str | None] = {}  # by text; None: there will be no answer
        self._refusals: dict[str, int] = {}
        self._line: _Line | None = None
        self._pause: Callable[[], None] | None = None
        self._resume: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def lent(self, pause: Callable[[], None] = lambda: None, resume: Callable[[], None] = lambda: None) -> Iterator[None]:
        """A block in which the terminal may be asked. `pause` and `resume` are of what else is shown there."""
        self._pause, self._resume = pause, resume
        try:
            yield
        finally:
            self._close()
            self._pause = None

    def put(self, who: str, question: Question) -> None:
        """Ask on behalf of somebody, who waits for the answer."""
        self._waiting[who] = question

    def withdraw(self, who: str) -> None:
        """Somebody waits no longer."""
        if who == next(iter(self._waiting), None):
            self._close()
        self._waiting.pop(who, None)

    def answers(self) -> list[tuple[str, str | None]]:
        """Who has an answer now, and which; None where there will be none. Never waits."""
        found = []
        while self._waiting:
            who, question = next(iter(self._waiting.items()))
            if self._line is None and not self._is_answered(question):
                self._line = self._open(question)
                if self._line is None:
                    self._known[question.text] = None
            if self._line:
                typed = self._line.read()
                if typed is None:
                    break
                self._close()
                self._known[question.text] = typed or None
            found.append((who, self._known.get(question.text)))
            del self._waiting[who]
        return found

    def _is_answered(self, question: Question) -> bool:
        text = question.text
        if text not in self._known or (question.once and self._known[text] is not None):
            return False
        if question.wrong is not None and question.wrong == self._known[text]:
            self._refusals[text] = self._refusals.get(text, 0) + 1
            if self._refusals[text] < TRIES:
                return False
            self._known[text] = None
        return True

    def _open(self, question: Question) -> _Line | None:
        if self._pause is None:
            return None
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_NOCTTY)
        except OSError:
            return None
        try:
            if os.tcgetpgrp(descriptor) != os.getpgrp():  # from its background, reading would stop us
                raise OSError
            self._pause()
            return _Line(descriptor, question)
        except (OSError, termios.error):
            os.close(descriptor)
            return None

    def _close(self) -> None:
        if self._line:
            self._line.close()
            self._line = None
            self._resume()


terminal = Terminal()  # a process has one
