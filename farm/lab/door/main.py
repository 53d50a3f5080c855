"""The command of each key in authorized_keys: `farm lab door NAME`.

What its holder wants is in SSH_ORIGINAL_COMMAND. `api` joins it to the server's control socket
under its name. `board LEASE` gets the connected socket of a board from the server, passes on one
line of JSON about it, and then bytes, for which the server is not needed: it may be killed and
started again. A lease that ends, ends the session.

It starts for each session, and imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from farm.lab.door.commands import (
    ACCOUNT,
    TUNNEL,
    USAGE,
    ApiCommand,
    CommandError,
    is_user_name,
    parse_command,
)
from farm.lab.door.pump import pump_bytes

USAGE_CODE, SERVER_CODE, ENDED_CODE = 2, 5, 4
_ANSWER_S = 90.0  # for the server; it waits for a board's session to end before it hands one over
_MOST_LINE_BYTES = 1 << 16
_GRACE_S = 3.0  # after a lease's end, for the server to say so, or that it was extended
_AGAIN_S = 0.25  # between two looks for a server that is started again

Json = Mapping[str, Any]


class RefusedError(Exception):
    """Raised for what cannot be done: an error of three lines, as the server's are."""

    def __init__(self, kind: str, what: str, why: str, fix: str, code: int = SERVER_CODE) -> None:
        super().__init__(what)
        self.error = {"kind": kind, "what": what, "why": why, "fix": fix}
        self.code = code


def main(arguments: Sequence[str]) -> int:
    """Serve the holder of a key, and return the exit code."""
    try:
        place = _place_of(arguments)
        try:
            command = parse_command(os.environb.get(b"SSH_ORIGINAL_COMMAND", b""))
        except CommandError as exc:
            raise RefusedError(
                "UsageError", "the lab's door does not do that", str(exc), USAGE, USAGE_CODE
            ) from exc
        if isinstance(command, ApiCommand):
            with _joined(place) as server:
                pump_bytes(server.socket)
            return 0
        return _board(place, command.lease)
    except RefusedError as refused:
        _tell(refused)
        return refused.code


class KeyHolder(NamedTuple):
    """Whose key it is, and the server's control socket."""

    name: str
    socket: str


def _place_of(arguments: Sequence[str]) -> KeyHolder:
    """Return the user's name and the control socket. Raises Refused, also for a user removed."""
    options = {"--socket": "", "--keys": ""}
    rest = list(arguments[1:])
    if TUNNEL in rest:
        raise RefusedError(
            "UsageError",
            "the key of a board opens its tunnel, and nothing else",
            "a session needs the key of a person",
            "farm lab user add alice --key KEY.pub",
            USAGE_CODE,
        )
    while len(rest) >= 2 and rest[0] in options:
        options[rest[0]], rest = rest[1], rest[2:]
    is_account = rest == [ACCOUNT]
    rest = [] if is_account else rest
    if rest or not options["--socket"] or not is_user_name(arguments[0] if arguments else ""):
        raise RefusedError(
            "UsageError",
            "farm lab door takes the name of a user",
            "it is the command of a key, which farm lab user add writes",
            "farm lab user add alice --key KEY.pub",
            USAGE_CODE,
        )
    name = arguments[0]
    if options["--keys"] and not _has_key(options["--keys"], name):
        raise RefusedError(
            "UsageError",
            f"{name} is no user of this lab",
            "the key was removed; this connection is older than that",
            "ask the lab's administrator",
            USAGE_CODE,
        )
    if not is_account and has_account(name):
        raise RefusedError(
            "UsageError",
            f"{name} is also the name of an account of the lab's machine",
            "both would be one owner of leases",
            "tell the lab's administrator: farm lab user add, under another name, or --account",
            USAGE_CODE,
        )
    return KeyHolder(name, options["--socket"])


def has_account(name: str) -> bool:
    """Return whether this machine has an account of a name."""
    with contextlib.suppress(KeyError):
        pwd.getpwnam(name)
        return True
    return False


