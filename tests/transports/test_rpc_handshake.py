"""The greeting of a server of TVM's RPC: what is none is told, and nobody makes us wait."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from farm.processes.deadline import Deadline
from farm.rpc.blocking_connection import BlockingConnection, run_nonsuspending_coroutine
from farm.rpc.handshake import HandshakeError
from farm.rpc.session_opening import greet

MAGIC, MISMATCH = 0xFF271, 0xFF273


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
    run_nonsuspending_coroutine(greet(BlockingConnection(sock), key, Deadline(seconds)))


def test_a_server_greets_back() -> None:
    name = b"server:board"
    with server(struct.pack("<ii", MAGIC, len(name)), name, b"more") as sock:
        connection = BlockingConnection(sock)
        run_nonsuspending_coroutine(greet(connection, "board -timeout=60", Deadline(30)))
        assert run_nonsuspending_coroutine(connection.exactly(4, Deadline(30))) == b"more", (
            "what follows is for the session"
        )


@pytest.mark.parametrize(
    ("name", "is_lent"),
    [
        (b"server:rasp3b", True),
        (b"server:rasp3b:0.123", True),
        (b"server:rasp3", False),
        (b"server:rasp3b:0", False),
        (b"server:rasp4", False),
        (b"server:", True),  # it says no name
    ],
)
def test_a_server_of_another_name_than_the_board_that_was_lent(name: bytes, is_lent: bool) -> None:
    refused = contextlib.nullcontext() if is_lent else pytest.raises(HandshakeError)
    with server(struct.pack("<ii", MAGIC, len(name)), name) as sock, refused:
        greet_server(sock, "rasp3b:0.123", 30)


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


def test_a_wait_for_a_silent_server_sleeps_until_its_end() -> None:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    with server() as sock, pytest.raises(TimeoutError):
        greet_server(sock, "key", 1.0)
    slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    assert slept < 100, "times that the thread was woken within a second"


def test_a_server_that_greets_byte_by_byte_is_given_up_in_time() -> None:
    drip = [struct.pack("<ii", MAGIC, 4096), *[b"x"] * 30]
    begin = time.monotonic()
    with server(*drip, pause_s=0.02) as sock, pytest.raises(TimeoutError):
        greet_server(sock, "key", 0.1)
    assert time.monotonic() - begin < 30
