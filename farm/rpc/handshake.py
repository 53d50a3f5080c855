"""The handshake of TVM's RPC: each side sends a magic number and a key with its length.

The format is that of `RPCConnect` (rpc_socket_impl.cc) and of tvm/rpc/server.py; `opening.greet`
exchanges the bytes.
"""

from __future__ import annotations

import struct
import time

MAGIC = 0xFF271  # kRPCMagic and kRPCSuccess of rpc_endpoint.h
DUPLICATE, MISMATCH = MAGIC + 1, MAGIC + 2
MOST_KEY_BYTES = 4096
WORD_BYTES = 4
_HEAD = struct.Struct("<ii")
_INT32 = struct.Struct("<i")
_SERVER = b"server:"


class HandshakeError(Exception):
    """Raised for a server that does not follow TVM's handshake or refuses the key."""


class SigstopAwareTimeout:
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


def check_server_code(word: bytes) -> None:
    """Check the first word of a server. Raises HandshakeError if it refuses or is none of TVM's."""
    (magic,) = _INT32.unpack(word)
    if magic == MISMATCH:
        raise HandshakeError("it does not take this key")
    if magic == DUPLICATE:
        raise HandshakeError("it already serves a client of this key")
    if magic != MAGIC:
        raise HandshakeError("it does not greet as a server of TVM's RPC does")


def server_name_length(word: bytes) -> int:
    """Return the length of the server's name from the word that precedes it, once checked."""
    (length,) = _INT32.unpack(word)
    if not 0 <= length <= MOST_KEY_BYTES:
        raise HandshakeError(f"it greets with a name of {length} bytes")
    return int(length)


def check_server_name(name: bytes, key: str) -> None:
    """Check the name with which a server greets: "server:", alone or with the key it serves.

    A tracker's key is the name of the board, a colon and random digits; the server says the name.
    """
    own = name.removeprefix(_SERVER)
    if own == name:
        raise HandshakeError("it greets with a name that is not a server's")
    if own and key and own != key.encode() and not key.encode().startswith(own + b":"):
        raise HandshakeError("it greets with another key than was presented")
