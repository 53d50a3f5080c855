"""Pass bytes between a client of TVM's own and a board, so that only answers reach the client.

TVM's client executes what a board asks for (see `answer_filter`). Programs that use it, such as
MetaSchedule's runners, are as safe as farm's own client where their bytes pass through here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from farm.rpc.answer_filter import AnswerError, AnswerFilter, RequestReader
from farm.rpc.handshake import HandshakeError, check_server_code, server_name_length

MOST_RETURN_BYTES = 256 << 20  # what a client may download by one call of a function
_WORD = struct.Struct("<i")


class FilteredSession:
    """One session, whose client has greeted already. Two threads may use it, one for each way."""

    def __init__(self) -> None:
        self._requests = RequestReader()
        self._answers = AnswerFilter(MOST_RETURN_BYTES)
        self._greeting = bytearray()  # the board's, until it is complete
        self._wanted = _WORD.size
        self._greeted = False

    def from_client(self, data: bytes) -> bytes:
        """Take in what the client sends, and return it. Raises AnswerError for what is no RPC."""
        try:
            for request in self._requests.feed(data):
                self._answers.expect(request)
        except ValueError as exc:
            raise AnswerError(str(exc)) from exc
        return data

    def from_board(self, data: bytes) -> Iterator[bytes]:
        """Yield what may pass of what a board sends. Raises AnswerError for anything else."""
        while data and not self._greeted:
            part, data = data[: self._wanted], data[self._wanted :]
            self._greeting += part
            self._wanted -= len(part)
            if not self._wanted:
                yield from self._greet()
        if data:
            yield from map(bytes, self._answers.feed(data))

    def _greet(self) -> Iterator[bytes]:
        """Pass the board's greeting on once it is complete: a code, a length, a name."""
        word = bytes(self._greeting[: _WORD.size])
        try:
            check_server_code(word)
            if len(self._greeting) == _WORD.size:
                self._wanted = _WORD.size
                return
            if len(self._greeting) == 2 * _WORD.size:
                self._wanted = server_name_length(bytes(self._greeting[_WORD.size :]))
                if self._wanted:
                    return
        except HandshakeError as exc:
            yield word  # the client reads by itself that it is refused
            raise AnswerError(str(exc)) from exc
        self._greeted = True
        yield bytes(self._greeting)
