"""The tunnel's end on this machine lets in only who knows the key of the session."""

from __future__ import annotations

import contextlib
import socket
import struct

import pytest

from farm.transports.tunnel import greet

MAGIC, MISMATCH = 0xFF271, 0xFF273


def greeting(key: str) -> bytes:
    said = f"client:{key} -timeout=60".encode()
    return struct.pack("<ii", MAGIC, len(said)) + said


def heard(said: bytes) -> tuple[bool, bytes]:
    """What the tunnel thinks of a greeting, and what it answers."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.settimeout(5)
            ours.sendall(said)
            ours.shutdown(socket.SHUT_WR)
            let_in = greet(theirs, "secret")
        return let_in, ours.recv(100)


def test_the_key_lets_in() -> None:
    assert heard(greeting("secret") + b"what follows") == (True, struct.pack("<ii", MAGIC, 7) + b"server:")


def test_another_key_is_told_so() -> None:
    assert heard(greeting("guess")) == (False, struct.pack("<i", MISMATCH))


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
    let_in, answer = False, b""
    with contextlib.suppress(ConnectionResetError):  # it has hung up with more to read
        let_in, answer = heard(said)
    assert (let_in, answer) == (False, b"")
