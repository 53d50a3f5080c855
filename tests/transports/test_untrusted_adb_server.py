"""What answers at the place of the adb server may be another user's, and may mean harm."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from accepting import accepting

from farm.config import load_fleet
from farm.errors import DeviceError
from farm.pipeline.discover import discover_boards
from farm.transports.adb import adb_program, devices, server
from farm.transports.adb.server import ListedDevice, ServerAddress, ServerError
from farm.types import Device

MALLORY = 65534
VARIABLES = ("ADB_SERVER_SOCKET", "ANDROID_ADB_SERVER_ADDRESS", "ANDROID_ADB_SERVER_PORT")
# It answers every request with a version, and keeps the connection.
SERVER = """
import os, socket, sys, threading
os.seteuid(int(sys.argv[1]))
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def answer(sock):
    length = int(sock.recv(4), 16)
    sock.recv(length)
    sock.sendall(b"OKAY00040029")
    sock.recv(1)
while True:
    threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()
"""


@contextlib.contextmanager
def adb_server(user: int) -> Iterator[int]:
    command = [sys.executable, "-I", "-S", "-c", SERVER, str(user)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            yield int(child.stdout.readline())
        finally:
            child.kill()


@pytest.fixture
def adb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adb program of the server's version, and nothing that names a server."""
    program = tmp_path / "adb"
    program.write_text("#!/bin/sh\necho Android Debug Bridge version 1.0.41\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_server_of_another_user_is_used_only_if_it_is_named(
    adb: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with adb_server(MALLORY) as port:
        monkeypatch.setattr(server, "_PORT", port)
        with pytest.raises(DeviceError, match="is not yours") as caught:
            adb_program.ensure_server()
        assert f"ANDROID_ADB_SERVER_PORT={port}" in caught.value.fix
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert adb_program.ensure_server() == ServerAddress("127.0.0.1", port)


def test_a_server_of_our_own_is_used(adb: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with adb_server(os.geteuid()) as port:
        monkeypatch.setattr(server, "_PORT", port)
        assert adb_program.ensure_server() == ServerAddress("127.0.0.1", port)


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(OSError):
                sock.sendall(b"OKAYffff")
                while True:
                    sock.sendall(b"x")
                    time.sleep(0.3)

        threading.Thread(target=trickle, daemon=True).start()
        with pytest.raises((ServerError, TimeoutError)):
            server.list_devices(ServerAddress("127.0.0.1", listener.getsockname()[1]))


def test_a_server_that_breaks_off_its_list_has_failed() -> None:
    def break_off(connection: socket.socket) -> None:
        with connection as sock:
            sock.recv(int(sock.recv(4), 16))
            sock.sendall(b"OKAY0040HT7A1")

    with socket.create_server(("127.0.0.1", 0)) as listener, accepting(listener, break_off):
        address = ServerAddress("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(ServerError, match="breaks off"):
            server.list_devices(address)


def test_a_list_with_bytes_that_are_no_text_is_read() -> None:
    line = b"HT7A1                  device usb:1-4 product:w model:Pixel\xff2\n"

    def reply(connection: socket.socket) -> None:
        with connection as sock:
            sock.recv(int(sock.recv(4), 16))
            sock.sendall(b"OKAY%04x%s" % (len(line), line))

    with socket.create_server(("127.0.0.1", 0)) as listener, accepting(listener, reply):
        found = server.list_devices(ServerAddress("127.0.0.1", listener.getsockname()[1]))
    assert [(one.serial, one.state) for one in found] == [("HT7A1", "device")]


@pytest.mark.parametrize("state", ["offline", "recovery"])
def test_a_serial_number_is_quoted_in_a_command_to_copy(state: str) -> None:
    serial = "$(touch${IFS}owned);"
    with pytest.raises(DeviceError) as caught:
        devices.check_state(Device("board", None, "adb:"), ListedDevice(serial, state))
    words = shlex.split(caught.value.fix.rpartition("adb ")[2])
    assert serial in words


@contextlib.contextmanager
def listing(text: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An adb server with this list of devices, which is named to farm."""
    replies = {"host:version": "0029", "host:devices-l": text}

    def reply_to(connection: socket.socket) -> None:
        with connection as sock:
            reply = replies[sock.recv(int(sock.recv(4), 16)).decode()]
            sock.sendall(f"OKAY{len(reply.encode()):04x}{reply}".encode())

    with socket.create_server(("127.0.0.1", 0)) as listener, accepting(listener, reply_to):
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(listener.getsockname()[1]))
        yield


# As transports.cpp and sysdeps of the Android sources write these lines
UDEV = (
    "no permissions (missing udev rules? user is in the plugdev group); see "
    "[http://developer.android.com/tools/device.html]"
)


@pytest.mark.parametrize(
    ("lines", "what", "why", "fix"),
    [
        (
            [f"????????????           {UDEV} usb:3-1 transport_id:2"],
            "board is not permitted to this user",
            f"adb lists ???????????? as {UDEV}",
            "udev rules",
        ),
        (
            [f"(no serial number)     {UDEV} usb:3-1"],
            "board is not permitted to this user",
            f"adb lists (no serial number) as {UDEV}",
            "udev rules",
        ),
        (
            ["0123456789ABCDEF       no permissions usb:1-4"],
            "board is not permitted to this user",
            "adb lists 0123456789ABCDEF as no permissions",
            "udev rules",
        ),
        (
            ["HT7A1                  unauthorized usb:1-4 transport_id:3"],
            "board is unauthorized",
            "has not allowed this computer",
            "allow USB debugging",
        ),
        (
            ["HT7A1                  offline usb:1-4 transport_id:3"],
            "board is offline",
            "adb lists HT7A1 as offline",
            "plug it in again",
        ),
        (
            ["HT7A1                  recovery usb:1-4 product:w model:Pixel_2 device:w"],
            "board is not in Android",
            "adb lists HT7A1 as recovery",
            "reboot",
        ),
        (
            [
                "HT7A1                  device usb:1-4 product:w model:Pixel_2 device:w",
                f"(no serial number)     {UDEV} usb:3-1",
            ],
            "board is any of several devices",
            "HT7A1 (Pixel 2), (no serial number)",
            "adb:HT7A1",
        ),
        ([], "board is not connected", "adb lists no device", "plug it in"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("board") else "",
)
def test_a_state_of_adbs_list_has_its_words_and_its_cure(
    adb: None,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    what: str,
    why: str,
    fix: str,
) -> None:
    with (
        listing("".join(f"{line}\n" for line in lines), monkeypatch),
        pytest.raises(DeviceError) as caught,
    ):
        devices.find_device(Device("board", None, "adb:"))
    assert caught.value.what == what
    assert why in caught.value.why and not caught.value.why.endswith("usb:3-1")
    assert fix in caught.value.fix


def test_of_several_devices_that_of_the_serial_number_is_meant() -> None:
    listed = [ListedDevice("emulator-55540", "device"), ListedDevice("emulator-5554", "device")]
    for one in listed:
        assert devices.choose_listed_device(Device("a", None, f"adb:{one.serial}"), listed) == one
    with pytest.raises(DeviceError, match="a is not connected") as caught:
        devices.choose_listed_device(Device("a", None, "adb:emulator-555"), listed)
    assert "it lists emulator-55540 (device), emulator-5554 (device)" in caught.value.why


@pytest.mark.parametrize(
    ("named", "place"),
    [
        ({}, "127.0.0.1:5037"),
        ({"ANDROID_ADB_SERVER_ADDRESS": "10.0.0.9"}, "10.0.0.9:5037"),
        ({"ANDROID_ADB_SERVER_PORT": "5038"}, "127.0.0.1:5038"),
        ({"ADB_SERVER_SOCKET": "tcp:5039"}, "127.0.0.1:5039"),
        ({"ADB_SERVER_SOCKET": "tcp:10.0.0.9:1", "ANDROID_ADB_SERVER_PORT": "2"}, "10.0.0.9:1"),
        ({"ADB_SERVER_SOCKET": "tcp:[::1]:5039"}, "::1:5039"),
        ({"ADB_SERVER_SOCKET": "localfilesystem:/adb"}, ""),
        ({"ANDROID_ADB_SERVER_PORT": "65536"}, ""),
        ({"ANDROID_ADB_SERVER_PORT": "adb"}, ""),
    ],
)  # fmt: skip
def test_the_server_is_where_the_variables_of_adb_say(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str], place: str
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    assert server.is_server_configured() is bool(named)
    if place:
        assert str(server.server_address()) == place
        assert server.server_address().here is not place.startswith("10.")
    else:
        with pytest.raises(DeviceError, match="the adb server cannot be asked"):
            server.server_address()


def test_a_serial_number_that_no_url_takes_hides_no_other_device(
    adb: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    serials = ["HT7A1", "(no serial number)", "//one", "HT7A2", "HT7A3"]
    states = ["device", UDEV, "device", "offline", "device"]
    lines = "".join(
        f"{serial:22} {state} usb:1-4\n" for serial, state in zip(serials, states, strict=True)
    )
    with listing(lines, monkeypatch):
        found = discover_boards(load_fleet(None))
    assert [one.url for one in found if one.source == "adb devices"] == ["adb:HT7A1", "adb:HT7A3"]
