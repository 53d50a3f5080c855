"""What strangers send to farm's tracker costs nobody but them; and TVM's faults, which ours does
not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timeouts import LIMIT_S, wait_until
from tracker_processes import (
    HOST,
    INFO,
    MAGIC,
    PENDING,
    PING,
    PUT,
    REQUEST,
    SUMMARY,
    Running,
    Wire,
    queue,
    timed_ms,
    tracker,
)

from farm.tracker import server
from farm.tracker.admission import ConnectionAdmission, ConnectionLimits
from farm.tracker.errors import ProtocolError
from farm.tracker.framing import FrameBuffer
from farm.tracker.limited_log import LimitedLog
from farm.tracker.metrics_page import MetricsPage, serve_metrics
from farm.tracker.protocol import parse_message
from farm.tracker.scheduler import ALIVE_S, KeyQueue, Summary


@pytest.fixture(scope="module", params=["tracker", "lab serve"])
def lab(request: pytest.FixtureRequest) -> Iterator[Running]:
    """farm's tracker, then its lab server."""
    with (
        tempfile.TemporaryDirectory(
            prefix="farm-lab-", dir="/tmp"
        ) as folder,  # short, for the path of a socket
        tracker(Path(folder), "--unknown-key-s", "0.2", words=request.param.split()) as running,
    ):
        yield running


@pytest.fixture(params=[True, False], ids=["TVM's", "farm's"])
def each(
    request: pytest.FixtureRequest, tmp_path: Path, lab: Running
) -> Iterator[tuple[Running, bool]]:
    """TVM's tracker, then ours; and whether it is ours."""
    if request.param:
        with tracker(tmp_path, reference=True) as running:
            yield running, False
    else:
        yield lab, True


SAID = {
    "no list": b"7",
    "an empty list": b"[]",
    "a code that is none": b'["PING"]',
    "true as a code": b"[true]",
    "an unknown code": b"[103, {}]",
    "a heartbeat without a state": b'[101, {"session": null}]',
    "a heartbeat of another form": b'[101, {"session": [], "state": {}}]',
    "a session without a time": b'[101, {"session": {"match_key": "a"}, "state": {}}]',
    "a temperature that is none": b'[101, {"session": null, "state": {"temperature_c": 1e999}}]',
    "a load beyond all bounds": b'[101, {"state": {"load_1m": ' + b"9" * 4000 + b"}}]",
    "an end of no known way": b'[102, {"match_key": "a", "how": "well", "seconds": 1}]',
    "an end in the future": b'[102, {"match_key": "a", "how": "closed", "seconds": -1}]',
    "a board's name that is none": b'[5, {"key": "server:a", "addr": [null, 1], "farm": '
    b'{"board": "../a"}}]',
    "a code beyond all bounds": b"[" + b"9" * 4000 + b"]",
    "no text": b"\xff\xfe",
    "no JSON": b"{",
    "deep nesting": b"[" * 60_000,
    "a number too long": b"[4, " + b"9" * 60_000 + b"]",
    "a priority that is none": b'[4, "pi", "", NaN]',
    "a priority of text": b'[4, "pi", "", "1"]',
    "a key that is none": b'[4, ["pi"], "", 1]',
    "a key too long": b'[4, "' + b"k" * 300 + b'", "", 1]',
    "a key of half a character": rb'[4, "\ud800", "", 1]',
    "an offer of half a character": rb'[3, "\ud800", [9090, "pi:1"], null]',
    "a match key of half a character": rb'[3, "pi", [9090, "\udfff"], null]',
    "an offer without an address": b'[3, "pi"]',
    "a port beyond all": b'[3, "pi", [65536, "pi:1"], null]',
    "a port of other digits": '[3, "pi", ["²", "pi:1"], null]'.encode(),
    "a port of six digits": b'[3, "pi", ["909090", "pi:1"], null]',
    "true as a port": b'[3, "pi", [true, "pi:1"], null]',
    "a host that is none": b'[3, "pi", [9090, "pi:1"], {}]',
    "info that is none": b"[5, 7]",
    "info without an address": b'[5, {"key": "server:pi"}]',
}


