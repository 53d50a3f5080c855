"""Boards and trackers that attack their client: nothing of theirs is carried out, and one error
says so.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile_board
import paramiko
import pytest
from accepting import accepting

from farm import transports
from farm.config import load_fleet
from farm.errors import DeadlineError, DeviceError
from farm.processes.deadline import Deadline
from farm.rpc.blocking_connection import BlockingConnection, run_nonsuspending_coroutine
from farm.transports import rpc_client, tracker
from farm.transports.ssh.channel_connection import ChannelConnection
from farm.types import Device

MAGIC, TRACKER_MAGIC = 0xFF271, 0x2F271
OPEN_SESSION = hostile_board.packet(
    struct.pack("<iQ5si", hostile_board.INIT_SERVER, 5, b"0.8.0", 0)
)
OPENED = hostile_board.packet(struct.pack("<iii", hostile_board.RETURN, 1, hostile_board.NONE))
LOUD = sorted(set(hostile_board.ATTACKS) - {"silent"})


def device(folder: Path, url: str, options: str = "") -> Device:
    file = folder / "devices.toml"
    file.write_text(f'[devices.board]\nprofile = "x86"\nurl = "{url}"\noptions = {{ {options} }}\n')
    return load_fleet(file).devices["board"]


@contextlib.contextmanager
def hostile(mode: str, marker: Path) -> Iterator[int]:
    """A hostile board that serves, in a process of its own; gives its port."""
    command = [sys.executable, "-I", "-S", hostile_board.__file__, mode, str(marker)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            yield int(child.stdout.readline().split()[1])
        finally:
            child.kill()


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that treats each connection in its own way; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as open_ones:

        def each(connection: socket.socket) -> None:
            open_ones.enter_context(connection)
            with contextlib.suppress(struct.error):  # it has hung up: a probe
                answer(connection)

        with accepting(listener, each):
            yield listener.getsockname()[1]


def refusal(
    board: Device, folder: Path, agent: Path | None = None, greeting_s: float | None = None
) -> DeviceError:
    """The error with which a session with a device is refused."""
    begin = time.monotonic()
    with (
        pytest.raises(DeviceError) as caught,
        transports.open(board, agent, folder, 60, greeting_s=greeting_s) as link,
    ):
        link.call("farm.agent.facts")
    assert time.monotonic() - begin < 30, "it does not wait for the session's own end"
    assert caught.value.why and caught.value.fix
    return caught.value


@pytest.mark.parametrize("mode", LOUD)
def test_a_board_that_sends_anything_but_answers_is_cut_off(mode: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with hostile(mode, marker) as port:
        error = refusal(device(tmp_path, f"rpc://127.0.0.1:{port}"), tmp_path)
    assert error.what.startswith("board sent what no agent sends: "), error
    assert not marker.exists()


def test_a_board_behind_a_tracker_is_cut_off(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with (
        hostile("popen", marker) as board,
        answering(lambda sock: track(sock, [0, ["127.0.0.1", board, "key"]])) as port,
    ):
        error = refusal(device(tmp_path, f"tracker://127.0.0.1:{port}/board"), tmp_path)
    assert error.what.startswith("board sent what no agent sends: a request"), error
    assert not marker.exists()


@pytest.mark.parametrize("mode", ["popen", "huge", "garbage", "module"])
def test_an_agent_on_this_machine_is_cut_off(mode: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    launcher = f"{sys.executable} -I -S {hostile_board.__file__} {mode} {marker}"
    board = device(tmp_path, "local:", f'launcher = "{launcher}"')
    error = refusal(board, tmp_path, Path("/bin/true"))
    assert error.what.startswith("board sent what no agent sends: "), error
    assert not marker.exists()


@pytest.mark.parametrize("opens", [False, True])
def test_a_board_that_does_not_open_the_session_is_given_up(
    opens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_client, "STARTING_S", 0.3)
    board, ours = socket.socketpair()
    with board, ours, contextlib.ExitStack() as stack:
        if opens:
            board.sendall(OPENED)
        else:
            error = stack.enter_context(pytest.raises(DeadlineError, match="does not answer"))
        with rpc_client.session_over_streams(
            device(tmp_path, "ssh://board"), BlockingConnection(ours), 30
        ):
            assert board.recv(100) == OPEN_SESSION
    assert opens or error.value.fix


class _AnySession(paramiko.ServerInterface):
    def check_auth_none(self, username: str) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


@pytest.fixture
def ssh_channel() -> Iterator[tuple[paramiko.Channel, paramiko.Channel]]:
    """Our end and the board's end of a channel over SSH."""
    one, other = socket.socketpair()
    with paramiko.Transport(one) as there, paramiko.Transport(other) as here:
        there.add_server_key(paramiko.ECDSAKey.generate())
        there.start_server(event=threading.Event(), server=_AnySession())
        here.start_client(timeout=30)
        here.auth_none("anybody")
        channel = here.open_session(timeout=30)
        yield channel, there.accept(30)


