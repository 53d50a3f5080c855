"""Relay between TVM's RPC client and a board: requests pass one way, checked answers the other.

As a program it serves one client on this machine. It is a separate process because TVM's client
holds Python's GIL while it waits for an answer, so that a relay thread in the same process could
not forward the answer.

    argv: the file descriptor of a channel to the parent process. The parent sends one message: the
          key of the client, with the descriptors of a listening socket and of the connection to the
          board. If the relay ends the session, it sends the reason back as a line of JSON.
    It ends with the session, or with the parent process.

Only the standard library is used, so that a bare interpreter, which starts quickly, can run it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator

from farm.rpc.answers import AnswerError, AnswerFilter, RequestReader
from farm.rpc.handshake import admit

TYPE_CHECKING = False  # importing typing would cost memory
if TYPE_CHECKING:
    from typing import Any

OPENING_S = 15.0  # for the board's first answer after its greeting: that the session is open
_TICK_S = 1.0
_MOST_KEY_BYTES = 100
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


def main(owner_fd: int) -> None:
    """Serve one client. `owner_fd` is the descriptor of the channel to the parent process."""
    with socket.socket(fileno=owner_fd) as owner:
        key, descriptors, _, _ = socket.recv_fds(owner, _MOST_KEY_BYTES, 2)
        if descriptors:  # the parent process has not ended before sending them
            listener, board = (socket.socket(fileno=descriptor) for descriptor in descriptors)
            with board:
                with listener:
                    client = admit(listener, key.decode(), lambda: not _has_ended(owner))
                if client:
                    with client:
                        _serve(client, board, owner)
    os._exit(0)  # threads that still wait for one side have nothing left to do


def _serve(client: socket.socket, board: socket.socket, owner: socket.socket) -> None:
    # The standard streams of a program: it ends by itself, and says its last words
    how = socket.SHUT_WR if board.family == socket.AF_UNIX else socket.SHUT_RDWR
    relay = Relay(client, board, lambda: board.shutdown(how))
    relay.start()
    while not relay.ended.is_set() and not _has_ended(owner):
        relay.tick(_TICK_S)
    if relay.broke_off:
        import json

        # Send the reason before the client sees its connection close.
        owner.sendall(json.dumps({"broke_off": relay.broke_off}).encode() + b"\n")
        return
    with contextlib.suppress(OSError):
        # Closing with unread requests would reset the connection and discard the last answer.
        client.shutdown(socket.SHUT_WR)
        while not _has_ended(owner, _TICK_S):
            pass


def _has_ended(owner: socket.socket, wait_s: float = 0.0) -> bool:
    """Return whether the parent process has ended or has closed its end of the channel."""
    return bool(select.select([owner], [], [], wait_s)[0])
