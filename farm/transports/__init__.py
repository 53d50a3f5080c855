"""Connections to devices: the scheme of a device's url names the transport.

Modules:
    device_availability  state of a device (ready, offline, ...) with reason and remedy
    local                `local:` and `qemu:`: the agent as a process on this machine
    rpc                  `rpc://`: an agent, or TVM's RPC server, at an address
    tracker              `tracker://`: a board that a TVM tracker lends
    lab                  `lab:`: a board that a lab leases, here or by SSH
    ssh                  `ssh://`: install and start the agent on a board by SSH
    shell_board          install and start the agent on a board with a shell
    shell_transports     which transports reach a shell, and how
    board_scripts        shell scripts for that
    adb                  `adb:`: install and start the agent on an Android board by adb
    command              `exec:`: install and start the agent where a command runs a shell
    gpu_preflight        reasons why a GPU device cannot be used, known before connecting
    agent                what farm knows of an agent's side: keys, versions, answers, errors
    upload               store a file on a device, resuming interrupted transfers
    board_architecture   detect a board's architecture and check it against the profile
    connection_layer     a layer of a connection, and checks that transports share
    connectivity_checks  check a connection layer by layer, for `farm doctor`
    rpc_client           open a session by farm's RPC client
    rpc_errors           translate errors of TVM's RPC and of sockets into FarmError

`open` yields a `Link`, an open session, for the duration of a block.

To add a transport, write a module and add one line to `_TRANSPORTS`. The module has:
    open(device, agent, scratch, timeout_s, ask, greeting_s)
             a context manager that yields (session, carry): the session that
             `rpc_client.session_with_server` opens, and the transport's own function for large
             files (see upload.py) or None
    probe_state(device)
             return a DeviceState within a few seconds, without a session
    count_boards(device)
             optional, for transports that lend boards: return how many boards there are
    read_system_facts(device)
             optional: return what the board's system says beside the agent, as texts by name
    check_reservation(device)
             optional, for boards that can be reserved: raise UsageError if the reservation of the
             device's options cannot be used
    reserve_board(device, ask, say), release_board_if_wanted(device), max_board_wait_s(device),
    leased_board_facts()
             optional, for boards that are leased: wait for one before a job begins; how long that
             may take; which board the session of this thread is with
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from farm.errors import DeviceError, UsageError, did_you_mean
from farm.prompts import Ask, answer_nothing
from farm.rpc.blocking_session import BlockingSession
from farm.transports import gpu_preflight, upload
from farm.transports.agent import answer_validation as agent_answers
from farm.transports.device_availability import DeviceAvailability
from farm.types import Device

_TRANSPORTS = {
    "local": "farm.transports.local",
    "qemu": "farm.transports.local",
    "rpc": "farm.transports.rpc",
    "ssh": "farm.transports.ssh.transport",
    "adb": "farm.transports.adb.transport",
    "exec": "farm.transports.command",
    "tracker": "farm.transports.tracker",
    "lab": "farm.transports.lab.transport",
}

# Their sessions only wait for a network, and all their waits are breakable
_OF_THREADS = {"rpc", "tracker", "ssh", "lab"}

# For the greeting of a device that is only asked for its facts: a busy one does not greet.
PROMPT_S = 10.0


@dataclass(frozen=True, slots=True)
class Link:
    """An open session with a device.

    `native` is True for farm's agent, which stores files by digest and reports facts, and False for
    TVM's own RPC server. `carry` is the transport's own function for large files, and `system` the
    one for facts of the board's system, if it has them. `leased` says which board it is, if a lab
    leases it.
    """

    session: BlockingSession
    native: bool
    carry: upload.Carry | None = None
    system: Callable[[], dict[str, str]] | None = None
    leased: Mapping[str, str] = field(default_factory=dict)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the device by its global name and return its result."""
        return self.session.call(name, *arguments)

    def document(self, name: str, *arguments: Any) -> Any:
        """Call a function of the agent that returns JSON, and return the parsed content."""
        return agent_answers.parse_document(name, self.call(name, *arguments))

    def number(self, name: str, *arguments: Any, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """Call a function of the agent that returns an integer within bounds, and return it."""
        return agent_answers.check_number(name, self.call(name, *arguments), least, most)

    def facts(self) -> dict[str, str]:
        """Return the facts that a native agent reports about itself and its board."""
        return {**agent_answers.check_facts(self.call("farm.agent.facts")), **self.leased}

    def system_facts(self) -> dict[str, str]:
        """Return what the board's system says beside the agent; reading it may take a second."""
        return self.system() if self.system else {}

    def put(self, path: Path, digest: str, note: upload.Note) -> int:
        """Store a file in the store of a native agent under its SHA-256; return the bytes sent.

        The file is stored whole or not at all. If an interrupted transfer is resumed, fewer bytes
        are sent than the file has. `note` is called several times a second with the number of bytes
        that have arrived.
        """
        return upload.store_file(self.call, self.carry, path, digest, note)


@contextlib.contextmanager
def open(  # noqa: A001
    device: Device,
    agent: Path | None,
    scratch: Path,
    timeout_s: float,
    ask: Ask = answer_nothing,
    greeting_s: float | None = None,
) -> Iterator[Link]:
    """Open a session with a device. The device ends the session after `timeout_s` seconds.

    `agent` is the native agent's executable, for transports that start one. `scratch` is a folder
    for the session's files. `ask` prompts for passwords. `greeting_s` limits the wait for a device
    that serves another client; the default is the session's own time limit.

    Raises DeviceError, also for a native agent of another version. A server of TVM's own that is of
    an older version is a warning.
    """
    from farm.transports.agent import version as agent_version

    with open_without_version_check(device, agent, scratch, timeout_s, ask, greeting_s) as link:
        if link.native:
            agent_version.check_versions(device, link.document("farm.agent.facts"))
        elif why := agent_version.describe_older_tvm_server(link.session.has_function):
            logging.getLogger("farm").warning(
                "%s runs TVM's own RPC server: %s; farm agent there has the version of this farm",
                device.name,
                why,
            )
        yield link


@contextlib.contextmanager
def open_without_version_check(
    device: Device,
    agent: Path | None,
    scratch: Path,
    timeout_s: float,
    ask: Ask = answer_nothing,
    greeting_s: float | None = None,
) -> Iterator[Link]:
    """Open a session like `open`, but accept an agent of any version, to find out which it is."""
    from farm.transports.rpc_errors import translate_errors

    if lacking := gpu_preflight.unusable_gpu_state(device):
        raise DeviceError(f"{device.name} is {lacking.word}", lacking.why, lacking.fix)
    with (
        translate_errors(device),
        _transport(device).open(device, agent, scratch, timeout_s, ask, greeting_s) as (
            session,
            carry,
        ),
    ):
        system = getattr(_transport(device), "read_system_facts", None)
        native = session.has_function("farm.agent.facts")
        board_facts = getattr(_transport(device), "leased_board_facts", None)
        leased = board_facts() if board_facts else {}
        yield Link(session, native, carry, partial(system, device) if system else None, leased)


def probe_state(device: Device) -> DeviceAvailability:
    """Return the state of a device within a few seconds, without a session.

    The state says whether the device can be used, as far as this can be found out so quickly.
    """
    result: DeviceAvailability = gpu_preflight.unusable_gpu_state(device) or _transport(
        device
    ).probe_state(device)
    return result


def check_reservation(device: Device) -> None:
    """Raise UsageError if the reservation of a device's options cannot be used for it."""
    if check := getattr(_transport(device), "check_reservation", None):
        check(device)


def reserve_board(device: Device, ask: Ask, say: Callable[[str], None]) -> None:
    """Have a board for the session that this thread opens next, if the device is leased.

    `say` is told what it waits for. Raises UnavailableError if no board became free in time.
    """
    if wait := getattr(_transport(device), "reserve_board", None):
        wait(device, ask, say)


def release_board_if_wanted(device: Device) -> None:
    """Let others have the board before the next session, if a lab leases it as batch work."""
    if leave := getattr(_transport(device), "release_board_if_wanted", None):
        leave(device)


def max_board_wait_s(device: Device) -> float:
    """Return how long a job may wait for a board that is leased; 0 for all other devices."""
    wait = getattr(_transport(device), "max_board_wait_s", None)
    return wait(device) if wait else 0.0


def max_parallel_jobs(device: Device) -> int:
    """Return how many jobs of a device may run at once: for boards of a lab, how many are free.

    Raises DeviceError if the lab does not answer.
    """
    return count_boards(device) if device.scheme == "lab" else 1


def runs_in_thread(device: Device) -> bool:
    """Return whether a session with a device may run in a thread instead of a process."""
    return device.scheme in _OF_THREADS


def count_boards(device: Device) -> int:
    """Return how many boards the device's url can lend at once.

    This is the number of boards with its key at a tracker, and 1 for other transports. Raises
    DeviceError if the server at the address is not a tracker.
    """
    from farm.transports.rpc_errors import translate_errors

    with translate_errors(device):
        count = getattr(_transport(device), "count_boards", None)
        return max(1, count(device)) if count else 1


def _transport(device: Device) -> Any:
    if device.scheme not in _TRANSPORTS:
        raise UsageError(
            f"{device.name}: devices cannot be reached by {device.scheme}: yet",
            did_you_mean(device.scheme, _TRANSPORTS),
            (
                f"start an agent on the board (farm agent) and use rpc://{_host(device)}:9090 "
                "through an SSH tunnel"
            ),
        )
    return importlib.import_module(_TRANSPORTS[device.scheme])


def _host(device: Device) -> str:
    return device.url.partition("://")[2].rpartition("@")[2].partition("/")[0].partition(":")[0]
