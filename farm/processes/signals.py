"""Ctrl-C, SIGTERM and SIGHUP: the first signal stops the command; cleanup ignores the others.

Outside a `defer_signals` block a signal raises Stopped at any point of the program. Inside one,
where processes are started and the terminal is configured, it waits for the next
`raise_if_stopped`, so that nothing is left half-started; the wait is limited, in case the program
hangs there.
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
    """The command is to end; no handler of errors catches this.

    The shell's exit code for it is 128 plus the number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@dataclass
class _State:
    number: int = 0  # number of the first signal
    deferring: int = 0

    def hear(self, number: int, _: FrameType | None) -> None:
        """Handle the first signal: ignore further ones, raise Stopped or start the time limit."""
        self.number = number
        for other in _NUMBERS:
            signal.signal(other, signal.SIG_IGN)
        if not self.deferring:
            raise Stopped(number)
        signal.signal(signal.SIGALRM, self.lose_patience)
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)

    def lose_patience(self, _: int, __: FrameType | None) -> None:
        """Raise Stopped if a `defer_signals` block lasts too long after a signal."""
        raise Stopped(self.number)


_state = _State()  # one per process, as are its signal handlers


def raise_stopped_on_signals() -> None:
    """Make signals raise Stopped, except those that were ignored.

    nohup and shells' `&` ignore signals intentionally.
    """
    for number in _NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _state.hear)


def raise_if_stopped() -> None:
    """Raise Stopped if a signal has arrived."""
    if _state.number:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stopped(_state.number)


def stop_loop_on_signal(loop: asyncio.AbstractEventLoop) -> None:
    """Make signals stop a running loop; the next `raise_if_stopped` then raises Stopped.

    asyncio only logs an exception that is raised in one of its callbacks.
    """

    def hear(number: int) -> None:
        _state.number = _state.number or number
        loop.stop()

    for number in _NUMBERS:
        if signal.getsignal(number) == _state.hear:
            loop.add_signal_handler(number, hear, number)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Delay signals in this block to the next `raise_if_stopped`, or to the end of the block."""
    _state.deferring += 1
    try:
        yield
    finally:
        _state.deferring -= 1
    if not _state.deferring:
        raise_if_stopped()
