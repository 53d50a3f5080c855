"""Relay between a client of TVM's RPC and an SSH channel: requests pass, and checked answers.

The tunnel of a board by SSH has one (see ssh/tunnel.py).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from farm.rpc.answers import AnswerError, AnswerFilter, RequestReader

OPENING_S = 15.0  # for the board's first answer after its greeting: that the session is open
_PIECE_BYTES = 1 << 18


class Relay:
    """Forward requests from a client to a board and answers back, in threads, until one side ends.

    `board` is a socket or a paramiko channel. `finish` tells the board that no more requests come.
    `broke_off` is the reason if the relay itself has ended the session, else empty.
    """

    def __init__(self, client: socket.socket, board: Any, finish: Callable[[], object]) -> None:
        self._client, self._board, self._finish = client, board, finish
        self._filter = AnswerFilter()
        self._awaited_s = 0.0
        self.ended = threading.Event()
        self.broke_off = ""

    def start(self) -> None:
        """Start forwarding, in two threads."""
        for work in (self._pass_requests, self._pass_answers):
            threading.Thread(target=work, daemon=True).start()

    def tick(self, seconds: float) -> None:
        """Wait `seconds`, or until the session has ended; give up on a board that does not open it.

        Only time spent in this method counts towards OPENING_S: no time passes while this process
        is stopped.
        """
        if self.ended.wait(seconds) or self._filter.answers:
            return
        self._awaited_s += seconds
        if self._awaited_s >= OPENING_S:
            self._break_off(f"nothing for {OPENING_S:.0f} s after its greeting")

    def _pass_requests(self) -> None:
        reader, broken = RequestReader(), False
        try:
            for piece in _pieces(self._client):
                for request in reader.feed(piece):
                    self._filter.expect(request)
                if broken:  # keep reading: the board's last answer may be on its way
                    continue
                try:
                    self._board.sendall(piece)
                except (OSError, EOFError):
                    broken = True
        except OSError:  # the client has closed the connection
            pass
        finally:
            with contextlib.suppress(OSError, EOFError):
                self._finish()

    def _pass_answers(self) -> None:
        try:
            for piece in _pieces(self._board):
                # All parts are checked before the first one is forwarded.
                for part in list(self._filter.feed(piece)):
                    self._client.sendall(part)
        except AnswerError as error:
            self._break_off(str(error))
        except (OSError, EOFError):  # one of the two sides has closed the connection
            pass
        finally:
            self.ended.set()

    def _break_off(self, why: str) -> None:
        self.broke_off = why
        self.ended.set()


def _pieces(source: Any) -> Iterator[bytes | memoryview]:
    """Yield what arrives from a socket or channel, each piece valid until the next is requested."""
    if not hasattr(source, "recv_into"):  # a paramiko channel
        while piece := source.recv(_PIECE_BYTES):
            yield piece
        return
    buffer = memoryview(bytearray(_PIECE_BYTES))  # allocating a new buffer each time is slower
    while count := source.recv_into(buffer):
        yield buffer[:count]
