"""The handshake of TVM's RPC: each side sends a magic number and a key with its length.

The format is that of `RPCConnect` (rpc_socket_impl.cc) and of tvm/rpc/server.py. The peer can
neither send more than a bounded number of bytes nor take more than a bounded time. The client's
side is `opening.greet`.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable

MAGIC = 0xFF271  # kRPCMagic and kRPCSuccess of rpc_endpoint.h
DUPLICATE, MISMATCH = MAGIC + 1, MAGIC + 2
MOST_KEY_BYTES = 4096
GREETING_S = 5.0  # time limit for a client on this machine
_MOST_VISITORS = 64
_TICK_S = 0.2
WORD_BYTES = 4
_HEAD = struct.Struct("<ii")
_INT32 = struct.Struct("<i")
_SERVER = b"server:"


class HandshakeError(Exception):
    """Raised for a server that does not follow TVM's handshake or refuses the key."""


class Patience:
    """A waiting time that does not elapse while this process is stopped (SIGSTOP)."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._last = time.monotonic()

    def next(self) -> float:
        """Return how long the next wait may be, at most 1 s; 0 if no time is left."""
        now = time.monotonic()
        self._left -= min(now - self._last, 2.0)
        self._last = now
        return min(max(self._left, 0.0), 1.0)


def client_greeting(key: str) -> bytes:
    """Return what a client says first, with a key and its options."""
    said = f"client:{key}".encode()
    return _HEAD.pack(MAGIC, len(said)) + said


def check_code(word: bytes) -> None:
    """Check the first word of a server. Raises HandshakeError if it refuses or is none of TVM's."""
    (magic,) = _INT32.unpack(word)
    if magic == MISMATCH:
        raise HandshakeError("it does not take this key")
    if magic == DUPLICATE:
        raise HandshakeError("it already serves a client of this key")
    if magic != MAGIC:
        raise HandshakeError("it does not greet as a server of TVM's RPC does")


def name_length(word: bytes) -> int:
    """Return the length of the server's name from the word that precedes it, once checked."""
    (length,) = _INT32.unpack(word)
    if not 0 <= length <= MOST_KEY_BYTES:
        raise HandshakeError(f"it greets with a name of {length} bytes")
    return int(length)


def check_name(name: bytes, key: str) -> None:
    """Check the name with which a server greets: "server:", alone or with the key it serves.

    A tracker's key is the name of the board, a colon and random digits; the server says the name.
    """
    own = name.removeprefix(_SERVER)
    if own == name:
        raise HandshakeError("it greets with a name that is not a server's")
    if own and key and own != key.encode() and not key.encode().startswith(own + b":"):
        raise HandshakeError("it greets with another key than was presented")


def admit(listener: socket.socket, key: str, goes_on: Callable[[], bool]) -> socket.socket | None:
    """Return the first connection whose client presents the key; None when `goes_on` returns False.

    The handshake with that client is complete. Clients are served concurrently, each for a few
    seconds: a slow one does not delay the others.
    """
    visitors: list[_Visitor] = []
    listener.setblocking(False)
    try:
        while goes_on():
            sockets = [listener, *(visitor.sock for visitor in visitors)]
            ready = set(select.select(sockets, [], [], _TICK_S)[0])
            if listener in ready:
                with contextlib.suppress(OSError):  # the client has already closed the connection
                    visitors.append(_Visitor(listener.accept()[0]))
            for visitor in list(visitors):
                if visitor.sock in ready and visitor.hears(key):
                    visitors.remove(visitor)
                    visitor.sock.setblocking(True)
                    visitor.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return visitor.sock
            visitors = _staying(visitors)
        return None
    finally:
        for visitor in visitors:
            visitor.sock.close()


def _staying(visitors: list[_Visitor]) -> list[_Visitor]:
    """Close connections of clients that are refused or too slow, and the oldest above the limit.

    Return the others.
    """
    staying = [visitor for visitor in visitors if visitor.may_stay()][-_MOST_VISITORS:]
    for visitor in visitors:
        if visitor not in staying:
            visitor.sock.close()
    return staying


class _Visitor:
    """A client that has not yet presented its key."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._said = b""
        self._refused = False
        self._patience = Patience(GREETING_S)

    def may_stay(self) -> bool:
        """Return whether the client has not been refused and has time left."""
        return not self._refused and self._patience.next() > 0

    def hears(self, key: str) -> bool:
        """Read more bytes; return True once the client has presented the key and was greeted."""
        try:
            wanted = _HEAD.size
            if len(self._said) >= wanted:
                wanted += _HEAD.unpack_from(self._said)[1]
            # The bytes that follow belong to the session
            piece = self.sock.recv(wanted - len(self._said))
            self._said += piece
            if not piece or not self._has_sense():
                self._refused = True
            elif len(self._said) > _HEAD.size and len(self._said) == wanted:
                return self._answers(key)
        except BlockingIOError:
            pass
        except OSError:
            self._refused = True
        return False

    def _has_sense(self) -> bool:
        if len(self._said) < _HEAD.size:
            return True
        magic, length = _HEAD.unpack_from(self._said)
        return bool(magic == MAGIC and 0 < length <= MOST_KEY_BYTES)

    def _answers(self, key: str) -> bool:
        shown = self._said[_HEAD.size :].removeprefix(b"client:").split(b" ")[0]
        if not _same(shown, key.encode()):
            self._refused = True
            self.sock.sendall(_INT32.pack(MISMATCH))
            return False
        self.sock.sendall(_HEAD.pack(MAGIC, len(_SERVER)) + _SERVER)
        return True


def _same(one: bytes, other: bytes) -> bool:
    """Compare in constant time, so that the duration does not reveal where the values differ.

    hmac.compare_digest would load all of OpenSSL.
    """
    difference = len(one) ^ len(other)
    for left, right in zip(one, other, strict=False):
        difference |= left ^ right
    return difference == 0
