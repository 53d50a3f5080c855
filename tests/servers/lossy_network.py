"""Two network namespaces, a context's and a board's, on the two ends of a bad line: it can delay,
lose and throttle packets, and be cut.

The line is this file as a program: it holds a TUN device in either namespace and passes raw IP
packets from one to the other. What is to become of them it reads from its input, a JSON object a
line.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_QUEUE_S = 0.5  # of packets that wait for a throttled line; more are dropped, as a router does it
_TUN = "line"
_WATCH_S = 0.25
DESK, BOARD = "10.99.0.1", "10.99.0.2"  # addresses, which nothing outside the namespaces sees


@dataclass
class Network:
    """The two namespaces by name, and the line between them."""

    context: str
    board: str
    line: subprocess.Popen[str]
    listeners: set[str] = field(default_factory=set)

    def be(
        self,
        *,
        delay_s: float = 0.0,
        loss: float = 0.0,
        bytes_per_s: float = 1e12,
        cut: bool = False,
    ) -> None:
        """From now on, in either direction: each packet is `delay_s` late and lost with the
        probability `loss`; cut, all are lost.
        """
        assert self.line.stdin
        self.line.stdin.write(
            json.dumps({"delay_s": delay_s, "loss": loss, "bytes_per_s": bytes_per_s, "cut": cut})
            + "\n"
        )
        self.line.stdin.flush()

    def watch(self, stop: threading.Event) -> None:
        """Collect the addresses on which somebody in the board's namespace listens."""
        with inside(self.board):
            while not stop.wait(_WATCH_S):
                shown = subprocess.run(
                    ["ss", "-Hltn"], capture_output=True, text=True, check=True
                ).stdout
                self.listeners.update(line.split()[3] for line in shown.splitlines())


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """In this thread, and in what it starts."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _enter(namespace)
        yield
    finally:
        _setns(home)
        os.close(home)


def _enter(namespace: str) -> None:
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    _setns(descriptor)
    os.close(descriptor)


def _setns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def lossy_network() -> Iterator[Network]:
    """Both namespaces and a perfect line, for as long as the block lasts. Skips where they cannot
    be made.
    """
    if os.getuid() or not Path("/dev/net/tun").exists():
        pytest.skip("network namespaces and /dev/net/tun need root")
    mark = uuid.uuid4().hex[:8]
    names = f"context-{mark}", f"board-{mark}"
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                _ip("netns", "add", name)
            except (subprocess.CalledProcessError, FileNotFoundError) as exc:
                pytest.skip(f"no network namespaces here: {exc}")
            stack.callback(_ip, "netns", "del", name)
        program = [sys.executable, __file__, *names]
        line = stack.enter_context(
            subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(line.kill)
        assert line.stdout and line.stdout.readline() == "ready\n"
        for name, address in zip(names, (DESK, BOARD), strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", _TUN)
            for device in ("lo", _TUN):
                _ip("-n", name, "link", "set", device, "up")
        network, stop = Network(*names, line), threading.Event()
        watching = threading.Thread(target=network.watch, args=[stop])
        watching.start()
        try:
            yield network
        finally:
            stop.set()
            watching.join()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class _Line:
    """The packets on their way: when each is due, and to which device it goes."""

    others: dict[int, int]  # the far end's device by the near end's
    way: dict[str, Any] = field(
        default_factory=lambda: {"delay_s": 0.0, "loss": 0.0, "bytes_per_s": 1e12, "cut": False}
    )
    _due: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    _free_at: dict[int, float] = field(default_factory=dict)
    _count: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(5))

    def serve(self) -> None:
        """Until the input ends."""
        while True:
            wait_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            ready, _, _ = select.select([*self.others, 0], [], [], wait_s)
            for descriptor in ready:
                if descriptor:
                    self._take(descriptor, os.read(descriptor, 1 << 16))
                elif words := os.read(0, 1 << 12):
                    self._become(json.loads(words.splitlines()[-1]))
                else:
                    return
            while self._due and self._due[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(self._due)
                with contextlib.suppress(OSError):  # that end is not up yet
                    os.write(to, packet)

    def _become(self, way: dict[str, Any]) -> None:
        self.way = way
        if way["cut"]:
            self._due.clear()

    def _take(self, descriptor: int, packet: bytes) -> None:
        now = time.monotonic()
        begin = max(now, self._free_at.get(descriptor, now))
        if self.way["cut"] or begin > now + _QUEUE_S or self._random.random() < self.way["loss"]:
            return
        end = self._free_at[descriptor] = begin + len(packet) / self.way["bytes_per_s"]
        self._count += 1
        heapq.heappush(
            self._due, (end + self.way["delay_s"], self._count, self.others[descriptor], packet)
        )


def _tun(namespace: str) -> int:
    _enter(namespace)
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(
        descriptor, _TUNSETIFF, struct.pack("16sH22x", _TUN.encode(), _IFF_TUN | _IFF_NO_PI)
    )
    return descriptor


if __name__ == "__main__":
    ends = [_tun(name) for name in sys.argv[1:]]
    print("ready", flush=True)
    _Line(dict(zip(ends, reversed(ends), strict=True))).serve()