@pytest.mark.parametrize("content", SAID.values(), ids=SAID)
def test_a_message_that_is_none_ends_its_connection_and_no_other(
    lab: Running, content: bytes
) -> None:
    with pytest.raises(ProtocolError):
        parse_message(content)
    other, wire = Wire(lab.port), Wire(lab.port)
    wire.send_raw(content)
    assert wire.is_closed()
    assert other.ask([PING]) == 0
    assert "Traceback" not in lab.said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[3, "pi"]', "a PUT in another form than TVM's"),
        (b"[6, 7]", "a SUMMARY in another form than TVM's"),
        (b"[101]", "a message of the unknown code 101"),
        (b"[-5]", "a message of the unknown code -5"),
    ],
)
def test_the_operator_is_told_what_kind_of_message_it_was(content: bytes, words: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_message(content)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x71",
        MAGIC + struct.pack("<i", 1 << 30),
        MAGIC + b"\xff\xff\xff\xff",
    ],
)
def test_what_is_no_tracker_protocol_is_hung_up_on(lab: Running, sent: bytes) -> None:
    wire = Wire(lab.port, greet=False)
    wire.socket.sendall(sent)
    if sent == b"\x71":
        wire.socket.shutdown(socket.SHUT_WR)
    assert wire.is_closed()
    assert Wire(lab.port).ask([PING]) == 0


def test_greeting_and_message_may_come_together_or_in_pieces(lab: Running) -> None:
    sent = MAGIC + struct.pack("<i", 3) + b"[1]"
    for pieces in ([sent], [bytes([byte]) for byte in sent]):
        wire = Wire(lab.port, greet=False)
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            wire.socket.sendall(piece)
        assert wire.exactly(4) == MAGIC
        assert wire.answer() == "0"


def test_a_client_that_hangs_up_leaves_the_queue(each: tuple[Running, bool]) -> None:
    running, ours = each
    board = Wire(running.port)
    board.register("leaves")
    gone = Wire(running.port)
    gone.send([REQUEST, "leaves", "", 1])
    wait_until(lambda: queue(running.port, "leaves")[1] == 1, "it waits")
    gone.close()
    if ours:
        wait_until(lambda: queue(running.port, "leaves")[1] == 0, "it has left")
    else:
        time.sleep(0.3)
        assert queue(running.port, "leaves")[1] == 1, "TVM's tracker keeps it: this test can fail"


def test_the_offer_of_a_server_that_is_gone_is_not_lent(each: tuple[Running, bool]) -> None:
    running, ours = each
    board = Wire(running.port)
    board.put("goes", "goes:1")
    board.close()
    if ours:
        wait_until(lambda: queue(running.port, "goes")[0] == 0, "it is withdrawn")
    else:
        time.sleep(0.3)
        assert queue(running.port, "goes")[0] == 1, "TVM's tracker lends it"


def test_a_request_for_a_key_that_nobody_has_is_answered(each: tuple[Running, bool]) -> None:
    running, ours = each
    board, wire = Wire(running.port), Wire(running.port)
    board.register("pi4")
    wire.send([REQUEST, "pi6", "", 1])
    if ours:
        code, why = json.loads(wire.answer())
        assert code == -1 and "no board has the key 'pi6'" in why and "did you mean pi4?" in why
    else:
        assert not wire.has_answer(1.0)


def test_a_board_that_registers_while_a_client_waits_is_given_to_it(tmp_path: Path) -> None:
    with tracker(tmp_path, "--unknown-key-s", "60") as running:
        wire, board = Wire(running.port), Wire(running.port)
        wire.send([REQUEST, "late", "", 1])
        board.register("late")
        board.put("late", "late:1")
        assert wire.answer() == f'[0, ["{HOST}", 9090, "late:1"]]'


def test_a_server_that_lost_power_and_is_back_is_offered_once(lab: Running) -> None:
    before, after = Wire(lab.port), Wire(lab.port)
    for number, wire in enumerate((before, after)):
        if number:
            time.sleep(ALIVE_S + 0.5)
        wire.register("power", 9999)
        wire.put("power", f"power:{number}", 9999)
    assert before.is_closed()
    assert queue(lab.port, "power") == (1, 0)
    assert after.ask([PENDING]) == ["power:1"]


