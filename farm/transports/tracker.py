"""`tracker://host:port/key`: a board that a TVM tracker lends.

A tracker is not trusted either: its answers are bounded in length, time and form.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from farm.errors import DeadlineError, DeviceError
from farm.processes.cancellation import register_wait_breaker
from farm.prompts import Ask
from farm.rpc.handshake import SigstopAwareTimeout
from farm.transports import rpc
from farm.transports.device_availability import DeviceAvailability
from farm.transports.rpc_client import session_with_server, set_tcp_keepalive_and_user_timeout
from farm.types import Device, is_lease_key

_MAGIC = 0x2F271  # RPC_TRACKER_MAGIC, TrackerCode.SUCCESS, REQUEST and SUMMARY of tvm/rpc/base.py
_SUCCESS, _REQUEST, _SUMMARY = 0, 4, 6
_PRIORITY = 1
_ANSWER_S = 10.0  # for an answer that a tracker gives at once
_OVERDUE_S = 10.0  # after the session's deadline, when its worker process is killed from outside
_MOST_ANSWER_BYTES = 4 << 20  # of a summary, which has about 100 bytes for each board
_MOST_SHOWN = 20  # boards listed in a message
_SILENT = f"it accepted the connection, but did not answer within {_ANSWER_S:.0f} s"
_INT32 = struct.Struct("<i")
# The tracker chooses the address to which the key is sent; another protocol may be in use there.
_MATCH_KEY = re.compile(r"[!-~]{0,1024}")
_HOST = re.compile(r"[\w.:%-]{1,255}", re.ASCII)


@contextlib.contextmanager
def open(  # noqa: A001
    device: Device,
    agent: Path | None,  # noqa: ARG001
    scratch: Path,  # noqa: ARG001
    timeout_s: float,
    ask: Ask,  # noqa: ARG001
    greeting_s: float | None,
) -> Iterator[Any]:
    """Request a board with the device's key from the tracker, waiting while all are in use.

    Raises DeviceError if no board with the key has registered, and DeadlineError if none becomes
    free in time.
    """
    host, port = rpc.device_address(device)
    key = _key(device)
    with _connected(device, host, port) as tracker:
        known = sorted(set(tracker.keys()))
        if key not in known and not is_lease_key(key):
            raise DeviceError(
                f"the tracker at {host}:{port} has no device {key!r}",
                f"it has: {_listed(known)}" if known else "no device has registered with it",
                f"on the board: farm agent --tracker {host}:{port} --key {shlex.quote(key)}",
            )
        board = tracker.request(key, greeting_s or timeout_s + _OVERDUE_S)
        place = board.host, board.port, board.match_key
        with session_with_server(device, *place, timeout_s, greeting_s) as opened:
            yield opened, None


def count_boards(device: Device) -> int:
    """Return how many boards with the device's key have registered."""
    return registered_keys(device).count(_key(device))


def registered_keys(device: Device) -> list[str]:
    """Return the key of each board that has registered with the device's tracker."""
    host, port = rpc.device_address(device)
    with _connected(device, host, port) as tracker:
        return tracker.keys()


def probe_state(device: Device) -> DeviceAvailability:
    """Return `ready` if the tracker answers; a request alone shows whether it has a board."""
    host, port = rpc.device_address(device)
    try:
        rpc.check_port_listens(host, port)
    except OSError as exc:
        why = f"tracker {host}:{port}: {exc.strerror or exc}"
        return DeviceAvailability(
            "offline", False, why, f"start it there: farm tracker --port {port}"
        )
    return DeviceAvailability("ready", True)


def _key(device: Device) -> str:
    return urlsplit(device.url).path.lstrip("/")


@dataclass(frozen=True, slots=True)
class _Board:
    """A board that a tracker has lent: its address, and the key that it requires."""

    host: str
    port: int
    match_key: str


@contextlib.contextmanager
def _connected(device: Device, host: str, port: int) -> Iterator[_Tracker]:
    """Yield the tracker at an address, after the greeting."""
    rpc.check_port_listens(host, port)
    with socket.create_connection((host, port), timeout=_ANSWER_S) as sock:
        set_tcp_keepalive_and_user_timeout(sock)
        with register_wait_breaker(lambda: sock.shutdown(socket.SHUT_RDWR)):
            yield _Tracker(device, host, port, sock)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(name[:100] for name in names[:_MOST_SHOWN]) + more


