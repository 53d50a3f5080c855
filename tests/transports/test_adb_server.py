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

from farm.errors import DeviceError
from farm.transports.adb import client, devices, server
from farm.transports.adb.server import Listed, Place, ServerError
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
            client.ready()
        assert f"ANDROID_ADB_SERVER_PORT={port}" in caught.value.fix
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert client.ready() == Place("127.0.0.1", port)


def test_a_server_of_our_own_is_used(adb: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with adb_server(os.geteuid()) as port:
        monkeypatch.setattr(server, "_PORT", port)
        assert client.ready() == Place("127.0.0.1", port)


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
            server.devices(Place("127.0.0.1", listener.getsockname()[1]))


@pytest.mark.parametrize("state", ["offline", "recovery"])
def test_a_serial_number_is_quoted_in_a_command_to_copy(state: str) -> None:
    serial = "$(touch${IFS}owned);"
    with pytest.raises(DeviceError) as caught:
        devices.check_state(Device("board", None, "adb:"), Listed(serial, state))
    words = shlex.split(caught.value.fix.rpartition("adb ")[2])
    assert serial in words
