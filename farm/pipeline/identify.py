"""Ask a board what it is, for `farm add`, before its profile is known."""

from __future__ import annotations

import sys
from pathlib import Path

from farm import boards
from farm.errors import DeviceError
from farm.pipeline.operations import Show, run_task
from farm.pipeline.worker_tasks import open_pool, read_device_facts_task
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.processes.workers import TaskContext
from farm.store import Store
from farm.types import Device

_IDENTIFY_S = 60.0


def detect_board_hardware(device: Device, *, store: Store, show: Show) -> boards.DetectedHardware:
    """Return what a device says about itself. Its profile is not used.

    A board with a shell and this machine are inspected by a script; an agent at an address is
    asked for its facts. Raises DeviceError, also for an RPC server of TVM's own, which has no
    facts.
    """
    with open_pool(store) as pool:
        evidence: boards.DetectedHardware = run_task(
            pool,
            detect_board_hardware_task,
            (device, _IDENTIFY_S),
            show,
            _IDENTIFY_S,
            f"identifying {device.name}",
        )
        return evidence


def detect_board_hardware_task(
    context: TaskContext, device: Device, seconds: float
) -> boards.DetectedHardware:
    """Return what a device says about itself; called in a worker process."""
    if device.scheme in ("rpc", "tracker"):
        return _of_agent(context, device, seconds)
    from farm.transports import board_scripts, shell_transports
    from farm.transports.board_architecture import (
        agent_architecture,
        architecture_from_probe_output,
    )

    if shell_transports.has_shell(device):
        with shell_transports.reach_board(device, Deadline(seconds), context.ask) as board:
            report = board.identify()
    else:
        command: list[str | Path] = [
            "sh",
            "-c",
            board_scripts.HEAD + board_scripts.IDENTIFY,
            "farm",
            "",
            "",
        ]
        fix = "name a --profile" if sys.platform == "linux" else "farm needs Linux"
        report = board_scripts.parse_report(
            subprocesses.run_program(
                command, deadline=Deadline(seconds), what="looking at this machine", fix=fix
            )
        )
    return boards.hardware_from_report(
        agent_architecture(architecture_from_probe_output(report)), report
    )


def _of_agent(context: TaskContext, device: Device, seconds: float) -> boards.DetectedHardware:
    facts = read_device_facts_task(context, device, None, seconds)
    if not facts:
        raise DeviceError(
            f"{device.name} does not say what it is",
            "an RPC server of TVM's own listens there, which has no facts",
            "name a --profile",
        )
    return boards.hardware_from_facts(facts)
