"""`adb:[serial]`: an Android board, on which farm installs its agent by adb.

The agent communicates on the standard streams of a command that the adb program runs: the board
opens no port, and no other app of it can connect to the agent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import DeadlineError, DeviceError, FarmError, LinkError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.processes.output_end import OutputEnd
from farm.prompts import Ask
from farm.rpc.blocking_connection import BlockingConnection
from farm.transports.adb import android_facts, devices, server
from farm.transports.adb.board import AdbBoard
from farm.transports.adb.server import DeviceWatch, ServerError
from farm.transports.adb.upload import upload_file
from farm.transports.device_availability import DeviceAvailability
from farm.transports.rpc_client import session_over_streams
from farm.transports.rpc_errors import (
    agent_exit_in_words,
    session_deadline_error,
    session_ended_error,
    translate_error,
)
from farm.types import Device

if TYPE_CHECKING:
    from subprocess import Popen

_LAST_WORDS_S = 1.5


@contextlib.contextmanager
def open(  # noqa: A001
    device: Device,
    agent: Path | None,
    scratch: Path,  # noqa: ARG001
    timeout_s: float,
    ask: Ask,  # noqa: ARG001
    greeting_s: float | None,  # noqa: ARG001
) -> Iterator[Any]:
    """Start the agent on the board, connect, and end it when the block ends.

    If the session breaks, the error says whether the board, the adb server or the agent has gone.
    """
    if agent is None:
        there = probe_state(device)
        raise DeviceError(
            f"{device.name} is {there.word}", there.why or "it has no agent", there.fix
        )
    deadline, log = Deadline(timeout_s), OutputEnd()
    found = devices.find_device(device)
    with _watched(found) as watch:
        board = AdbBoard(device, deadline, found)
        streams, store = board.start_agent(agent, log)
        with streams as (sock, child):
            try:
                with session_over_streams(device, BlockingConnection(sock), timeout_s) as session:
                    yield session, partial(upload_file, board, store, log)
            except FarmError:
                raise
            except Exception as exc:
                if isinstance(translate_error(device, exc), (LinkError, DeadlineError)):
                    raise _cause(device, watch, child, log, deadline) from exc
                raise


def probe_state(device: Device) -> DeviceAvailability:
    """Return `ready` if adb lists the device as one that can be used."""
    return devices.probe_state(device)


def read_system_facts(device: Device) -> dict[str, str]:
    """Return what Android says of the board.

    SoC, battery, battery saver, screen, thermal status.
    """
    return android_facts.read_android_facts(device)


@contextlib.contextmanager
def _watched(found: devices.UsableDevice) -> Iterator[DeviceWatch]:
    with contextlib.ExitStack() as stack:
        try:
            watch = stack.enter_context(server.watch_device(found.where, found.serial))
        except (OSError, ServerError) as exc:
            raise DeviceError(
                "the adb server does not tell its devices",
                str(exc),
                "see what this says: adb devices -l",
            ) from exc
        yield watch


def _cause(
    device: Device, watch: DeviceWatch, child: Popen[bytes], log: OutputEnd, deadline: Deadline
) -> FarmError:
    """Return the error that explains why the session is over."""
    name = device.name
    if deadline.expired:
        return session_deadline_error(device, deadline)
    status = subprocesses.wait_for_shell_exit_code(child, _LAST_WORDS_S)
    said = subprocesses.last_lines(log.text())
    lost = watch.lost()
    if lost == "server":
        why = (
            f"the server at {server.server_address()} ended, by adb kill-server, by an adb program "
            "of another version, or by a crash"
        )
        return LinkError(
            f"the adb server ended while {name} was in use",
            why,
            "run the command again; it starts a server if none runs",
        )
    if lost:
        why = "adb no longer lists it" if lost == "absent" else f"adb lists it as {lost} now"
        fix = (
            "check its cable and whether it has restarted, plug it in again, and run the command "
            "again"
        )
        return LinkError(f"{name} was unplugged, or its connection broke", why, fix)
    return session_ended_error(
        device,
        agent_exit_in_words(device, status),
        said,
        "check the memory of the board (farm devices -v, adb logcat), then run the command again",
    )
