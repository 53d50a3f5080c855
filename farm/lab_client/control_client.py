"""A client of the lab's control socket.

Ask, and get the answer or the error that the server raised.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from farm import sanitize
from farm.errors import DeviceError, FarmError, LinkError, error_from_failure
from farm.processes.deadline import Deadline
from farm.types import Failure

PROTOCOL = 1
SOCKET = "lab.sock"  # in the lab's folder
ANSWER_S = 90.0  # a server that cannot reach its PostgreSQL answers when it can again
_MOST_BYTES = 64 << 20
_PAUSE_S = 0.2


class SocketLike(Protocol):
    """Some of a socket; a channel of paramiko's has it, too."""

    def settimeout(self, seconds: float | None, /) -> None:
        """Limit each wait."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Send all of it."""
        ...

    def makefile(self, mode: str, /) -> Any:
        """Return a file to read from."""
        ...

    def shutdown(self, how: int, /) -> None:
        """End what is read and sent."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class LabClient:
    """One connection: to a Unix socket, or one that is open already, through the door.

    Raises LinkError where the server is away, and the server's own errors. `lab_option` is the
    option by which commands reach this lab, if it is not that of this machine.
    """

    def __init__(
        self, path: Path, connection: SocketLike | None = None, lab_option: str = ""
    ) -> None:
        self.path = path
        self._lab_option = lab_option
        self._socket = connection or connect_unix_socket(path)
        self._socket.settimeout(ANSWER_S)
        self._file = self._socket.makefile("rb")
        self.hello = self.ask("hello")
        if self.hello.get("protocol") != PROTOCOL:
            what = (
                f"the lab server speaks version {self.hello.get('protocol')!s:.20}, this farm "
                f"speaks {PROTOCOL}"
            )
            raise DeviceError(what, f"at {path}", "use the farm of the server's version")

    def __enter__(self) -> LabClient:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.close()

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._file.close()
            self._socket.close()

    def cut(self) -> None:
        """Break the wait of another thread for an answer."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Return the server's answer."""
        self._send({"do": do, **fields})
        answer = self._line()
        if "error" in answer:
            raise error_from_answer(answer["error"], self._lab_option)
        found = answer.get("ok")
        if not isinstance(found, dict):
            raise self._not_understood()
        return found

    def boards(self) -> list[dict[str, Any]]:
        """Return the boards that the server lists, each with the fields that are read of it.

        Raises DeviceError: any other exception would end a command that has other devices, too.
        """
        found = self.ask("boards").get("boards")
        if not isinstance(found, list) or not all(map(_is_board, found)):
            raise self._not_understood()
        return found

    def _not_understood(self) -> DeviceError:
        return DeviceError(
            "the lab server's answer is not understood",
            f"at {self.path}",
            "use the farm of the server's version",
        )

    def follow(self, since: int) -> Iterator[dict[str, Any]]:
        """Yield the events after a number, those to come, too."""
        self._send({"do": "events", "since": since, "follow": True})
        self._socket.settimeout(None)
        while True:
            answer = self._line()
            if "error" in answer:
                raise error_from_answer(answer["error"], self._lab_option)
            yield answer["event"]

    def _send(self, request: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as exc:
            raise server_away_error(self.path, exc) from exc

    def _line(self) -> dict[str, Any]:
        try:
            line = self._file.readline(_MOST_BYTES)
        except OSError as exc:
            raise server_away_error(self.path, exc) from exc
        if not line.endswith(b"\n"):
            raise LinkError(
                "the lab server hung up", f"at {self.path}", "try again: farm lab leases"
            )
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise self._not_understood()
        return body


def _is_board(value: Any) -> bool:
    """Return whether a value has the fields of a board, of their types."""
    if not isinstance(value, dict) or not isinstance(value.get("tags"), list):
        return False
    texts = [*(value.get(name) for name in ("name", "kind", "use")), *value["tags"]]
    return all(isinstance(one, str) for one in texts) and "lease" in value


Open = Callable[[], LabClient]


def connect(open_client: Open, patience_s: float = 0.0) -> LabClient:
    """Return a client; wait for a server that starts again. Raises LinkError after that."""
    deadline = Deadline(patience_s)
    while True:
        try:
            return open_client()
        except LinkError:
            if deadline.expired:
                raise
            time.sleep(_PAUSE_S)


class ReconnectingClient:
    """A client that connects anew when the server is started again; for what may be asked twice.

    Raises LinkError at once where there is no server to begin with, and after `patience_s` later.
    """

    def __init__(self, open_client: Open, patience_s: float) -> None:
        self._open, self._patience_s = open_client, patience_s
        self._client: LabClient | None = open_client()
        self.hello = self._client.hello

    def __enter__(self) -> ReconnectingClient:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        if self._client:
            self._client.close()

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Return the server's answer."""
        deadline = Deadline(self._patience_s)
        while True:
            try:
                if self._client is None:
                    self._client = connect(self._open, deadline.remaining)
                return self._client.ask(do, **fields)
            except LinkError:
                if self._client is None or deadline.expired:
                    raise
                self._client.close()
                self._client = None


def connect_unix_socket(path: Path) -> socket.socket:
    """Return a connection to a Unix socket. Raises LinkError if nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ANSWER_S)
    try:
        connection.connect(str(path))
    except OSError as exc:
        connection.close()
        raise server_away_error(path, exc) from exc
    return connection


def loopback_if_wildcard_address(host: str) -> str:
    """Return an address of this machine to connect to, for one that is listened on."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def server_away_error(path: Path, cause: OSError) -> LinkError:
    """Return the error for a server that is not there."""
    why = f"{sanitize.sanitized_line(str(path))}: {cause.strerror or cause}"
    return LinkError(
        "there is no lab server here",
        why,
        "start it: farm lab serve; from outside: --lab lab://farm@HOST",
    )


def error_from_answer(body: Any, lab_option: str = "") -> FarmError:
    """Return the error that a server has put into an answer.

    The server does not know how the commands that it advises reach it from here: `lab_option`.
    """
    kind, what, why, fix = (
        str(body.get(name, "")) if isinstance(body, dict) else ""
        for name in ("kind", "what", "why", "fix")
    )
    if lab_option and "farm lab " in fix:
        fix = f"{fix} (from here with {lab_option})"
    return error_from_failure(Failure(kind, what, why, fix, FarmError.exit_code))
