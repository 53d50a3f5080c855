"""What a waiting command does while the lab's server is away."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from farm.errors import LinkError
from farm.lab_client.control_client import PROTOCOL, LabClient, ReconnectingClient

AWAY_S = 0.7


def serve(path: Path, answers: int) -> None:
    """Serve one connection for so many answers; then hang up and leave."""
    with socket.socket(socket.AF_UNIX) as listening:
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        listening.listen()
        connection, _ = listening.accept()
        with connection, connection.makefile("rwb") as file:
            for _ in range(answers):
                request = json.loads(file.readline())
                file.write(
                    json.dumps({"ok": {"protocol": PROTOCOL, "did": request["do"]}}).encode()
                )
                file.write(b"\n")
                file.flush()
        path.unlink()


def start(path: Path, answers: int, after_s: float = 0.0) -> threading.Thread:
    def run() -> None:
        time.sleep(after_s)
        serve(path, answers)

    thread = threading.Thread(target=run)
    thread.start()
    if not after_s:
        while not path.exists():
            time.sleep(0.01)
    return thread


def test_a_server_that_is_back_within_the_patience_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "lab"
    first = start(path, 2)
    with ReconnectingClient(lambda: LabClient(path), 60) as client:
        assert client.ask("leases")["did"] == "leases"
        first.join()
        second = start(path, 2, AWAY_S)
        assert client.ask("boards")["did"] == "boards"
        second.join()


def test_a_server_that_stays_away_is_told_after_the_patience(tmp_path: Path) -> None:
    path = tmp_path / "lab"
    first = start(path, 1)
    with ReconnectingClient(lambda: LabClient(path), AWAY_S) as client:
        first.join()
        begin = time.monotonic()
        with pytest.raises(LinkError):
            client.ask("leases")
        assert time.monotonic() - begin >= AWAY_S


def test_no_server_to_begin_with_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(LinkError):
        ReconnectingClient(lambda: LabClient(tmp_path / "lab"), 3600)