Channels = tuple[paramiko.Channel, paramiko.Channel]


def test_an_agent_at_the_end_of_an_ssh_channel_is_cut_off(
    ssh_channel: Channels, tmp_path: Path
) -> None:
    ours, board = ssh_channel
    connection = ChannelConnection(ours, ours.close)
    with (
        pytest.raises(
            DeviceError, match=r"a request to be carried out on this machine \(kInitServer\)"
        ),
        answered(
            board, OPENED, hostile_board.packet(struct.pack("<iQ", hostile_board.INIT_SERVER, 0))
        ),
        rpc_client.session_over_streams(device(tmp_path, "ssh://board"), connection, 30) as session,
    ):
        session.call("farm.agent.facts")
    assert board.recv(100) == b"", "our end is cut"


@contextlib.contextmanager
def answered(board: paramiko.Channel, *answers: bytes) -> Iterator[None]:
    """Give these answers to the first requests, one each."""

    def answer() -> None:
        for each in answers:
            board.recv(1 << 16)
            board.sendall(each)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        thread.join(30)


def test_what_an_agent_writes_to_its_standard_error_never_holds_its_answers_up(
    ssh_channel: Channels,
) -> None:
    """Both share the window of the channel, 2 MiB."""
    ours, board = ssh_channel
    connection = ChannelConnection(ours, ours.close)

    def chatter() -> None:
        for _ in range(6):
            board.sendall_stderr(b"x" * (1 << 20))
        board.sendall_stderr(b"\nthe last words")
        board.sendall(b"answer")

    threading.Thread(target=chatter, daemon=True).start()
    assert run_nonsuspending_coroutine(connection.receive(Deadline(30))) == b"answer"
    assert connection.last_words().endswith("the last words")
    assert len(connection.last_words()) < 1000


class _Flooded:
    """Our end of a channel to which standard error comes faster than it is read: no network is as
    fast.
    """

    def settimeout(self, seconds: float) -> None:
        self._seconds = seconds

    def recv_stderr_ready(self) -> bool:
        return True

    def recv_stderr(self, count: int) -> bytes:
        return b"x" * min(count, 100)

    def recv(self, _: int) -> bytes:
        time.sleep(self._seconds)
        raise TimeoutError


def test_standard_error_without_an_end_does_not_outlast_the_deadline() -> None:
    connection = ChannelConnection(_Flooded(), lambda: None)
    ended = threading.Event()

    def receive() -> None:
        with contextlib.suppress(TimeoutError):
            run_nonsuspending_coroutine(connection.receive(Deadline(0.5)))
        ended.set()

    threading.Thread(target=receive, daemon=True).start()
    assert ended.wait(30)


def test_a_board_that_takes_nothing_is_given_up_at_the_deadline(ssh_channel: Channels) -> None:
    ours, _ = ssh_channel
    connection = ChannelConnection(ours, ours.close)
    with pytest.raises(TimeoutError):
        run_nonsuspending_coroutine(connection.send([bytes(8 << 20)], Deadline(0.5)))


@pytest.mark.parametrize("drip", [False, True], ids=["silent", "byte by byte"])
def test_a_server_that_accepts_and_does_not_greet_is_given_up(drip: bool, tmp_path: Path) -> None:
    def answer(sock: socket.socket) -> None:
        if drip:
            sock.sendall(struct.pack("<ii", MAGIC, 4096))
            for _ in range(4096):
                sock.sendall(b"x")
                time.sleep(0.05)

    with answering(answer) as port:
        error = refusal(device(tmp_path, f"rpc://127.0.0.1:{port}"), tmp_path, greeting_s=0.5)
    assert isinstance(error, DeadlineError)
    assert "accepted the connection but did not greet" in error.what


SUMMARY = {"server_info": [{"key": "server:board", "addr": ["127.0.0.1", 1]}], "queue_info": {}}


