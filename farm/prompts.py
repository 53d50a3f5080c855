"""Prompts for secrets that only the user knows, such as passwords and passphrases.

They appear on the terminal; the answers stay in memory only. A task asks by `context.ask`; its pool
passes the question to `terminal` and the answer back. The terminal shows one question at a time,
and nobody blocks on it: `answers` polls for a typed line. An answer is reused while the command
lasts, unless it was wrong. Without a terminal, or in its background, every answer is None.
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

from farm import sanitize

TRIES = 3
_ECHO_AT = 3  # index of the local modes in the result of tcgetattr
_MOST_BYTES = 4096  # bytes; the longest line of a terminal


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its properties.

    The text identifies the secret: questions with the same text have the same answer, unless
    answers are valid `once` only. `hidden` turns the echo off. `wrong` is the previous answer to
    it, which was refused.
    """

    text: str
    hidden: bool = True
    once: bool = False
    wrong: str | None = field(default=None, repr=False)


Ask = Callable[[Question], "str | None"]


def answer_nothing(_: Question) -> None:
    """Answer no prompt: the handler for non-interactive use."""


class _Clock(Protocol):
    def extend(self, seconds: float) -> None: ...


def extend_deadline_while_asking(ask: Ask, deadline: _Clock) -> Ask:
    """Return `ask`, extending a deadline by the time that it waits for the answer."""

    def asked(question: Question) -> str | None:
        begin = time.monotonic()
        try:
            return ask(question)
        finally:
            deadline.extend(time.monotonic() - begin)

    return asked


class _Line:
    """A question on the terminal and the part of the answer typed so far.

    `close` restores the terminal's state.
    """

    def __init__(self, descriptor: int, question: Question) -> None:
        self._descriptor, self._typed = descriptor, b""
        self._before = termios.tcgetattr(descriptor)
        modes = termios.tcgetattr(descriptor)
        modes[_ECHO_AT] |= termios.ICANON | termios.ISIG
        if question.hidden:
            modes[_ECHO_AT] &= ~termios.ECHO
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, modes)  # earlier input is not for us
        again = "That was refused, once more: " if question.wrong is not None else ""
        self._say(again + sanitize.sanitized_line(question.text))

    def read(self) -> str | None:
        """Return the answer after its line has ended, else None; does not wait.

        It is empty if nothing was typed, or if the terminal is gone.
        """
        poll = select.poll()  # `select` refuses descriptors above 1023
        poll.register(self._descriptor, select.POLLIN)
        while poll.poll(0):
            try:
                piece = os.read(self._descriptor, _MOST_BYTES)
            except OSError:
                piece = b""
            self._typed += piece
            if not piece or piece.endswith(b"\n"):
                return self._typed.rstrip(b"\r\n").decode(errors="replace")
        return None

    def close(self) -> None:
        """Restore the terminal's modes and close it."""
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            self._say("\n")
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        os.close(self._descriptor)

    def _say(self, text: str) -> None:
        os.write(self._descriptor, text.encode())


class TerminalPrompts:
    """The terminal's pending questions, and the answers so far."""

    def __init__(self, path: str = "/dev/tty") -> None:
        self._path = path
        self._waiting: dict[str, Question] = {}  # by asker, in the order of asking
        self._known: dict[str, str | None] = {}  # by text; None: there will be no answer
        self._refusals: dict[str, int] = {}
        self._line: _Line | None = None
        self._pause: Callable[[], None] | None = None
        self._resume: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def lent(
        self, pause: Callable[[], None] = lambda: None, resume: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Allow questions on the terminal in this block.

        `pause` and `resume` stop and restart other output there, such as the dashboard.
        """
        self._pause, self._resume = pause, resume
        try:
            yield
        finally:
            self._close()
            self._pause = None

    def put(self, who: str, question: Question) -> None:
        """Queue a question on behalf of `who`, who waits for the answer."""
        self._waiting[who] = question

    def withdraw(self, who: str) -> None:
        """Remove the question of `who`, who no longer waits for it."""
        if who == next(iter(self._waiting), None):
            self._close()
        self._waiting.pop(who, None)

    def answers(self) -> list[tuple[str, str | None]]:
        """Return the available answers as (who, answer), without waiting.

        An answer is None if there will be none.
        """
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
        """Return whether the known answer is valid; count refusals, and give up after `TRIES`."""
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
        """Show a question on the terminal; return None if that is not possible."""
        if self._pause is None:
            return None
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_NOCTTY)
        except OSError:
            return None
        try:
            # reading from the background would stop this process
            if os.tcgetpgrp(descriptor) != os.getpgrp():
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


terminal = TerminalPrompts()  # one per process
