"""Run functions when this process ends, also in a worker process.

A worker ends without Python's own cleanup, and by SIGTERM in the middle of a task. What it holds
elsewhere, a lease of a board for instance, would otherwise stay there until somebody misses it.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class _State:
    on_sigterm: bool = False
    functions: list[Callable[[], None]] = field(default_factory=list)


_state = _State()  # one per process, as is its end


def run_exit_functions_on_sigterm() -> None:
    """Have SIGTERM run the functions, too. Until there is one, SIGTERM ends the process at once."""
    _state.on_sigterm = True


def register(function: Callable[[], None]) -> None:
    """Have a function run when this process ends. A worker registers in its main thread only."""
    if not _state.functions:
        atexit.register(run_exit_functions)
        if _state.on_sigterm:
            signal.signal(signal.SIGTERM, _end)
    _state.functions.append(function)


def run_exit_functions() -> None:
    """Run the registered functions, each once, the last first."""
    while _state.functions:
        _state.functions.pop()()


def _end(number: int, _: object) -> None:
    """End the process as the signal would, after the functions."""
    signal.signal(number, signal.SIG_IGN)
    run_exit_functions()
    os._exit(128 + number)