def _is_address(host: str, port: int, match_key: str) -> bool:
    return bool(_HOST.fullmatch(host) and 0 < port < 1 << 16 and _MATCH_KEY.fullmatch(match_key))


def _name_of(key: str) -> str:
    """Return the name of a board that has registered as "server:NAME"."""
    return key.partition(":")[2]


class _Tracker:
    """A client of a tracker, with the protocol of tvm/rpc/tracker.py.

    Its methods raise DeviceError for answers that no tracker gives.
    """

    def __init__(self, device: Device, host: str, port: int, sock: socket.socket) -> None:
        self._device, self._host, self._port, self._sock = device, host, port, sock
        self._send(_INT32.pack(_MAGIC))
        try:
            magic = self._exactly(_INT32.size, SigstopAwareTimeout(_ANSWER_S))
        except TimeoutError as exc:
            raise self._no_tracker(_SILENT) from exc
        if _INT32.unpack(magic) != (_MAGIC,):
            raise self._no_tracker("it greets as no tracker does")

    def keys(self) -> list[str]:
        """Return the key of each board that has registered."""
        try:
            summary = self._ask([_SUMMARY], _ANSWER_S)
        except TimeoutError as exc:
            raise self._no_tracker(_SILENT) from exc
        try:
            return [_name_of(server["key"]) for server in summary["server_info"]]
        except (TypeError, KeyError, AttributeError) as exc:
            raise self._no_tracker("its list of devices is none") from exc

    def request(self, key: str, seconds: float) -> _Board:
        """Return a board with this key as soon as one is free.

        Raises DeadlineError if none is free within `seconds`.
        """
        try:
            answer = self._ask([_REQUEST, key, "", _PRIORITY], seconds)
        except TimeoutError as exc:
            raise DeadlineError(
                f"the tracker at {self._host}:{self._port} has no free device {key!r}",
                f"others have had all of them for {seconds:.0f} s",
                "run the command again when they are done",
            ) from exc
        match answer:
            case [str(host), int(port), str(match_key)] if _is_address(host, port, match_key):
                return _Board(host, port, match_key)
        raise self._no_tracker("it hands out a device without an address, or with an odd key")

    def _ask(self, question: list[Any], seconds: float) -> Any:
        content = json.dumps(question).encode()
        self._send(_INT32.pack(len(content)) + content)
        patience = SigstopAwareTimeout(seconds)
        (length,) = _INT32.unpack(self._exactly(_INT32.size, patience))
        if not 0 < length <= _MOST_ANSWER_BYTES:
            raise self._no_tracker(f"it sends an answer of {length} bytes")
        try:
            answer = json.loads(self._exactly(length, patience))
        except (ValueError, RecursionError) as exc:
            raise self._no_tracker("its answer is not JSON, or nested too deeply") from exc
        if not isinstance(answer, list) or len(answer) != 2 or answer[0] != _SUCCESS:
            raise self._no_tracker("its answer is not one of a tracker")
        return answer[1]

    def _send(self, content: bytes) -> None:
        try:
            self._sock.settimeout(_ANSWER_S)
            self._sock.sendall(content)
        except OSError as exc:
            raise self._no_tracker(f"it takes no question: {exc}") from exc

    def _exactly(self, count: int, patience: SigstopAwareTimeout) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not (wait := patience.next()):
                raise TimeoutError
            self._sock.settimeout(wait)
            try:
                piece = self._sock.recv(min(count - len(data), 1 << 16))
            except TimeoutError:
                continue
            except OSError as exc:
                raise self._no_tracker(f"the connection breaks: {exc}") from exc
            if not piece:
                raise self._no_tracker("it hangs up before it has answered")
            data += piece
        return bytes(data)

    def _no_tracker(self, why: str) -> DeviceError:
        return DeviceError(
            f"what listens at {self._host}:{self._port} is no TVM tracker",
            why,
            f"correct `url` of {self._device.name}, or start one there: farm tracker",
        )
