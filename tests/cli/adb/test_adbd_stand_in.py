"""The stand-in for adbd, as the real adb client and server see it: what the other tests of Android
boards rest on.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from android_board import AdbServer, AndroidBoard, android_board
from timeouts import wait_until


@pytest.fixture
def board(adb: AdbServer) -> Iterator[AndroidBoard]:
    with android_board(adb, "a test of the stand-in") as one:
        yield one


def test_commands_have_both_outputs_their_input_and_an_exit_status(
    adb: AdbServer, board: AndroidBoard
) -> None:
    script = "echo out; echo err >&2; cat; exit 7"
    done = adb.adb("-s", board.serial, "shell", "-T", script, given=b"in\r\n\0\xff", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\nin\r\n\0\xff", b"err\n")


def test_a_command_that_dies_of_a_signal_ends_with_a_shells_status(
    adb: AdbServer, board: AndroidBoard
) -> None:
    assert (
        adb.adb("-s", board.serial, "shell", "-T", "kill -SEGV $$", check=False).returncode
        == 128 + 11
    )


def test_many_bytes_arrive_as_they_are_on_every_way(adb: AdbServer, board: AndroidBoard) -> None:
    sent, kept, back = board.folder / "sent", board.folder / "kept", board.folder / "back"
    content = os.urandom(3_000_001)
    sent.write_bytes(content)
    echoed = adb.adb("-s", board.serial, "shell", "-T", "cat", given=content).stdout
    assert echoed == content
    adb.adb("-s", board.serial, "push", sent, kept)
    assert kept.read_bytes() == content and int(kept.stat().st_mtime) == int(sent.stat().st_mtime)
    adb.adb("-s", board.serial, "pull", kept, back)
    assert back.read_bytes() == content
    assert adb.adb("-s", board.serial, "exec-out", f"cat {kept}").stdout == content
    assert b"sent" in adb.adb("-s", board.serial, "ls", str(board.folder)).stdout


def test_a_file_that_cannot_be_written_is_refused(adb: AdbServer, board: AndroidBoard) -> None:
    done = adb.adb("-s", board.serial, "push", Path(__file__), "/proc/nothing", check=False)
    assert done.returncode == 1 and b"couldn't create file" in done.stderr + done.stdout


def test_a_port_is_forwarded(adb: AdbServer, board: AndroidBoard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            with listener.accept()[0] as sock:
                sock.sendall(sock.recv(100).upper())

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        forwarded = int(adb.adb("-s", board.serial, "forward", "tcp:0", f"tcp:{port}").stdout)
        with socket.create_connection(("127.0.0.1", forwarded), timeout=30) as sock:
            sock.sendall(b"hello")
            assert sock.recv(100) == b"HELLO"
        thread.join(30)


@pytest.mark.parametrize(
    ("state", "listed", "words"),
    [("unauthorized", b"unauthorized", b"unauthorized"), ("silent", b"offline", b"offline")],
)
def test_a_board_that_lets_nobody_in_is_listed_as_one(
    adb: AdbServer, state: str, listed: bytes, words: bytes
) -> None:
    with android_board(adb, "a test", options=("--state", state)) as board:
        assert f"{board.serial}\t".encode() + listed in adb.adb("devices").stdout
        done = adb.adb("-s", board.serial, "shell", "true", check=False)
        assert done.returncode == 1 and words in done.stderr


def test_a_board_without_the_second_shell_protocol_says_so(adb: AdbServer) -> None:
    with android_board(adb, "a test", options=("--without-shell-v2",)) as board:
        assert b"shell_v2" not in adb.adb("-s", board.serial, "features").stdout
        assert adb.adb("-s", board.serial, "exec-out", "echo there").stdout == b"there\n"


def test_an_unplugged_board_is_no_device_any_more(adb: AdbServer, board: AndroidBoard) -> None:
    serial = board.serial
    board.unplug()
    wait_until(
        lambda: f"{serial}\tdevice".encode() not in adb.adb("devices").stdout,
        "the server to notice",
    )
    assert adb.adb("-s", serial, "shell", "true", check=False).returncode == 1
