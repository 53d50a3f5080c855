"""What may be wrong with an Android board, or go wrong with it in the middle of a session: each
fault has its own words and its cure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
from android_board import AdbServer, AndroidBoard, android_board
from android_board_checks import (
    assert_failed,
    assert_nothing_is_left,
    board_processes,
    configure,
    deploy,
    run_slowly,
)
from farm_processes import Farm, kill_all
from timeouts import patient, wait_until

FULL = "the disk of board is full"


def layers(farm: Farm) -> dict[str, bool]:
    """What the doctor says of the board, layer by layer."""
    done = farm.run("doctor", "--device", "board", "--json")
    (device,) = (one for one in done.json["examined"] if one["name"] == "board")
    return {layer["layer"]: layer["holds"] for layer in device["layers"]}


def test_a_machine_without_adb(
    farm: Farm, phone: AndroidBoard, tmp_path_factory: pytest.TempPathFactory
) -> None:
    configure(farm, phone.url)
    empty = tmp_path_factory.mktemp("bin")
    farm.environment = {**farm.environment, "PATH": str(empty)}
    assert "apt-get install adb" in assert_failed(deploy(farm), 5, "board is unavailable")["fix"]


@pytest.mark.parametrize(
    ("state", "words", "fix"),
    [
        ("unauthorized", "is unauthorized", "allow USB debugging"),
        ("silent", "is offline", "plug it in again"),
    ],
)
def test_a_board_that_lets_nobody_in(
    farm: Farm, adb: AdbServer, state: str, words: str, fix: str
) -> None:
    farm.environment = adb.env
    with android_board(adb, farm.mark, options=("--state", state)) as board:
        configure(farm, board.url)
        assert fix in assert_failed(deploy(farm), 5, f"board {words}")["fix"]
        assert layers(farm) == {
            "adb program": True,
            "adb server": True,
            "device": True,
            "authorization": False,
        }


def test_a_board_that_is_not_there(farm: Farm, phone: AndroidBoard) -> None:
    configure(farm, "adb:HT0000000000")
    shown = assert_failed(deploy(farm), 5, "board is not connected")
    assert phone.serial in shown["why"] and "adb devices" in shown["fix"]
    assert layers(farm) == {"adb program": True, "adb server": True, "device": False}


def test_no_board_at_all(farm: Farm, adb: AdbServer) -> None:
    farm.environment = adb.env
    configure(farm, "adb:")
    assert "lists no device" in assert_failed(deploy(farm), 5, "board is not connected")["why"]


def test_two_boards_and_none_named(farm: Farm, adb: AdbServer, phone: AndroidBoard) -> None:
    with android_board(adb, farm.mark, "second") as second:
        configure(farm, "adb:")
        shown = assert_failed(deploy(farm), 5, "board is any of several devices")
        assert (
            phone.serial in shown["why"]
            and second.serial in shown["why"]
            and "adb:" in shown["fix"]
        )
        assert layers(farm) == {"adb program": True, "adb server": True, "device": False}
        configure(farm, second.url)
        assert deploy(farm).code == 0
        assert second.agents() and not phone.agents()


def test_a_board_with_an_android_of_long_ago(farm: Farm, adb: AdbServer) -> None:
    farm.environment = adb.env
    with android_board(adb, farm.mark, options=("--without-shell-v2",)) as board:
        wait_until(
            lambda: f"{board.serial}\tdevice".encode() in adb.adb("devices").stdout, "the device"
        )
        configure(farm, board.url)
        assert "shell_v2" in assert_failed(deploy(farm), 5, "board is too old")["why"]


@contextlib.contextmanager
def old_server(asked: list[str], answer: bytes) -> Iterator[int]:
    """What listens on an adb server's port, and takes note of what it is asked."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as sock:
                    asked.append(sock.recv(100).decode())
                    sock.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"OKAY00040020", "the adb server is of another version"),
        (b"HTTP/1.1 400 Bad Request", "is no adb server"),
    ],
    ids=["an older adb", "no adb"],
)
def test_a_server_of_another_version_is_left_alone(
    farm: Farm, phone: AndroidBoard, answer: bytes, words: str
) -> None:
    asked: list[str] = []
    configure(farm, phone.url)
    with old_server(asked, answer) as port:
        farm.environment = {**farm.environment, "ANDROID_ADB_SERVER_PORT": str(port)}
        assert words in assert_failed(deploy(farm), 5, "board is unavailable")["why"]
    assert set(asked) == {"000chost:version"}, "never host:kill"


