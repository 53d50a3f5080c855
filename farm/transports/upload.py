"""Store a file on a device: first by the transport's own channel for large files, then by RPC.

The RPC transfer sends what is missing, in pieces. The agent keeps what has arrived (see
farm/agent/src/store/file_store.h), so that an interrupted transfer resumes where it stopped. The
file gets its name only after its SHA-256 has been checked: it is stored whole or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm.transports.agent import answer_validation as agent_answers

Note = Callable[[int], None]  # called with the number of bytes that have arrived or are in transit
# carry(path, digest, offset, note) sends a file from the offset on to its partial file on the
# device and returns the number of bytes sent. It returns early, without an error, if its channel
# breaks: the agent is then asked how much has arrived, and the rest is sent in pieces.
Carry = Callable[[Path, str, int, Note], int]

_SMALLEST_PIECE, _FIRST_PIECE, _LARGEST_PIECE = 1 << 14, 1 << 16, 1 << 20
_PIECE_S = 0.25  # target duration of a piece, so that progress is visible


def store_file(
    call: Callable[..., Any], carry: Carry | None, path: Path, digest: str, note: Note
) -> int:
    """Store a file on a device; see `Link.put`.

    `call` calls a function of the device by its name.
    """
    size = path.stat().st_size
    offset = _begin(call, digest, size)
    sent = 0
    note(offset)
    if carry and size - offset > _LARGEST_PIECE:  # an RPC call is as fast for smaller files
        sent = carry(path, digest, offset, note)
        offset = _begin(call, digest, size)
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


def _begin(call: Callable[..., Any], digest: str, size: int) -> int:
    """Return how many bytes of a file have arrived already."""
    name = "farm.store.begin"
    return agent_answers.check_number(name, call(name, digest, size), 0, size)
