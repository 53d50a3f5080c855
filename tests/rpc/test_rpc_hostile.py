"""Servers that attack farm's own RPC client: each ends as one error, in time, and without memory
beyond a bound.
"""

from __future__ import annotations

import asyncio
import struct
import time
import tracemalloc
from collections.abc import Callable

import hostile_board
import pytest
from rpc_session_fuzzing import answered
from rpc_sessions import HOST, OPENED, greet, request, run, served, session, soon
from timeouts import LIMIT_S

from farm.errors import DeadlineError, FarmError, LinkError
from farm.processes.deadline import Deadline
from farm.rpc.connection import connect
from farm.rpc.errors import ProtocolError, RemoteError, VersionError
from farm.rpc.handshake import MAGIC, MISMATCH, HandshakeError
from farm.rpc.session import Session
from farm.rpc.session_opening import open_session
from farm.rpc.value_types import CPU, DataType, RemoteObject, RemoteTensor

FUNCTION = RemoteObject(68, 4096)
TENSOR = RemoteTensor(4096, CPU, DataType.of("uint8"), (1 << 20,))
SHORT_S = 0.5


def answer_of(
    content: bytes,
    ask: Callable[[Session], object],
    then_closed: bool = False,
    deadline_s: float = 30,
) -> BaseException:
    """The error of a request that is answered with these bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await request(reader)
        writer.write(content)
        await writer.drain()
        if not then_closed:
            await reader.read()

    async def work() -> BaseException:
        async with served(script) as port, session(port, "") as one:
            with pytest.raises(FarmError) as caught:
                await ask(one, Deadline(deadline_s))  # type: ignore[call-arg, misc]
            with pytest.raises(LinkError, match="is over"):
                await one.function("x", soon())
            return caught.value

    begin = time.monotonic()
    error: BaseException = run(work())
    assert time.monotonic() - begin < 60
    return error


def calls(one: Session, deadline: Deadline) -> object:
    return one.call(FUNCTION, 1, deadline=deadline)


def finds(one: Session, deadline: Deadline) -> object:
    return one.function("x", deadline)


def copies(one: Session, deadline: Deadline) -> object:
    return one.copy_from(TENSOR, deadline)


@pytest.mark.parametrize("ask", [calls, finds, copies])
@pytest.mark.parametrize("mode", sorted(set(hostile_board.ATTACKS) - {"silent", "twice"}))
def test_an_attack_is_refused(mode: str, ask: Callable[[Session], object]) -> None:
    error = answer_of(hostile_board.ATTACKS[mode]("marker"), ask)
    assert isinstance(error, ProtocolError), error
    assert error.reason


def test_two_answers_to_one_request_are_refused() -> None:
    assert isinstance(answer_of(2 * struct.pack("<Qiii", 12, 4, 1, 0), finds), ProtocolError)


@pytest.mark.parametrize("ask", [calls, finds, copies])
def test_a_server_that_closes_or_says_half_is_told(ask: Callable[[Session], object]) -> None:
    for content in (
        b"",
        struct.pack("<Q", 12),
        struct.pack("<Qi", 40, 5),
        struct.pack("<Qi", 4, 1),
    ):
        assert isinstance(answer_of(content, ask, then_closed=True), LinkError)
    assert isinstance(answer_of(b"", ask, deadline_s=SHORT_S), DeadlineError)


def test_why_a_session_ends_is_told_by_the_next_request_if_it_came_with_an_answer() -> None:
    """As an agent's parent says it while the session's process answers."""
    text = b"the lab has ended this session"
    said = struct.pack("<QiiiQ", 20 + len(text), 5, 1, 8, len(text)) + text

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await request(reader)
        writer.write(struct.pack("<Qiii", 12, 4, 1, 0) + said)
        writer.write_eof()
        await reader.read()

    async def work() -> None:
        async with served(script) as port, session(port, "") as one:
            assert await one.function("x", soon()) is None
            for _ in range(2):
                with pytest.raises(RemoteError, match=text.decode()):
                    await one.function("y", soon())

    run(work())


def test_a_text_that_is_not_utf8_is_refused() -> None:
    content = struct.pack("<iiqiQ", 2, 1, 65, 8, 2) + b"\xff\xfe"
    assert "UTF-8" in str(answer_of(struct.pack("<Qi", 4 + len(content), 4) + content, calls))


def test_a_server_of_another_version_is_named() -> None:
    text = b"Check failed: client_protocol_ver == server_protocol_ver: Client protocol version mismatch with the server "  # noqa: E501
    text += b" server protocol=0.9.0, client protocol=0.8.0"
    said = struct.pack("<QiiiQ", 20 + len(text), 5, 1, 8, len(text)) + text

    async def work() -> None:
        async with (
            served(lambda reader, writer: greet(reader, writer, opened=said)) as port,
            session(port, ""),
        ):
            pass

    with pytest.raises(VersionError) as caught:
        run(work())
    assert "0.9.0" in caught.value.why and "0.8.0" in caught.value.why and caught.value.fix


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (struct.pack("<i", MISMATCH), "does not take this key"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not greet"),
        (struct.pack("<ii", MAGIC, -1), "a name of -1 bytes"),
        (struct.pack("<ii", MAGIC, 1 << 30), "a name of"),
        (struct.pack("<ii", MAGIC, 6) + b"client", "not a server's"),
        (struct.pack("<ii", MAGIC, 12) + b"server:other", "another key"),
        (b"", "hangs up"),
    ],
)
def test_what_greets_otherwise_is_no_server(said: bytes, words: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.write_eof()
        await reader.read()

    async def work() -> None:
        async with served(script) as port, session(port, "key"):
            pass

    with pytest.raises(HandshakeError, match=words):
        run(work())


def test_a_board_that_a_tracker_lends_greets_with_its_name() -> None:
    async def work() -> None:
        async with (
            served(lambda reader, writer: greet(reader, writer, b"server:pi")) as port,
            session(port, "pi:0.123 -timeout=1"),
        ):
            pass

    run(work())


def test_a_server_that_is_silent_is_given_up_at_the_deadline() -> None:
    async def work() -> None:
        async with served(lambda reader, _: reader.read()) as port:
            connection = await connect(HOST, port, soon())
            with pytest.raises(TimeoutError):
                await open_session(connection, "the server", "", Deadline(SHORT_S), LIMIT_S)
        async with served(lambda reader, writer: greet(reader, writer, opened=b"")) as port:
            connection = await connect(HOST, port, soon())
            with pytest.raises((DeadlineError, LinkError)):
                await open_session(connection, "the server", "", soon(), SHORT_S)

    run(work())


@pytest.mark.parametrize("answer", [struct.pack("<Qi", 1 << 20, 4) + bytes(1 << 20), OPENED])
def test_answers_that_trickle_are_given_up_at_the_deadline(answer: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        for byte in answer:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.1)

    async def work() -> None:
        async with served(script) as port, session(port, "") as one:
            begin = time.monotonic()
            with pytest.raises(DeadlineError, match="does not answer"):
                await one.call(FUNCTION, deadline=Deadline(SHORT_S))
            assert time.monotonic() - begin < 10

    run(work())


def test_a_server_that_takes_nothing_is_given_up_at_the_deadline() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await asyncio.sleep(20)

    async def work() -> None:
        async with served(script) as port, session(port, "") as one:
            tensor = RemoteTensor(4096, CPU, DataType.of("uint8"), (64 << 20,))
            with pytest.raises(DeadlineError):
                await one.copy_to(bytes(64 << 20), tensor, Deadline(SHORT_S))

    run(work())


def test_the_time_in_which_this_process_is_stopped_does_not_count() -> None:
    """As after Ctrl-Z and fg: the loop goes on far behind the deadline, and the answer is there."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await request(reader)
        time.sleep(4)  # the loop, and with it all of this process
        writer.write(OPENED)

    async def work() -> None:
        async with served(script) as port, session(port, "") as one:
            assert await one.function("x", Deadline(2)) is None

    run(work())


def test_endless_answers_take_no_memory() -> None:
    """A server that sends on and on while nothing reads: the kernel holds it back. An answer has a
    bound of its own.
    """

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await opened.wait()
        writer.write(struct.pack("<Qi", 2 << 20, 4))
        for _ in range(2000):
            writer.write(bytes(1 << 16))
            await writer.drain()

    opened = asyncio.Event()

    async def work() -> None:
        async with served(script) as port, session(port, "", most_return_bytes=1 << 20) as one:
            opened.set()
            await asyncio.sleep(0.5)
            with pytest.raises(ProtocolError, match="2097152 bytes"):
                await one.call(FUNCTION, deadline=soon())

    tracemalloc.start()
    run(work())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20


def test_answers_that_were_changed_end_as_a_value_or_an_error() -> None:
    outcomes = [answered(seed) for seed in range(2000)]
    assert sum(one.refused for one in outcomes) > 500
    assert sum(one.accepted for one in outcomes) > 100
