"""Send large files to an Android board by a command of its own, beside the agent's.

This is several times as fast as RPC.
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

from farm.processes import subprocesses
from farm.processes.output_end import OutputEnd
from farm.transports.adb.board import AdbBoard
from farm.transports.upload import Note

# dd writes at a fixed offset; another one, whose end this side did not notice, writes the same
# bytes to the same place.
_WRITE = """
exec dd of="$1" bs=65536 seek="$2" conv=notrunc 2>/dev/null
"""
_BLOCK = 1 << 16
_NOTE_S = 0.2
_END_S = 60.0  # time for the board to write what it has received


def upload_file(
    board: AdbBoard, store: str, log: OutputEnd, path: Path, digest: str, offset: int, note: Note
) -> int:
    """Send a file from `offset` on; return the bytes sent.

    If the connection breaks, this function returns, and the link reports the reason.
    """
    block, sent, noted = offset // _BLOCK, 0, time.monotonic()
    with contextlib.suppress(Exception), path.open("rb") as file:
        file.seek(block * _BLOCK)
        with board.channel(_WRITE, [f"{store}/{digest}.part", str(block)], log) as (sock, child):
            sock.settimeout(board.deadline.remaining or 0.001)
            while piece := file.read(_BLOCK):
                sock.sendall(piece)
                sent += len(piece)
                if time.monotonic() - noted > _NOTE_S:
                    noted = time.monotonic()
                    note(block * _BLOCK + sent)
            sock.shutdown(socket.SHUT_WR)
            subprocesses.wait_for_shell_exit_code(child, min(_END_S, board.deadline.remaining))
    return sent