def track(sock: socket.socket, *answers: object) -> None:
    """Speak as a tracker: greet, tell the summary, and give the answers, which are bytes or
    JSON.
    """
    with sock.makefile("rwb") as stream:
        stream.read(4)
        stream.write(struct.pack("<i", TRACKER_MAGIC))
        stream.flush()
        for answer in ([0, SUMMARY], *answers):
            (length,) = struct.unpack("<i", stream.read(4))
            stream.read(length)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            stream.write(
                content if isinstance(answer, bytes) else struct.pack("<i", len(content)) + content
            )
            stream.flush()


def sized(content: bytes) -> bytes:
    return struct.pack("<i", len(content)) + content


HANDED_OUT = {
    "a length beyond all bounds": struct.pack("<i", (1 << 31) - 1),
    "a negative length": struct.pack("<i", -1),
    "no JSON": sized(b"{"),
    "no text": sized(b"\xff\xfe"),
    "nested too deeply": sized(b"[" * 200_000),
    "a number too long": sized(b"[0, " + b"9" * 100_000 + b"]"),
    "no list": sized(b"0"),
    "a failure": sized(b'[-1, "no"]'),
    "no address": sized(b"[0, []]"),
    "an address of other types": sized(b'[0, [1, "2", 3]]'),
    "no port": sized(b'[0, ["127.0.0.1", 99999, "key"]]'),
    "a host that is an option": sized(b'[0, ["a b;c", 9, "key"]]'),
    "a key with lines": sized(json.dumps([0, ["127.0.0.1", 9, "key\r\nFLUSHALL\r\n"]]).encode()),
    "it hangs up": b"",
}


@pytest.mark.parametrize("answer", HANDED_OUT.values(), ids=HANDED_OUT)
def test_a_tracker_that_hands_out_what_is_no_device(answer: bytes, tmp_path: Path) -> None:
    def serve(sock: socket.socket) -> None:
        track(sock, answer)
        sock.shutdown(socket.SHUT_RDWR)

    with answering(serve) as port:
        error = refusal(device(tmp_path, f"tracker://127.0.0.1:{port}/board"), tmp_path)
    assert error.what == f"what listens at 127.0.0.1:{port} is no TVM tracker"
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    "summary",
    [
        None,
        7,
        [],
        {},
        {"server_info": {}},
        {"server_info": 7},
        {"server_info": [7]},
        {"server_info": [{"key": 7}]},
    ],
)
def test_a_tracker_whose_list_is_none(
    summary: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SUMMARY", summary)
    with answering(track) as port:
        error = refusal(device(tmp_path, f"tracker://127.0.0.1:{port}/board"), tmp_path)
    assert "tracker" in error.what


def test_of_a_long_list_of_boards_some_are_told_and_how_many_more_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = [{"key": f"server:pi{number:02}" + number * "x"} for number in range(123)]
    monkeypatch.setitem(globals(), "SUMMARY", {"server_info": [*servers, *servers]})
    with answering(track) as port:
        wanted = device(tmp_path, f"tracker://127.0.0.1:{port}/board")
        error = refusal(wanted, tmp_path)
    assert error.what == f"the tracker at 127.0.0.1:{port} has no device 'board'"
    assert error.why.startswith("it has: pi00, pi01x, ") and error.why.endswith(" and 103 more")
    assert "pi19x" not in error.why and "pi107" in error.why, "in the order of their names"
    assert max(map(len, error.why.split(", "))) <= 100 + len(" and 103 more")
    with answering(track) as port:
        there = device(tmp_path, f"tracker://127.0.0.1:{port}/pi05xxxxx")
        assert transports.count_boards(there) == 2


@pytest.mark.parametrize("endless", [False, True], ids=["silent", "endless"])
def test_a_tracker_that_never_gets_done(
    endless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "_ANSWER_S", 0.5)

    def serve(sock: socket.socket) -> None:
        if endless:
            sock.sendall(struct.pack("<ii", TRACKER_MAGIC, 4 << 20))
            for _ in range(600):
                sock.sendall(b" ")
                time.sleep(0.05)

    with answering(serve) as port:
        error = refusal(device(tmp_path, f"tracker://127.0.0.1:{port}/board"), tmp_path)
    assert error.what == f"what listens at 127.0.0.1:{port} is no TVM tracker"
    assert "did not answer" in error.why


def test_a_tracker_without_a_free_device_is_asked_no_longer_than_wanted(tmp_path: Path) -> None:
    def serve(sock: socket.socket) -> None:
        track(sock, b"")
        sock.recv(1)

    with answering(serve) as port:
        error = refusal(
            device(tmp_path, f"tracker://127.0.0.1:{port}/board"), tmp_path, greeting_s=0.5
        )
    assert isinstance(error, DeadlineError) and "has no free device 'board'" in error.what
