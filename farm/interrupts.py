"""Ctrl-C, SIGTERM and SIGHUP: the first one stops the command, and none after it disturbs the cleaning up.

Outside of a `deferred` block a signal raises Stopped wherever the program is. Inside, where processes are started and the terminal is
taken over, it waits for the next `check`, so that nothing is left half-started; but not for long, should the program hang there.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_PATIENCE_S = 5.0
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """The command is to end: no error that anyone handles. The shell's exit code for it is 128 and the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@dataclass
class _State:
    number: int = 0  # of the first signal
    deferring: int = 0

    def hear(self, number: int, _: FrameType | None) -> None:
        self.number = number
        for other in _NUMBERS:
            signal.signal(other, signal.SIG_IGN)
        if not self.deferring:
            raise Stopped(number)
        signal.signal(signal.SIGALRM, self.lose_patience)
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)

    def lose_patience(self, _: int, __: FrameType | None) -> None:
        raise Stopped(self.number)


_state = _State()  # a process has one disposition of its signals


def catch() -> None:
    """Have signals raise Stopped. Those that were ignored stay so: nohup and shells' `&` mean it."""
    for number in _NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _state.hear)


def check() -> None:
    """Raise Stopped if a signal has come."""
    if _state.number:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stopped(_state.number)


def stop(loop: asyncio.AbstractEventLoop) -> None:
    """Have signals stop a loop that runs, for the next `check` to raise: what is raised in one of its callbacks, asyncio only logs."""

    def hear(number: int) -> None:
        _state.number = _state.number or number
        loop.stop()

    for number in _NUMBERS:
        if signal.getsignal(number) == _state.hear:
            loop.add_signal_handler(number, hear, number)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """A block in which signals wait for the next `check`, or for the block's end."""
    _state.deferring += 1
    try:
        yield
    finally:
        _state.deferring -= 1
    if not _state.deferring:
        check()