def test_a_board_that_is_unplugged_in_the_middle_of_a_run(
    farm: Farm, phone: AndroidBoard, emulators: None
) -> None:
    running = run_slowly(farm, phone)
    phone.unplug()
    shown = assert_failed(running.end(), 5, "board was unplugged, or its connection broke")
    assert "plug it in" in shown["fix"]
    assert_nothing_is_left(farm, phone)
    assert phone.server.is_up()


def test_an_adb_server_that_is_killed_in_the_middle_of_a_run(
    farm: Farm, phone: AndroidBoard, emulators: None
) -> None:
    running = run_slowly(farm, phone)
    phone.server.kill()
    shown = assert_failed(running.end(), 5, "the adb server ended while board was in use")
    assert "run the command again" in shown["fix"]
    assert not phone.server.is_up(), "none is started in its place"
    assert_nothing_is_left(farm, phone)


def test_an_agent_that_is_killed_in_the_middle_of_a_run(
    farm: Farm, phone: AndroidBoard, emulators: None
) -> None:
    running = run_slowly(farm, phone)
    kill_all(farm.processes_like(r"^\S*qemu-arm .*farm-agent"), signal.SIGKILL)
    shown = assert_failed(running.end(), 5, "the agent on board ended of signal 9")
    assert "memory" in shown["fix"]
    assert_nothing_is_left(farm, phone)


def test_a_farm_that_is_interrupted_or_killed_takes_the_agent_with_it(
    farm: Farm, phone: AndroidBoard, emulators: None
) -> None:
    running = run_slowly(farm, phone)
    running.send(signal.SIGINT)
    assert running.end().code == 130
    assert_nothing_is_left(farm, phone)
    running = run_slowly(farm, phone)
    running.send(signal.SIGKILL)
    running.end()
    wait_until(lambda: not board_processes(farm), "the end of all processes", patient(10))
    wait_until(
        lambda: not list(phone.kept.glob("work/farm-session-*")),
        "the end of the session's folder",
        patient(10),
    )


def test_a_deadline_takes_the_agent_with_it(
    farm: Farm, phone: AndroidBoard, emulators: None
) -> None:
    deadline_s = patient(8)  # connecting takes up to 4 s beside other tests
    running = run_slowly(farm, phone, f"deadline_s = {deadline_s}")
    assert_failed(running.end(), 6, f"ran out of time|no end after {deadline_s:.0f} s")
    assert_nothing_is_left(farm, phone)


def test_a_full_disk(farm: Farm, phone: AndroidBoard) -> None:
    configure(farm, phone.url)
    with phone.disk("size=3m"):
        shown = assert_failed(deploy(farm), 5, FULL)
        assert "MiB are free" in shown["why"] and "`store`" in shown["fix"]
    with phone.disk("size=64k") as place:
        (place / "other").write_bytes(bytes(64 << 10))
        assert "No space left" in assert_failed(deploy(farm), 5, FULL)["why"]
        assert layers(farm)["shell"] is True and layers(farm)["folder"] is False
    with phone.disk("size=12m") as place:
        assert farm.run("devices", "-v").code == 0  # the agent is there now
        free = os.statvfs(place)
        (place / "other").write_bytes(bytes(free.f_bavail * free.f_frsize - (40 << 10)))
        assert_failed(deploy(farm), 5, FULL)


def test_a_folder_that_runs_no_programs(farm: Farm, phone: AndroidBoard) -> None:
    configure(farm, phone.url)
    with phone.disk("size=12m,noexec"):
        assert (
            "`store`"
            in assert_failed(deploy(farm), 5, "board runs no programs from its folder")["fix"]
        )
        assert layers(farm)["folder"] is False
        assert phone.agents() == []
        assert list(phone.kept.rglob(".part-*")) == []


def test_a_healthy_board_passes_every_layer(farm: Farm, phone: AndroidBoard) -> None:
    configure(farm, phone.url)
    found = layers(farm)
    below = [
        "adb program",
        "adb server",
        "device",
        "authorization",
        "shell",
        "folder",
        "agent binary",
        "agent version",
    ]
    assert list(found)[: len(below)] == below
    assert all(found.values()), found
    assert_nothing_is_left(farm, phone)
