"""`local:` and `qemu:`: the native agent as a process on this machine, for one session, as itself or under qemu's user-mode emulation.

It listens on loopback, on a port of the kernel's choice, under a key that nobody else knows, and ends with us.
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

from farm import process
from farm.asking import Ask
from farm.deadline import Deadline
from farm.errors import DeadlineError, DeviceError, FarmError
from farm.transports.errors import ended, translate
from farm.transports.readiness import State
from farm.transports.rpc_client import connect
from farm.types import Device

_START_S = 20.0
_LAST_WORDS_S = 0.5
_QEMU = {"armv7": "qemu-arm", "aarch64": "qemu-aarch64", "riscv64": "qemu-riscv64", "x86_64": "qemu-x86_64"}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "armv7l": "armv7", "riscv64": "riscv64"}


@contextlib.contextmanager
def open(device: Device, agent: Path | None, scratch: Path, timeout_s: float, ask: Ask) -> Iterator[Any]:  # noqa: A001, ARG001
    """Start the agent, connect, and end the agent when the block ends."""
    there = state(device)
    if agent is None or not there.usable:
        raise DeviceError(f"{device.name} is {there.word}", there.why or "it has no agent", there.fix)
    log, port_file, key = scratch / "agent.log", scratch / "agent.port", secrets.token_hex(16)
    for left in (port_file, log):  # by the session before
        left.unlink(missing_ok=True)
    command: list[str | Path] = [*launcher_of(device), agent, "--host", "127.0.0.1", "--port", "0", "--port-file", port_file]
    command += ["--work-dir", _folder(device, "work_dir", scratch / "work"), "--store", _folder(device, "store", scratch / "store")]
    command += ["--exit-with-parent", *agent_options(device)]
    with process.running(command, log=log, env={"FARM_AGENT_KEY": key}) as child:
        port = _port(device, child, port_file, log)
        try:
            yield connect("127.0.0.1", port, key, timeout_s), None
        except FarmError:
            raise
        except Exception as exc:
            error, words = translate(device, exc), _last_words(child, log)
            if words and not isinstance(error, DeadlineError):
                error = ended(device, f"the agent of {device.name}, or its session, ended", f"{error.why}\n{words}", error.fix)
            raise error from exc


def state(device: Device) -> State:
    """Ready if the agent can run here: natively, with qemu installed, or by the device's own launcher."""
    architecture = device.profile.machine
    if architecture is None:
        return State("unavailable", False, f"profile {device.profile.name} has no native agent", "reach the board by rpc:// or tracker://")
    ready = State("emulated" if device.emulated else "ready", True)
    if "launcher" in device.options:
        program = launcher_of(device)[0]
        why, fix = f"its launcher {program!r} is not installed", f"install it, or correct `launcher` of {device.name}"
        return ready if process.find(program) else State("unavailable", False, why, fix)
    if device.emulated:
        why, fix = f"{_QEMU[architecture]} is not installed", "sudo apt-get install qemu-user"
        return ready if process.find(_QEMU[architecture]) else State("unavailable", False, why, fix)
    why = f"this machine is {platform.machine()}, the profile {device.profile.name} is for {architecture}"
    here = _MACHINES.get(platform.machine().lower()) == architecture
    return ready if here else State("unavailable", False, why, 'use url = "qemu:" to emulate it')


def agent_options(device: Device) -> list[str]:
    """What the device's options say to its agent. Threads and cores are asked for in each session."""
    return ["--store-budget", str(int(device.options["store_budget_mb"]) * 10**6)] if "store_budget_mb" in device.options else []


def thread_options(device: Device) -> list[str]:
    """What they say to an agent that serves others, too: a service."""
    return [word for name in ("threads", "cores") if name in device.options for word in (f"--{name}", str(device.options[name]))]


def launcher_of(device: Device) -> list[str]:
    """The words before the agent's own. Raises DeviceError for quotes that do not close."""
    given = str(device.options.get("launcher", ""))
    if not given and device.scheme == "qemu":
        return [_QEMU[device.profile.machine or ""]]
    try:
        return shlex.split(given)
    except ValueError as exc:
        raise DeviceError(f"the launcher of {device.name} is no command: {given}", str(exc), "close its quotes in devices.toml") from exc


def _folder(device: Device, option: str, default: Path) -> Path:
    folder = Path(str(device.options.get(option, default)))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _last_words(child: Any, log: Path) -> str:
    """How the agent or its session has ended, if not in good order: its log says so a moment after the client has noticed."""
    deadline = Deadline(_LAST_WORDS_S)
    while not deadline.expired:
        if child.poll() is not None:
            return f"its agent ended with status {child.returncode}"
        if "is over" in (text := log.read_text(errors="replace")):
            end = process.last_lines(text, 1)
            return "" if end.endswith(("exit code 0", "its client was told why")) else f"its agent: {end}"
        time.sleep(0.005)
    return ""


def _port(device: Device, child: Any, port_file: Path, log: Path) -> int:
    deadline = Deadline(_START_S)
    while not port_file.exists():
        if child.poll() is not None or deadline.expired:
            how = f"ended with status {child.returncode}" if child.poll() is not None else f"did not start within {_START_S:.0f} s"
            raise DeviceError(f"the agent of {device.name} {how}", process.last_lines(log.read_text(errors="replace")), "farm devices -v")
        time.sleep(0.005)
    return int(port_file.read_text())
