"""The greeting of TVM's RPC: who does not know the key is not let in, and nobody makes us wait."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from farm.deadline import Deadline
from farm.rpc import handshake
from farm.rpc.blocking_connection import BlockingConnection, completed
from farm.rpc.handshake import HandshakeError, admit
from farm.rpc.opening import greet

MAGIC, MISMATCH = 0xFF271, 0xFF273


def greeting(key: str) -> bytes:
    said = f"client:{key} -timeout=60".encode()
    return struct.pack("<ii", MAGIC, len(said)) + said


@contextlib.contextmanager
def listening(seconds: float = 30.0) -> Iterator[tuple[tuple[str, int], list[socket.socket | None]]]:
    """An address where the key "secret" is wanted, and who was let in, once the block has ended."""
    found: list[socket.socket | None] = []
    leave = threading.Event()
    deadline = Deadline(seconds)
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:

        def serve() -> None:
            found.append(admit(listener, "secret", lambda: not leave.is_set() and not deadline.expired))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[:2], found
        finally:
            leave.set()
            thread.join()
            for sock in filter(None, found):
                stack.enter_context(sock)


def heard(said: bytes) -> tuple[bool, bytes]:
    """Whether a greeting lets in, and what it is answered."""
    answer = b""
    hung_up = contextlib.suppress(OSError)  # by the other side, with more to read
    with listening() as (address, found), socket.create_connection(address, timeout=30) as ours, hung_up:
        ours.sendall(said)
        ours.shutdown(socket.SHUT_WR)
        answer = ours.recv(100)
    return bool(found[0]), answer


def test_the_key_lets_in() -> None:
    assert heard(greeting("secret") + b"what follows") == (True, struct.pack("<ii", MAGIC, 7) + b"server:")


@pytest.mark.parametrize("key", ["guess", "secre", "secret1", ""])
def test_another_key_is_told_so(key: str) -> None:
    assert heard(greeting(key)) == (False, struct.pack("<i", MISMATCH))


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<ii", MAGIC, 0),
        struct.pack("<ii", MAGIC, -1),
        struct.pack("<ii", MAGIC, 1 << 30) + b"x" * 100,
    ],
    ids=["nothing", "another protocol", "no key", "a negative length", "a length beyond all bounds"],
)
def test_who_does_not_speak_the_protocol_gets_no_answer(said: bytes) -> None:
    assert heard(said) == (False, b"")


def test_clients_that_are_slow_keep_nobody_waiting() -> None:
    with listening() as (address, found), contextlib.ExitStack() as stack:
        for _ in range(100):
            slow = stack.enter_context(socket.create_connection(address, timeout=30))
            slow.sendall(struct.pack("<ii", MAGIC, 4096) + b"client:")
        begin = time.monotonic()
        ours = stack.enter_context(socket.create_connection(address, timeout=30))
        ours.sendall(greeting("secret"))
        assert ours.recv(100).startswith(struct.pack("<i", MAGIC))
        assert time.monotonic() - begin < handshake.GREETING_S
    assert found[0] is not None


def test_a_client_that_greets_byte_by_byte_is_sent_away_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "GREETING_S", 0.3)
    with listening() as (address, _), socket.create_connection(address, timeout=30) as ours:
        ours.sendall(struct.pack("<ii", MAGIC, 4096))
        with pytest.raises(OSError):  # the connection is closed meanwhile
            for _ in range(1000):
                ours.sendall(b"x")
                time.sleep(0.01)


@contextlib.contextmanager
def server(*said: bytes, pause_s: float = 0.0, hang_up: bool = False) -> Iterator[socket.socket]:
    """A connection to a server that says something, piece by piece, when it is greeted."""
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def speak() -> None:
            with contextlib.suppress(OSError):
                theirs.recv(4096)
                for piece in said:
                    theirs.sendall(piece)
                    time.sleep(pause_s)
                if hang_up:
                    theirs.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=speak)
        thread.start()
        yield ours
        ours.shutdown(socket.SHUT_RDWR)
        thread.join()


def greet_server(sock: socket.socket, key: str, seconds: float) -> None:
    completed(greet(BlockingConnection(sock), key, Deadline(seconds)))


def test_a_server_greets_back() -> None:
    name = b"server:board"
    with server(struct.pack("<ii", MAGIC, len(name)), name, b"more") as sock:
        connection = BlockingConnection(sock)
        completed(greet(connection, "board -timeout=60", Deadline(30)))
        assert completed(connection.exactly(4, Deadline(30))) == b"more", "what follows is for the session"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (struct.pack("<i", MISMATCH), "does not take this key"),
        (struct.pack("<i", MAGIC + 1), "already serves"),
        (b"HTTP/1.1 400", "does not greet as"),
        (struct.pack("<ii", MAGIC, 1 << 30), "a name of 1073741824 bytes"),
        (struct.pack("<ii", MAGIC, -1), "a name of -1 bytes"),
        (struct.pack("<ii", MAGIC, 100) + b"server", "hangs up"),
        (b"", "hangs up"),
    ],
)
def test_a_server_that_greets_in_no_such_way(said: bytes, why: str) -> None:
    with server(said, hang_up=True) as sock, pytest.raises(HandshakeError, match=why):
        greet_server(sock, "key", 30)


def test_a_server_that_never_greets_is_given_up_in_time() -> None:
    with server() as sock, pytest.raises(TimeoutError):
        greet_server(sock, "key", 0.1)


def test_a_server_that_greets_byte_by_byte_is_given_up_in_time() -> None:
    drip = [struct.pack("<ii", MAGIC, 4096), *[b"x"] * 30]
    begin = time.monotonic()
    with server(*drip, pause_s=0.02) as sock, pytest.raises(TimeoutError):
        greet_server(sock, "key", 0.1)
    assert time.monotonic() - begin < 30