def test_a_strange_key_does_nothing_to_the_operators_terminal(tmp_path: Path) -> None:
    with tracker(
        tmp_path, "--unknown-key-s", "0.2"
    ) as running:  # one that has said nothing of other tests' strangers
        assert Wire(running.port).ask([REQUEST, "\x1b]0;owned\x07\n", "", 1])[0] == -1
        wait_until(lambda: "owned" in running.said, "the line")
        assert "\x1b" not in running.said and "\x07" not in running.said


def test_a_client_that_reads_no_answer_holds_nobody_up(lab: Running) -> None:
    board, flood = Wire(lab.port), Wire(lab.port)
    board.register("flooded")
    flood.socket.settimeout(0.2)
    message = json.dumps([SUMMARY]).encode()
    block = (struct.pack("<i", len(message)) + message) * 10_000
    with pytest.raises(OSError, match="timed out"):
        for _ in range(1000):
            flood.socket.sendall(block)  # until the tracker reads no more
    assert timed_ms(lambda: board.ask([PING])) < 1000
    flood.close()


def test_thousands_of_connections_that_say_nothing_keep_nobody_out(lab: Running) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(5000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 400), hard))
    board, silent = Wire(lab.port), []
    board.register("crowd")
    board.put("crowd", "crowd:1")
    try:
        for number in range(count):
            one = socket.create_connection((HOST, lab.port), timeout=LIMIT_S)
            one.sendall(MAGIC[: number % 5])
            silent.append(one)
        assert board.ask([PENDING]) == ["crowd:1"]
        assert Wire(lab.port).ask([REQUEST, "crowd", "", 1]) == [0, [HOST, 9090, "crowd:1"]]
    finally:
        for one in silent:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert lab.said.count("\n") < 200, "a flood of them fills no log"