def _has_key(path: str, name: str) -> bool:
    """Return whether a user still has a line in the file of keys."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib would be imported for it
            return f" lab door {name} ".encode() in file.read()
    except OSError:
        return False


class ServerConnection:
    """A connection to the lab's server, by lines of JSON."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(_ANSWER_S)
        self._rest = b""
        try:
            self.socket.connect(path)
        except OSError as exc:
            self.socket.close()
            why = f"{exc.strerror or exc}"
            raise RefusedError(
                "LinkError",
                "the lab's server is away",
                why,
                "try again in a moment; its administrator starts it: farm lab serve",
            ) from exc

    def __enter__(self) -> ServerConnection:
        """Return the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.socket.close()

    def fileno(self) -> int:
        """Return its descriptor."""
        return self.socket.fileno()

    def ask(self, question: Json) -> tuple[Json, list[int]]:
        """Return the answer, and the descriptors that came with it. Raises Refused."""
        descriptors: list[int] = []
        try:
            self.socket.sendall(_line(question))
            while b"\n" not in self._rest:
                data, found, _, _ = socket.recv_fds(self.socket, _MOST_LINE_BYTES, 4)
                descriptors += found
                if not data or len(self._rest) > _MOST_LINE_BYTES:
                    raise OSError("it hung up")
                self._rest += data
        except OSError as exc:
            raise RefusedError(
                "LinkError", "the lab's server does not answer", str(exc), "try again in a moment"
            ) from exc
        return self._answer(), descriptors

    def lines(self) -> list[Json] | None:
        """Return what has come without waiting, or None at the end of the connection."""
        try:
            data = self.socket.recv(_MOST_LINE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._rest += data
        if not data or len(self._rest) > _MOST_LINE_BYTES:
            return None
        found = []
        while b"\n" in self._rest:
            line, _, self._rest = self._rest.partition(b"\n")
            found.append(_parsed(line))
        return found

    def _answer(self) -> Json:
        line, _, self._rest = self._rest.partition(b"\n")
        body = _parsed(line)
        if isinstance(error := body.get("error"), dict):
            kind, what, why, fix = (
                str(error.get(key, "")) for key in ("kind", "what", "why", "fix")
            )
            raise RefusedError(kind, what, why, fix)
        answer = body.get("ok")
        if not isinstance(answer, dict):
            raise RefusedError(
                "DeviceError",
                "the lab's server answers what is none",
                "",
                "use the farm of the server's version",
            )
        return answer


class LeaseEndWatcher:
    """Watches a lease for a pump: the server says when it ends.

    Without a server, it ends when its end is reached that was last heard of; a server that is
    started again is asked anew.
    """

    def __init__(
        self, server: ServerConnection, place: KeyHolder, lease: int, ends_at: float
    ) -> None:
        self.why = ""
        self._server: ServerConnection | None = server
        self._place, self._lease, self._ends_at = place, lease, ends_at
        self._retry_at = 0.0
        server.socket.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor of the server's connection; -1 while it is away."""
        return self._server.fileno() if self._server else -1

    def ready(self) -> None:
        """Take in what the server says."""
        assert self._server
        lines = self._server.lines()
        if lines is None:
            self._server.socket.close()
            self._server = None
            self._retry_at = time.monotonic()
        for line in lines or ():
            self._hear(line)

    def settle(self) -> None:
        """Take in what the server has said already: why it ended the session."""
        if self._server:
            self.ready()

    def due_s(self) -> float | None:
        """Return when to look at the lease's end, or for the server again."""
        left_s = self._ends_at + _GRACE_S - time.time()
        if self._server is None:
            left_s = min(left_s, self._retry_at - time.monotonic())
        return max(0.0, left_s)

    def ended(self) -> bool:
        """Return whether the lease has ended; while the server is away, look for it."""
        if not self.why and time.time() >= self._ends_at + _GRACE_S:
            self.why = "its time is over"
        if not self.why and self._server is None and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + _AGAIN_S
            self._look()
        return bool(self.why)

    def _look(self) -> None:
        """Ask a server that is there again to watch the lease; it answers when it can."""
        with contextlib.suppress(RefusedError, OSError):
            server = ServerConnection(self._place.socket)
            server.socket.setblocking(False)
            try:
                server.socket.sendall(
                    _line({"do": "speak-for", "user": self._place.name})
                    + _line({"do": "watch", "lease": self._lease})
                )
            except OSError:
                server.socket.close()
                raise
            self._server = server

    def _hear(self, line: Json) -> None:
        if isinstance(error := line.get("error"), dict):
            self.why = str(error.get("what", "")) or "the server says so"
        elif isinstance(line.get("end"), str):
            self.why = line["end"] or "the server says so"
        answer = line.get("ok")
        if isinstance(answer, dict) and isinstance(ends_at := answer.get("ends_at"), (int, float)):
            self._ends_at = float(ends_at)


def _joined(place: KeyHolder) -> ServerConnection:
    server = ServerConnection(place.socket)
    try:
        server.ask({"do": "speak-for", "user": place.name})
    except BaseException:
        server.socket.close()
        raise
    return server


def _board(place: KeyHolder, lease: int) -> int:
    """Pass bytes to and from a board of a lease until the session or the lease ends."""
    server = _joined(place)
    answer, descriptors = server.ask({"do": "board", "lease": lease})
    if len(descriptors) != 1:
        raise RefusedError("DeviceError", "the lab's server gave no board", "", "try again")
    with socket.socket(fileno=descriptors[0]) as board:
        _write(1, _line({"ok": answer}))
        watch = LeaseEndWatcher(server, place, lease, float(answer.get("ends_at") or 0.0))
        pump_bytes(board, watch)
        watch.settle()
        if not watch.why:
            return 0
        with contextlib.suppress(OSError):
            board.shutdown(socket.SHUT_RDWR)
    _write(2, f"lease {lease} has ended: {watch.why}\n".encode())
    return ENDED_CODE


def _tell(refused: RefusedError) -> None:
    """Write an error: for a program on the standard output, for a person on the other one."""
    lines = zip(("error", "why", "fix"), ("what", "why", "fix"), strict=True)
    words = [f"{label}: {_shown(refused.error[key])}" for label, key in lines if refused.error[key]]
    _write(2, "".join(f"{line}\n" for line in words).encode())
    _write(1, _line({"error": refused.error}))


def _shown(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _line(body: Json) -> bytes:
    return json.dumps(body).encode() + b"\n"


def _parsed(line: bytes) -> Json:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        body = None
    return body if isinstance(body, dict) else {}


def _write(descriptor: int, data: bytes) -> None:
    """Write all of a short text; to a client that is gone, nothing."""
    os.set_blocking(descriptor, True)
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]
