"""Open sessions of TVM's RPC client through a relay that lets only answers of the board pass.

TVM's client executes requests that a server sends (see farm/rpc/answers.py). Each session therefore has
a relay process, a bare interpreter running rpc_relay.py. TVM's client connects to the relay on
loopback, and the relay holds the connection to the board. The handshake with the board is done
here.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import select
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import subprocesses
from farm.errors import DeadlineError, DeviceError, LinkError
from farm.rpc.handshake import HandshakeError, Patience, greet_server
from farm.tvm_import import tvm_rpc
from farm.types import Device

if TYPE_CHECKING:
    from subprocess import Popen

_PROBE_S, _PROBES = 5, 4  # TCP keep-alive: a connection ends after 20 s of silence
_CONNECT_S = 20.0
_OVERDUE_S = 10.0  # after a session's deadline; then its worker process is killed from outside
_LOG = "relay.log"
# The packages are empty stand-ins: their own `__init__` modules would import most of farm.
_PROGRAM = """
import sys, types
for name, folder in {folders!r}.items():
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [folder]
from farm.transports.rpc_relay import main
main(int(sys.argv[1]))
"""


@contextlib.contextmanager
def session(
    device: Device,
    host: str,
    port: int,
    key: str,
    timeout_s: float,
    greeting_s: float | None,
    scratch: Path,
) -> Iterator[Any]:
    """Yield TVM's session with the server at an address, which ends it after `timeout_s` seconds.

    A server that serves another client greets only after that session has ended. `greeting_s`
    limits this wait; None allows as long as the session itself may last.

    Raises DeviceError if the server's handshake is wrong or the board sends anything but answers,
    and DeadlineError if the server does not greet in time.
    """
    patience = Patience(timeout_s + _OVERDUE_S if greeting_s is None else greeting_s)
    with _relay(scratch) as relay:
        rpc = tvm_rpc()  # before connecting: the agent does not wait long for the first bytes
        with socket.create_connection((host, port), timeout=_CONNECT_S) as board:
            board.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            notice_silence(board)
            with greeting_errors(device, greeting_s):
                greet_server(board, f"{key} -timeout={timeout_s}", patience)
            local_port, local_key = relay.serve(board)
        with _relayed(device, relay):
            yield rpc.connect("127.0.0.1", local_port, local_key)


@contextlib.contextmanager
def session_over(device: Device, board: socket.socket, scratch: Path) -> Iterator[Any]:
    """Yield TVM's session with an agent whose standard streams are a socket, without a handshake.

    Raises DeviceError if the board sends anything but answers.
    """
    with _relay(scratch) as relay:
        rpc = tvm_rpc()
        local_port, local_key = relay.serve(board)
        with _relayed(device, relay):
            yield rpc.connect("127.0.0.1", local_port, local_key)


@contextlib.contextmanager
def _relayed(device: Device, relay: _Relay) -> Iterator[None]:
    """Raise the relay's error, if it has one, in place of the one that the block raises."""
    try:
        yield
    except Exception as exc:
        if error := relay.error(device):
            raise error from exc
        raise
    if error := relay.error(device):
        raise error


def notice_silence(sock: socket.socket) -> None:
    """Make a connection fail after 20 s without acknowledgement; by default that takes hours."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _PROBE_S),
        ("TCP_KEEPINTVL", _PROBE_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _PROBE_S * _PROBES * 1000),
    ):
        if hasattr(socket, option):  # not available on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def broke_off(device: Device, reason: str) -> DeviceError:
    """Return the error for a session that the relay has ended for `reason`."""
    return DeviceError(
        f"{device.name} sent what no agent sends: {reason}",
        "a board may only answer; none of this reached the RPC client, and the session is over",
        f"what answers at {device.url} is faulty or hostile: see what runs there before you go on",
    )


@contextlib.contextmanager
def greeting_errors(device: Device, greeting_s: float | None) -> Iterator[None]:
    """Translate the errors of a handshake that a block performs within `greeting_s` seconds."""
    try:
        yield
    except HandshakeError as exc:
        raise DeviceError(
            f"what listens at {device.url} is no server for {device.name}",
            str(exc),
            f"correct `url` of {device.name}, or its option `key` or `key_file`",
        ) from exc
    except TimeoutError as exc:
        within = "" if greeting_s is None else f" within {greeting_s:.0f} s"
        raise DeadlineError(
            f"{device.name} accepted the connection but did not greet{within}",
            "a server of TVM's RPC greets at once, unless it serves another client",
            f"wait for the other session to end, or see what listens there: {device.url}",
        ) from exc


@dataclass(frozen=True, slots=True)
class _Relay:
    """A running relay: our end of its channel, its process, and its log file."""

    channel: socket.socket
    child: Popen[bytes]
    log: Path

    def serve(self, board: socket.socket) -> tuple[int, str]:
        """Pass the connection to a board to the relay; return port and key for TVM's client."""
        key = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            socket.send_fds(self.channel, [key.encode()], [listener.fileno(), board.fileno()])
            return int(listener.getsockname()[1]), key

    def error(self, device: Device) -> DeviceError | None:
        """Return why the relay has ended the session, or has died; None if neither happened."""
        if select.select([self.channel], [], [], 0)[0] and (said := self.channel.recv(1 << 16)):
            return broke_off(device, json.loads(said)["broke_off"])
        if self.child.poll():
            log = subprocesses.last_lines(self.log.read_text(errors="replace"))
            why = f"{log}\nexit code {self.child.returncode}".strip()
            return LinkError(f"the relay to {device.name} ended", why, "run the command again")
        return None


@contextlib.contextmanager
def _relay(scratch: Path) -> Iterator[_Relay]:
    """Start a relay, and stop it when the block ends."""
    here = Path(__file__).parent
    rooms = {f"farm.{room}": str(here.parent / room) for room in ("rpc", "transports")}
    folders = {"farm": str(here.parent), **rooms}
    program = _PROGRAM.format(folders=folders)
    ours, theirs = socket.socketpair()
    with ours, contextlib.ExitStack() as stack:
        with theirs:
            descriptor = theirs.fileno()
            command = [sys.executable, "-I", "-S", "-c", program, str(descriptor)]
            running = subprocesses.running(command, log=scratch / _LOG, pass_fds=[descriptor])
            child = stack.enter_context(running)
        yield _Relay(ours, child, scratch / _LOG)