def test_the_end_is_clean_with_connections_open(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as free:
        place = free.getsockname()
    with (
        tracker(tmp_path, "--metrics", str(place[1])) as running,
        socket.create_connection(place),  # a reader of its numbers that says nothing
    ):
        wires = [Wire(running.port) for _ in range(20)]
        wires[0].send([REQUEST, "nobody", "", 1])
        assert wires[1].ask([PING]) == 0
        running.child.send_signal(signal.SIGINT)
        assert running.child.wait(LIMIT_S) == 0
        assert all(wire.is_closed() for wire in wires[1:])
        assert "Traceback" not in running.said and "error" not in running.said


def test_whoever_completes_no_message_is_hung_up_on_though_others_came_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_TICK_S", 0.01)
    monkeypatch.setattr(server, "_UNFINISHED_S", 0.5)

    async def come_and_say_no_more() -> None:
        async with tracked_server([]) as (_, port):
            for _ in range(3):
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(MAGIC[:2])
                async with asyncio.timeout(LIMIT_S):
                    assert await reader.read() == b""
                writer.close()

    asyncio.run(come_and_say_no_more())


@contextlib.asynccontextmanager
async def tracked_server(said: list[str]) -> AsyncIterator[tuple[server.TrackerServer, int]]:
    """A tracker of this process, and its port; `said` gets its lines for the operator."""
    loop = asyncio.get_running_loop()
    tracked = server.TrackerServer(loop, server.TrackerServerSettings(), said.append)
    listening = await loop.create_server(tracked.connection, HOST, 0)
    try:
        yield tracked, listening.sockets[0].getsockname()[1]
    finally:
        tracked.close()
        listening.close()


def test_a_message_that_comes_byte_by_byte_is_not_waited_for_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_TICK_S", 0.01)
    monkeypatch.setattr(server, "_UNFINISHED_S", 0.5)

    async def trickle() -> bytes:
        async with tracked_server([]) as (_, port), asyncio.timeout(LIMIT_S / 10):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(MAGIC + struct.pack("<i", 1 << 16))
            answered = asyncio.ensure_future(reader.read())
            while not answered.done():
                writer.write(b" ")
                await asyncio.wait([answered], timeout=0.01)
            writer.close()
            return await answered

    assert asyncio.run(trickle()) == MAGIC


def test_whoever_asks_now_and_then_and_reads_no_answer_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_TICK_S", 0.01)
    monkeypatch.setattr(server, "_UNFINISHED_S", 0.5)
    said: list[str] = []

    def framed(value: object) -> bytes:
        content = json.dumps(value).encode()
        return struct.pack("<i", len(content)) + content

    async def ask_and_read_nothing() -> None:
        async with tracked_server(said) as (_, port), asyncio.timeout(LIMIT_S / 10):
            board, many = await asyncio.open_connection(HOST, port)
            many.write(MAGIC)
            for number in range(2000):  # so that few answers are more than a connection holds
                many.write(framed([PUT, f"{number:0256}", [9090, f"{number}"], None]))
            await board.readexactly(4 + 2000 * 5)
            _, silent = await asyncio.open_connection(HOST, port)
            silent.write(MAGIC)
            while not said:
                silent.write(framed([SUMMARY]))
                await asyncio.sleep(0.01)
            for one in (many, silent):
                one.close()

    asyncio.run(ask_and_read_nothing())
    assert said[0].endswith("it has not completed a message, or not read an answer")


def test_messages_that_are_incomplete_are_bounded_all_together_as_long_as_they_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_MOST_HELD_BYTES", 5000)
    message = struct.pack("<i", 3000) + b"[1]".ljust(3000)
    said: list[str] = []

    async def hold() -> None:
        async with tracked_server(said) as (tracked, port), asyncio.timeout(LIMIT_S / 10):

            async def begin(size: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                before = sum(tracked._held.values())
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(MAGIC + message[:size])
                while sum(tracked._held.values()) != before + size:
                    await asyncio.sleep(0.005)
                return reader, writer

            for _ in range(3):  # completed, or given up: neither is held any longer
                reader, writer = await begin(2000)
                writer.write(message[2000:])
                assert await reader.readexactly(9) == MAGIC + struct.pack("<i", 1) + b"0"
                _, other = await begin(2000)
                for one in (writer, other):
                    one.close()
                while tracked._peers:
                    await asyncio.sleep(0.005)
            held = [await begin(size) for size in (2500, 2000)]
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(MAGIC + message[:2500])
            assert await reader.read() == MAGIC
            held += [await begin(1024)]  # as long as messages of boards and clients
            assert len(tracked._peers) == len(held)
            for _, one in (*held, (reader, writer)):
                one.close()

    asyncio.run(hold())
    assert len(said) == 1 and said[0].endswith("its message is incomplete, as are too many")


@contextlib.asynccontextmanager
async def metrics_page() -> AsyncIterator[tuple[str, int]]:
    """Where a page of numbers is served."""
    with socket.create_server((HOST, 0)) as listener:
        page = MetricsPage(lambda: Summary({"pi": KeyQueue(1, 0)}, ()))
        serving = await serve_metrics(page, listener)
        try:
            async with asyncio.timeout(LIMIT_S):
                yield listener.getsockname()
        finally:
            serving.close()


async def asked(place: tuple[str, int], request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*place)
    writer.write(request + b" HTTP/1.1\r\n\r\n")
    try:
        return await reader.read()
    except ConnectionResetError:  # nobody has read the request
        return b""
    finally:
        writer.close()


def test_the_head_of_the_metrics_page_comes_without_the_page() -> None:
    async def ask() -> bytes:
        async with metrics_page() as place:
            return await asked(place, b"HEAD /metrics")

    said = asyncio.run(ask())
    assert said.startswith(b"HTTP/1.1 200 OK") and b"Content-Length: " in said
    assert said.endswith(b"\r\n\r\n") and said.count(b"\r\n\r\n") == 1


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics", b"200"),
        (b"GET /metrics?name=x", b"200"),
        (b"GET /", b"404"),
        (b"GET /metrics2", b"404"),
        (b"POST /metrics", b"405"),
        (b"DELETE /metrics", b"405"),
    ],
)
def test_the_metrics_page_is_one_page_to_read(request_line: bytes, status: bytes) -> None:
    async def ask() -> bytes:
        async with metrics_page() as place:
            return await asked(place, request_line)

    said = asyncio.run(ask())
    assert said.split(b" ")[:2] == [b"HTTP/1.1", status]
    assert (b"farm_tracker_boards_free" in said) == (status == b"200")


