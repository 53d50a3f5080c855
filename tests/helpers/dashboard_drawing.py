"""Apply events to the board of a dashboard and draw it as text."""

from __future__ import annotations

import io

from rich.console import Console

from farm import dashboard
from farm.dashboard import JobBoard
from farm.types import (
    Agreement,
    Device,
    DeviceResults,
    Event,
    Failure,
    Job,
    Latency,
    MeasurementSettings,
    Model,
    Profile,
    Run,
    Verdict,
)


def jobs(devices: int = 2, models: int = 2, scheme: str = "local:") -> list[Job]:
    boards = [Device(f"board{number}", Profile("x86", {}, ""), scheme) for number in range(devices)]
    return [
        Job(board, Model(f"model{number}", ""), MeasurementSettings())
        for board in boards
        for number in range(models)
    ]


def a_run(
    verdict: Verdict = Verdict.STABLE,
    url: str = "local:",
    reason: str = "because",
    failure: Failure | None = None,
) -> Run:
    samples = DeviceResults(
        (0.0437,) * 20, 0.1, Agreement(3.1e-7, 120.0, True, True), 450, 460, {}, {}, {}, 0
    )
    latency = Latency(20, 43.7, 43.7, 43.7, 1.748, None, None)
    made = None if failure else (samples, latency)
    return Run(
        "1",
        "board0",
        "model0",
        "x86",
        url,
        "",
        verdict,
        reason,
        None,
        *(made or (None, None)),
        449,
        460,
        failure=failure,
    )


DIED = Failure("DeviceError", "the agent died", "signal 9", "farm devices", 5)


def drawn(board: JobBoard, width: int = 80, height: int = 40, now: float = 100.0) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(dashboard.render(board, width, height, now))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def after(*events: Event, plan: list[Job] | None = None) -> JobBoard:
    board = JobBoard.start(plan or jobs(), 0.0)
    for number, event in enumerate(events):
        board = board.apply(event, 1.0 + number)
    return board
