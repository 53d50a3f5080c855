"""Upload large files to a board by SSH on a channel of their own, separate from the agent's.

This is several times as fast as RPC through the tunnel. `carry`, in the worker process, requests an
upload; `serve`, in the tunnel, performs it. They communicate by a pipe: `carry` sends (path,
digest, first block), `serve` answers with (bytes sent, done) several times a second.
"""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from farm.transports.ssh.board import Board
from farm.transports.upload import Note

# dd writes at a fixed offset. Another dd, of a broken connection whose end it has not noticed, may
# still write: it writes the same bytes to the same place.
_WRITE = """
exec dd of="$1" bs=65536 seek="$2" conv=notrunc 2>/dev/null
"""
_BLOCK = 1 << 16
_PIECE = (1 << 15) - 64  # paramiko's payload in one packet of OpenSSH's largest size
_NOTE_S = 0.2
_END_S = 60.0  # time for the board to write what it has received


def carry(pipe: Connection, path: Path, digest: str, offset: int, note: Note) -> int:
    """Have the tunnel send a file from `offset` on; return the bytes sent.

    If the tunnel ends, this function returns, and the link reports the reason.
    """
    block, sent, done = offset // _BLOCK, 0, False
    with contextlib.suppress(EOFError, OSError):
        pipe.send((path, digest, block))
        while not done:
            note(block * _BLOCK + sent)
            if pipe.poll(_NOTE_S):
                sent, done = pipe.recv()
        note(block * _BLOCK + sent)
    return sent


def serve(pipe: Connection, board: Board, store: str) -> None:
    """Send the requested files, one after the other, until the pipe closes.

    `store` is the board's folder for them.
    """
    with contextlib.suppress(EOFError, OSError):
        while True:
            path, digest, block = pipe.recv()
            pipe.send((_send(pipe, board, path, f"{store}/{digest}.part", block), True))


def _send(pipe: Connection, board: Board, path: Path, part: str, block: int) -> int:
    sent, noted = 0, time.monotonic()
    channel: Any = None
    # A channel that ends early is not an error: what has arrived is kept
    with contextlib.suppress(Exception), path.open("rb") as file:
        channel = board.channel(_WRITE, [part, str(block)])
        file.seek(block * _BLOCK)
        while piece := file.read(_PIECE):
            channel.sendall(piece)
            sent += len(piece)
            if time.monotonic() - noted > _NOTE_S:
                noted = time.monotonic()
                pipe.send((sent, False))
        channel.shutdown_write()
        channel.status_event.wait(min(_END_S, board.deadline.remaining))
    if channel:
        with contextlib.suppress(Exception):
            channel.close()
    return sent
