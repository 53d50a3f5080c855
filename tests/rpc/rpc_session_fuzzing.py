"""Sessions of farm's own RPC client whose server's last answer is changed at random; nothing but
values and errors may come of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from random_rpc_streams import exchange, mutated, pieces

from farm.errors import FarmError
from farm.processes.deadline import Deadline
from farm.rpc.answer_filter import PacketCode
from farm.rpc.connection import Connection
from farm.rpc.errors import RemoteError
from farm.rpc.session import Session
from farm.rpc.value_types import (
    CPU,
    DataType,
    RemoteDevice,
    RemoteObject,
    RemotePointer,
    RemoteTensor,
)

_DEADLINE_S = 5.0
_MOST_RETURN_BYTES = 1 << 20
_BYTES = DataType.of("uint8")
RESULTS = (
    type(None),
    int,
    float,
    str,
    bytes,
    bytearray,
    DataType,
    RemoteDevice,
    RemotePointer,
    RemoteObject,
    RemoteTensor,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a changed answer: a value or an error of the server, or a refusal."""

    accepted: bool
    refused: bool


def answered(seed: int) -> Outcome:
    """Ask with a session whose server answers rightly, and at last with a changed answer."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(answered_in_loop(seed))
    finally:
        loop.close()


async def answered_in_loop(seed: int) -> Outcome:
    """As `answered`, in a loop that runs already."""
    rng = random.Random(seed)
    connection = Connection()
    session = Session(connection, "the server", _MOST_RETURN_BYTES)
    for _ in range(rng.randrange(3)):
        one = _asked(rng)
        _say(connection, one.answer, rng)
        with contextlib.suppress(RemoteError):
            await _ask(session, one.code, one.size)
    last = _asked(rng)
    _say(
        connection,
        rng.randbytes(rng.randrange(64)) if rng.random() < 0.1 else mutated(last.answer, rng),
        rng,
    )
    connection.eof_received()
    try:
        found = await _ask(session, last.code, last.size)
        assert isinstance(found, RESULTS), found
    except RemoteError:
        return Outcome(True, False)
    except FarmError as error:
        assert str(error)
        return Outcome(False, True)
    return Outcome(True, False)


@dataclass(frozen=True, slots=True)
class _Asked:
    code: PacketCode
    size: int
    answer: bytes


def _asked(rng: random.Random) -> _Asked:
    while True:
        one = exchange(rng)
        code = PacketCode(one.request.code)
        if code in _REQUESTS and (code != PacketCode.COPY_FROM_REMOTE or one.request.copied_bytes):
            return _Asked(code, one.request.copied_bytes, one.answer)


def _say(connection: Connection, content: bytes, rng: random.Random) -> None:
    for piece in pieces(content, rng):
        if piece:
            connection.data_received(piece)


def _ask(session: Session, code: PacketCode, size: int) -> Coroutine[Any, Any, Any]:
    deadline = Deadline(_DEADLINE_S)
    tensor = RemoteTensor(4096, CPU, _BYTES, (size or 16,))
    match code:
        case PacketCode.CALL_FUNC:
            return session.call(RemoteObject(68, 4096), 1, "x", deadline=deadline)
        case PacketCode.COPY_FROM_REMOTE:
            return session.copy_from(tensor, deadline)
        case PacketCode.COPY_TO_REMOTE:
            return session.copy_to(bytes(16), tensor, deadline)
        case PacketCode.GET_GLOBAL_FUNC:
            return session.function("x", deadline)
        case PacketCode.FREE_HANDLE:
            return session.free(RemoteObject(73, 4096), deadline)
        case PacketCode.DEV_FREE_DATA:
            return session.free(tensor, deadline)
        case PacketCode.DEV_ALLOC_DATA_WITH_SCOPE:
            return session.allocate((2, 3), _BYTES, deadline)
        case _:
            return session.open(deadline)


_REQUESTS = {
    PacketCode.INIT_SERVER,
    PacketCode.CALL_FUNC,
    PacketCode.COPY_FROM_REMOTE,
    PacketCode.COPY_TO_REMOTE,
    PacketCode.GET_GLOBAL_FUNC,
    PacketCode.FREE_HANDLE,
    PacketCode.DEV_FREE_DATA,
    PacketCode.DEV_ALLOC_DATA_WITH_SCOPE,
}
