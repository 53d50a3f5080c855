"""What passes through a lab's door arrives whole, however slowly it is taken."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from timeouts import LIMIT_S

from farm.lab.door.pump import pump_bytes

CONTENT = bytes(range(256)) * 2000  # more than a pipe or a socket holds, less than the pump keeps


@dataclass
class Pumped:
    """The ends of a pump that runs: a client's pipes, and the socket of a board."""

    to_board: int
    from_board: int
    board: socket.socket
    thread: threading.Thread


@pytest.fixture
def pumped() -> Iterator[Pumped]:
    board, peer = socket.socketpair()
    source, to_board = os.pipe()
    from_board, sink = os.pipe()

    def pump() -> None:
        with closing(peer):
            pump_bytes(peer, source=source, sink=sink)
        os.close(sink)

    thread = threading.Thread(target=pump)
    thread.start()
    with board:
        yield Pumped(to_board, from_board, board, thread)
    thread.join(LIMIT_S)
    for descriptor in (source, from_board):
        os.close(descriptor)


def test_an_answer_arrives_whole_after_the_board_has_hung_up(pumped: Pumped) -> None:
    pumped.board.sendall(CONTENT)  # the pump has it before a byte is taken
    pumped.board.close()
    with Path(f"/proc/self/fd/{pumped.from_board}").open("rb") as answer:
        assert answer.read() == CONTENT
    os.close(pumped.to_board)


def test_a_request_arrives_whole_before_its_end_and_is_answered(pumped: Pumped) -> None:
    with os.fdopen(pumped.to_board, "wb") as request:
        request.write(CONTENT)
    with pumped.board.makefile("rb") as asked:
        assert asked.read() == CONTENT
    pumped.board.sendall(b"answer")
    assert os.read(pumped.from_board, 100) == b"answer"
