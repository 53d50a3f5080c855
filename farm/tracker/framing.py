"""From a stream of bytes to messages.

TVM's magic number first, then a length before each message.
"""

from __future__ import annotations

import struct

from farm.tracker.errors import ProtocolError
from farm.tracker.protocol import MAGIC

MOST_MESSAGE_BYTES = 1 << 16  # TVM's allows 1 MiB; its own messages have a few hundred bytes
_LENGTH = struct.Struct("<i")


class FrameBuffer:
    """The bytes of one peer that are not handled yet."""

    def __init__(self) -> None:
        self.greeted = False
        self._data = bytearray()

    def __len__(self) -> int:
        """Return how many bytes are held."""
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._data += data

    def greet(self) -> bool:
        """Return whether the magic number has come, and take it.

        Raises ProtocolError for another.
        """
        if not MAGIC.startswith(self._data[: len(MAGIC)]):
            raise ProtocolError("a greeting that no peer of a tracker sends")
        if len(self._data) < len(MAGIC):
            return False
        del self._data[: len(MAGIC)]
        self.greeted = True
        return True

    def next(self) -> bytes | None:
        """Return the next whole message; None if there is none yet.

        Raises ProtocolError for a length out of bounds, as soon as it is there.
        """
        if len(self._data) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._data)
        if not 0 < length <= MOST_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._data) < end:
            return None
        content = bytes(self._data[_LENGTH.size : end])
        del self._data[:end]
        return content
