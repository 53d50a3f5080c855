"""What the workers of a cluster run in tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from farm.cluster import ControllerChannel
from farm.types import Progress, Stage


def place_and_number(request: object, line: ControllerChannel) -> tuple[int, object]:
    line.note(Progress(Stage.COMPILING, "adding", 0.5))
    return os.getpid(), request


def until_unwanted(request: Path, line: ControllerChannel) -> None:
    """Say that it began, wait until it is cancelled, and say that."""
    request.with_suffix(".begun").write_text(str(os.getpid()))
    while line.wanted():
        time.sleep(0.05)
    request.with_suffix(".ended").touch()


def first_hangs(request: Path, line: ControllerChannel) -> int:
    """Wait for SIGKILL on the first worker; return the process on the next one."""
    try:
        with request.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return os.getpid()
    while line.wanted():
        time.sleep(0.05)
    raise AssertionError("it was to be killed")


def wrong(request: object, line: ControllerChannel) -> None:
    raise ValueError(f"no {request}")


def dies(request: object, line: ControllerChannel) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
