"""Put a file into the store of a device: by the way its transport has for large files, and what is missing after that by RPC, in pieces.

The agent keeps what has arrived (see farm/agent/store.h), so that a transfer that was cut goes on where it ended. The file gets its name
there once its SHA-256 is checked: whole or absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Note = Callable[[int], None]  # hears how many bytes of the file are there, or on their way
# carry(path, digest, offset, note) sends a file, from the offset on, to its part on the device; returns the bytes sent. Where its way ends
# early it just stops: what has arrived is asked of the agent, and the rest goes in pieces.
Carry = Callable[[Path, str, int, Note], int]

_SMALLEST_PIECE, _FIRST_PIECE, _LARGEST_PIECE = 1 << 14, 1 << 16, 1 << 20
_PIECE_S = 0.25  # what a piece should take, so that the progress shows


def put(call: Callable[..., Any], carry: Carry | None, path: Path, digest: str, note: Note) -> int:
    """See `Link.put`. `call` calls a function of the device by its name."""
    size = path.stat().st_size
    offset: int = call("farm.store.begin", digest, size)
    sent = 0
    note(offset)
    if carry and size - offset > _LARGEST_PIECE:  # below that, a call is as quick
        sent = carry(path, digest, offset, note)
        offset = call("farm.store.begin", digest, size)
    sent += size - offset
    with path.open("rb") as file:
        file.seek(offset)
        length = _FIRST_PIECE
        while piece := file.read(length):
            note(offset)
            begin = time.monotonic()
            call("farm.store.write", digest, offset, bytearray(piece))
            offset += len(piece)
            length = int(len(piece) * _PIECE_S / max(time.monotonic() - begin, 1e-3))
            length = min(max(length, _SMALLEST_PIECE), _LARGEST_PIECE)
    note(offset)
    call("farm.store.finish", digest)
    return sent
