"""Trackers as processes, farm's and TVM's, and a client that speaks their wire."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_commands
import tvm_programs
from timeouts import LIMIT_S, wait_until

HOST = "127.0.0.1"
MAGIC = struct.pack("<i", 0x2F271)
PING, STOP, PUT, REQUEST, INFO, SUMMARY, PENDING = range(1, 8)
REFERENCE = """
import asyncio, socket, sys
from tvm.rpc.tracker import TrackerServerHandler
listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
asyncio.set_event_loop(asyncio.new_event_loop())
handler = TrackerServerHandler(listener, "stop")
print(f"tracker on 127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
handler.run()
"""


@dataclass(frozen=True, slots=True)
class Running:
    """A tracker that runs: its port, its process, and what it has printed."""

    port: int
    child: subprocess.Popen[bytes] | forked_commands.Started
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def tracker(
    folder: Path, *options: str, reference: bool = False, words: Sequence[str] = ("tracker",)
) -> Iterator[Running]:
    """farm's tracker, or TVM's, for as long as the block lasts."""
    log = folder / f"tracker-{len(list(folder.glob('tracker-*')))}.log"
    with log.open("wb") as output, Path(os.devnull).open("wb") as nowhere:
        if reference:
            child: subprocess.Popen[bytes] | forked_commands.Started = subprocess.Popen(
                [sys.executable, "-c", REFERENCE],
                stdin=subprocess.DEVNULL,
                stderr=output,
                cwd=folder,
                env=tvm_programs.environment(),
            )
        else:
            environment = {**os.environ, "FARM_DATA": str(folder)}
            child = forked_commands.start_command(
                [*words, "--port", "0", *options], folder, environment, nowhere, output
            )
    try:
        found = wait_until(
            lambda: (
                re.search(r"(?:tracker|lab) on \S+:(\d+)", log.read_text())
                or child.poll() is not None
            ),
            "the tracker",
        )
        assert found is not True, log.read_text()
        yield Running(int(found[1]), child, log)
    finally:
        child.kill()
        child.wait()


class Wire:
    """A connection to a tracker, after the greeting."""

    def __init__(
        self, port: int, greet: bool = True, origin: str | None = None, host: str = HOST
    ) -> None:
        source = (origin or HOST, 0) if host == HOST else None
        self.socket = socket.create_connection((host, port), timeout=LIMIT_S, source_address=source)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if greet:
            self.socket.sendall(MAGIC)
            assert self.exactly(4) == MAGIC

    def send(self, value: Any) -> None:
        self.send_raw(json.dumps(value).encode())

    def send_raw(self, content: bytes) -> None:
        self.socket.sendall(struct.pack("<i", len(content)) + content)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            if not piece:
                raise ConnectionError("it hung up")
            data += piece
        return data

    def answer(self) -> str:
        """The text of the next answer."""
        return self.exactly(*struct.unpack("<i", self.exactly(4))).decode()

    def ask(self, value: Any) -> Any:
        self.send(value)
        return json.loads(self.answer())

    def has_answer(self, seconds: float = 0.0) -> bool:
        return bool(select.select([self.socket], [], [], seconds)[0])

    def is_closed(self) -> bool:
        """Whether the other side hangs up, after what it still had to say."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(1 << 16):
                pass
        return True

    def register(self, key: str, port: int = 9090) -> None:
        assert self.ask([INFO, {"key": f"server:{key}", "addr": [None, port]}]) == 0

    def put(self, key: str, match_key: str, port: int = 9090, host: str | None = None) -> None:
        assert self.ask([PUT, key, [port, match_key], host]) == 0

    def summary(self) -> Any:
        code, summary = self.ask([SUMMARY])
        assert code == 0
        return summary

    def close(self) -> None:
        self.socket.close()


def queue(port: int, key: str) -> tuple[int, int]:
    """How many boards of a key are free, and how many requests wait."""
    wire = Wire(port)
    found = wire.summary()["queue_info"].get(key, {"free": 0, "pending": 0})
    wire.close()
    return found["free"], found["pending"]


def memory_mb(pid: int) -> float:
    """The resident memory of a process."""
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        * os.sysconf("SC_PAGESIZE")
        / (1 << 20)
    )


def timed_ms(action: Any) -> float:
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1e3


@contextlib.contextmanager
def tvm_server(port: int) -> Iterator[int]:
    """TVM's own server, registered with a tracker; gives the number of the process that
    offers it.
    """
    words = [
        "-m",
        "tvm.exec.rpc_server",
        "--host",
        HOST,
        "--port",
        "29090",
        "--port-end",
        "29990",
        "--silent",
    ]
    words += ["--tracker", f"{HOST}:{port}", "--key", "x86"]
    child = subprocess.Popen(
        [sys.executable, *words],
        env=tvm_programs.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: queue(port, "x86")[0] == 1, "TVM's server registers")
        yield child.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            subprocess.run(["kill", "-KILL", "--", f"-{child.pid}"], check=False)
        child.wait()
