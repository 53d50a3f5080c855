"""What the adb server answers: its version, its list of devices, and how that list changes.

The server is asked by its own protocol (SERVICES.TXT of the Android sources): a request is its
length in four hexadecimal digits and a text; the reply is OKAY or FAIL, and for most requests a
text of the same form. Nothing here starts, ends or replaces a server.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from farm import ownership
from farm.errors import DeviceError
from farm.processes.deadline import Deadline

_PORT = 5037
_ANSWER_S = 10.0
_MOST_BYTES = 1 << 16  # four hexadecimal digits
_USABLE = "device"  # the state of a device that runs commands
_TICK_S = 0.1
_NEWS_S = 1.5  # for the server to notice what has ended a stream
# Serial number, state, and key:value pairs. A device that this user may not open has a reason in
# its state, and often no serial number that adb could read.
_LINE = re.compile(
    r"(\(no serial number\)|\S+)\s+(no permissions\b.*?(?=(?:\s+\w+:\S+)*$)|\S+)(.*)"
)


class ServerError(Exception):
    """Raised if the server refuses a request, or if what listens is no adb server."""


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device in the server's list: its serial number, its state, and its model if it tells it."""

    serial: str
    state: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the adb server listens."""

    host: str
    port: int

    @property
    def here(self) -> bool:
        """Return whether the server is on this machine."""
        return self.host in ("127.0.0.1", "localhost", "::1")

    def __str__(self) -> str:
        """Return the address as text."""
        return f"{self.host}:{self.port}"


def server_address() -> ServerAddress:
    """Return where the server listens, by the variables that the adb program follows.

    Raises DeviceError if they name no TCP address.
    """
    given = os.environ.get("ADB_SERVER_SOCKET", "")
    host = os.environ.get("ANDROID_ADB_SERVER_ADDRESS") or "127.0.0.1"
    port = os.environ.get("ANDROID_ADB_SERVER_PORT") or str(_PORT)
    if given:
        kind, _, rest = given.partition(":")
        host, _, port = rest.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        if kind != "tcp":
            raise DeviceError(
                "the adb server cannot be asked",
                f"ADB_SERVER_SOCKET is {given}",
                "set it to tcp:HOST:PORT, or unset it",
            )
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise DeviceError(
            "the adb server cannot be asked",
            f"its port is {port}",
            "correct ANDROID_ADB_SERVER_PORT, or unset it",
        )
    return ServerAddress(host, int(port))


def is_server_configured() -> bool:
    """Return whether the user names the server, instead of the place where it is by default."""
    return any(
        os.environ.get(name)
        for name in ("ADB_SERVER_SOCKET", "ANDROID_ADB_SERVER_ADDRESS", "ANDROID_ADB_SERVER_PORT")
    )


def server_user(where: ServerAddress) -> int | None:
    """Return whose process a server on this machine is; None if the kernel does not say.

    Raises OSError and ServerError.
    """
    with contextlib.closing(_requested(where, "host:track-devices")) as sock:
        return ownership.user_of_peer(sock)


def server_version(where: ServerAddress) -> int:
    """Return the version of the server's protocol. Raises OSError if none listens there."""
    answer = _asked(where, "host:version")
    try:
        return int(answer, 16)
    except ValueError as exc:
        raise ServerError(f"it says that its version is {answer[:20]!r}") from exc


def list_devices(where: ServerAddress) -> list[ListedDevice]:
    """Return the devices that the server lists."""
    return _parsed(_asked(where, "host:devices-l"))


def device_features(where: ServerAddress, serial: str) -> frozenset[str]:
    """Return what a device's adbd can do, by adb's names."""
    return frozenset(_asked(where, f"host-serial:{serial}:features").split(","))


@dataclass(frozen=True, slots=True)
class DeviceWatch:
    """The server's reports of changes of its list, for as long as a session lasts."""

    sock: socket.socket
    where: ServerAddress
    serial: str

    def lost(self) -> str:
        """Return the state in which the device is or was since, or `server` if the server went.

        Empty if neither went. A stream may end before the server notices why, so that this waits a
        moment. The server does not report a lost device of the network at once: its list is asked,
        too.
        """
        deadline = Deadline(_NEWS_S)
        try:
            while not deadline.expired:
                while select.select([self.sock], [], [], _TICK_S)[0]:
                    if (state := self._state_in(_parsed(_text(self.sock)))) != _USABLE:
                        return state
                if (state := self._state_in(list_devices(self.where))) != _USABLE:
                    return state
        except (OSError, EOFError, ServerError):
            return "server"
        return ""

    def _state_in(self, listed: list[ListedDevice]) -> str:
        return next((one.state for one in listed if one.serial == self.serial), "absent")


@contextlib.contextmanager
def watch_device(where: ServerAddress, serial: str) -> Iterator[DeviceWatch]:
    """Yield the server's reports about a device that it lists now."""
    with contextlib.closing(_requested(where, "host:track-devices")) as sock:
        yield DeviceWatch(sock, where, serial)


def _asked(where: ServerAddress, request: str) -> str:
    with contextlib.closing(_requested(where, request)) as sock:
        try:
            return _text(sock)
        except EOFError as exc:
            raise ServerError("it breaks off its answer") from exc


def _requested(where: ServerAddress, request: str) -> socket.socket:
    """Return a connection on which the server has accepted a request."""
    sock = socket.create_connection((where.host, where.port), timeout=_ANSWER_S)
    try:
        sock.sendall(f"{len(request):04x}{request}".encode())
        status = _exactly(sock, 4, Deadline(_ANSWER_S))
        if status != b"OKAY":
            raise ServerError(_text(sock) if status == b"FAIL" else f"it answers {status!r}")
    except (EOFError, TimeoutError) as exc:
        sock.close()
        raise ServerError("it does not answer as an adb server does") from exc
    except BaseException:
        sock.close()
        raise
    return sock


def _text(sock: socket.socket) -> str:
    deadline = Deadline(_ANSWER_S)
    digits = _exactly(sock, 4, deadline)
    try:
        count = int(digits, 16)
    except ValueError as exc:
        raise ServerError(f"it answers {digits!r}") from exc
    return _exactly(sock, min(count, _MOST_BYTES), deadline).decode(errors="replace")


def _exactly(sock: socket.socket, count: int, deadline: Deadline) -> bytes:
    """Return so many bytes. Raises TimeoutError: a byte now and then is no answer."""
    data = b""
    while len(data) < count:
        sock.settimeout(deadline.remaining or 0.001)
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _parsed(text: str) -> list[ListedDevice]:
    found = []
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            model = re.search(r"\bmodel:(\S+)", match[3])
            found.append(
                ListedDevice(match[1], match[2], model[1].replace("_", " ") if model else "")
            )
    return found