def test_readers_of_metrics_that_say_nothing_take_few_places_and_for_a_moment() -> None:
    async def crowd() -> None:
        async with metrics_page() as place:
            silent = [await asyncio.open_connection(*place) for _ in range(16)]
            assert await asked(place, b"GET /metrics") == b""
            for _, writer in silent:
                writer.close()
            while not await asked(place, b"GET /metrics"):
                await asyncio.sleep(0.01)

    asyncio.run(crowd())


def test_the_oldest_stranger_gives_way_and_whoever_has_spoken_does_not() -> None:
    admission = ConnectionAdmission(ConnectionLimits(connections=4, of_address=3))
    assert [admission.enter(number, "a").gives_way for number in (1, 2, 3)] == [None, None, None]
    admission.trust(1)
    assert admission.enter(4, "a").gives_way == 2
    assert admission.enter(5, "b").admitted
    assert admission.enter(6, "c").gives_way == 3, "there is no room at all"
    for number in (4, 5, 6):
        admission.trust(number)
    assert not admission.enter(7, "d").admitted
    admission.leave(6)
    assert admission.enter(8, "d").admitted


def test_an_address_with_too_many_connections_takes_no_place_of_another() -> None:
    admission = ConnectionAdmission(ConnectionLimits(connections=9, of_address=2))
    for number in (1, 2):
        assert admission.enter(number, "a").admitted
        admission.trust(number)
    assert admission.enter(3, "b").admitted  # a stranger
    decision = admission.enter(4, "a")
    assert not decision.admitted and decision.gives_way is None
    admission.leave(1)
    assert admission.enter(5, "a").admitted


def test_a_flood_of_notices_is_counted() -> None:
    said: list[str] = []
    notices = LimitedLog(said.append)
    for _ in range(1000):
        notices.note("\x1b[31mgarbage", 1.0)
    notices.tick(12.0)
    assert len(said) == 21 and said[-1] == "980 more such lines in the last 10 s"
    assert "\x1b" not in "".join(said)
    for _ in range(30):
        notices.note("x" * 1000, 13.0)
    assert said[21:] == ["x" * 500] * 20, "in the next period lines are passed on again"
    few: list[str] = []
    notices = LimitedLog(few.append)
    for now in (1.0, 12.0, 23.0):
        for _ in range(15):
            notices.note("x", now)
    assert len(few) == 45, "those of a period before count no more"


OPEN_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1000))
from farm.tracker.admission import ConnectionLimits, limits_within_open_files
for wanted, beside in ((100, 0), (8192, 0), (8192, 100), (8192, 900)):
    limits = limits_within_open_files(ConnectionLimits(wanted, wanted), beside)
    print(limits.connections, limits.of_address)
"""


def test_connections_leave_files_for_all_else_and_one_address_leaves_half_of_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPEN_FILES], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["100 50", "936 468", "836 418", "686 343"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda one: st.lists(one) | st.dictionaries(st.text(), one),
)


@given(st.integers(-1, 9), st.lists(JSON, max_size=4))
def test_whatever_json_comes_is_a_message_or_a_protocol_error(
    code: int, rest: list[object]
) -> None:
    for message in (
        [code, *rest],
        [INFO, {"key": "server:x", "addr": rest}],
        [PUT, "x", rest, None],
        [REQUEST, *rest],
    ):
        try:
            parse_message(json.dumps(message).encode("utf-8", "surrogatepass"))
        except ProtocolError as error:
            assert len(str(error)) < 200


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=8))
def test_bytes_give_the_same_messages_in_whatever_pieces_they_come(
    data: bytes, sizes: list[int]
) -> None:
    def read(pieces: list[bytes]) -> tuple[list[bytes], bool]:
        frames, found = FrameBuffer(), []
        try:
            for piece in pieces:
                frames.feed(piece)
                while (frames.greeted or frames.greet()) and (content := frames.next()) is not None:
                    found.append(content)
        except ProtocolError:
            return found, False
        return found, True

    stream = MAGIC + data
    pieces, at = [], 0
    for size in (*sizes, len(stream)):
        pieces.append(stream[at : at + size])
        at += size
    assert read(pieces) == read([stream])
