"""`local:` and `qemu:`: the native agent as a process on this machine, for one session.

The agent runs natively or under qemu's user-mode emulation. It listens on loopback, on a port that
the kernel chooses, requires a random key, and ends with this process.
"""

from __future__ import annotations

import contextlib
import platform
import secrets
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farm import this_machine
from farm.errors import DeadlineError, DeviceError, FarmError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.prompts import Ask
from farm.transports.agent.errors import parse_last_session_end
from farm.transports.device_availability import DeviceAvailability
from farm.transports.rpc_client import session_with_server
from farm.transports.rpc_errors import session_ended_error, translate_error
from farm.types import Device

_START_S = 20.0
_LAST_WORDS_S = 0.5
_QEMU = {
    "armv7": "qemu-arm",
    "aarch64": "qemu-aarch64",
    "riscv64": "qemu-riscv64",
    "x86_64": "qemu-x86_64",
}


@contextlib.contextmanager
def open(  # noqa: A001
    device: Device,
    agent: Path | None,
    scratch: Path,
    timeout_s: float,
    ask: Ask,  # noqa: ARG001
    greeting_s: float | None,  # noqa: ARG001
) -> Iterator[Any]:
    """Start the agent, connect, and stop the agent when the block ends."""
    there = probe_state(device)
    if agent is None or not there.usable:
        raise DeviceError(
            f"{device.name} is {there.word}", there.why or "it has no agent", there.fix
        )
    log, port_file, key = scratch / "agent.log", scratch / "agent.port", secrets.token_hex(16)
    for left in (port_file, log):  # left by the previous session
        left.unlink(missing_ok=True)
    command: list[str | Path] = [
        *agent_command_prefix(device),
        agent,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--port-file",
        port_file,
    ]
    command += [
        "--work-dir",
        _folder(device, "work_dir", scratch / "work"),
        "--store",
        _folder(device, "store", scratch / "store"),
    ]
    command += ["--exit-with-parent", *agent_arguments(device)]
    with subprocesses.background_program(command, log=log, env={"FARM_AGENT_KEY": key}) as child:
        port = _port(device, child, port_file, log)
        try:
            with session_with_server(device, "127.0.0.1", port, key, timeout_s, _START_S) as opened:
                yield opened, None
        except FarmError:
            raise
        except Exception as exc:
            error, words = translate_error(device, exc), _last_words(child, log)
            if words and not isinstance(error, DeadlineError):
                error = session_ended_error(
                    device,
                    f"the agent of {device.name}, or its session, ended",
                    f"{error.why}\n{words}",
                    error.fix,
                )
            raise error from exc


def probe_state(device: Device) -> DeviceAvailability:
    """Return `ready` or `emulated` if the agent can run here, else `unavailable` with the reason.

    It can run natively, with qemu installed, or by the device's own launcher.
    """
    architecture = device.profile.machine
    if architecture is None:
        return DeviceAvailability(
            "unavailable",
            False,
            f"profile {device.profile.name} has no native agent",
            "reach the board by rpc:// or tracker://",
        )
    ready = DeviceAvailability("emulated" if device.emulated else "ready", True)
    if "launcher" in device.options:
        program = agent_command_prefix(device)[0]
        why, fix = (
            f"its launcher {program!r} is not installed",
            f"install it, or correct `launcher` of {device.name}",
        )
        return (
            ready
            if subprocesses.first_installed_program(program)
            else DeviceAvailability("unavailable", False, why, fix)
        )
    if device.emulated:
        why, fix = f"{_QEMU[architecture]} is not installed", "sudo apt-get install qemu-user"
        return (
            ready
            if subprocesses.first_installed_program(_QEMU[architecture])
            else DeviceAvailability("unavailable", False, why, fix)
        )
    why = (
        f"this machine is {platform.machine()}, the profile {device.profile.name} is for "
        f"{architecture}"
    )
    here = this_machine.agent_architecture() == architecture
    return (
        ready
        if here
        else DeviceAvailability("unavailable", False, why, 'use url = "qemu:" to emulate it')
    )


def agent_arguments(device: Device) -> list[str]:
    """Return the agent's arguments for the device's options.

    Threads and cores are not among them: each session sets them itself.
    """
    return (
        ["--store-budget", str(int(device.options["store_budget_mb"]) * 10**6)]
        if "store_budget_mb" in device.options
        else []
    )


def agent_thread_arguments(device: Device) -> list[str]:
    """Return the arguments for threads and cores of a service, an agent that serves others, too."""
    return [
        word
        for name in ("threads", "cores")
        if name in device.options
        for word in (f"--{name}", str(device.options[name]))
    ]


def agent_command_prefix(device: Device) -> list[str]:
    """Return the command that precedes the agent's own.

    Raises DeviceError for quotes that do not close.
    """
    given = str(device.options.get("launcher", ""))
    if not given and device.scheme == "qemu":
        return [_QEMU[device.profile.machine or ""]]
    try:
        return shlex.split(given)
    except ValueError as exc:
        raise DeviceError(
            f"the launcher of {device.name} is no command: {given}",
            str(exc),
            "close its quotes in devices.toml",
        ) from exc


def _folder(device: Device, option: str, default: Path) -> Path:
    folder = Path(str(device.options.get(option, default)))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _last_words(child: Any, log: Path) -> str:
    """Return how the agent or its session has ended, or an empty string if it ended properly.

    The agent's log reports the end a moment after the client notices it.
    """
    deadline = Deadline(_LAST_WORDS_S)
    while not deadline.expired:
        if child.poll() is not None:
            return f"its agent ended with status {child.returncode}"
        text = log.read_text(errors="replace")
        if end := parse_last_session_end(text):
            return "" if end.properly else f"its agent: {subprocesses.last_lines(text, 1)}"
        time.sleep(0.005)
    return ""


def _port(device: Device, child: Any, port_file: Path, log: Path) -> int:
    deadline = Deadline(_START_S)
    while not port_file.exists():
        if child.poll() is not None or deadline.expired:
            how = (
                f"ended with status {child.returncode}"
                if child.poll() is not None
                else f"did not start within {_START_S:.0f} s"
            )
            raise DeviceError(
                f"the agent of {device.name} {how}",
                subprocesses.last_lines(log.read_text(errors="replace")),
                "farm devices -v",
            )
        time.sleep(0.005)
    return int(port_file.read_text())
