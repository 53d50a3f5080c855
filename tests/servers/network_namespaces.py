"""Machines of a network of their own: network namespaces on a bridge."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Machine:
    """A network namespace with an address."""

    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """The first words of a command that runs there."""
        return ("ip", "netns", "exec", self.namespace)


@contextlib.contextmanager
def machines(count: int) -> Iterator[Sequence[Machine]]:
    """Yield machines that reach each other, and that this one reaches."""
    mark, free = os.getpid() % 100_000, os.getpid() % 250
    bridge, network = f"fb{mark}", f"10.213.{free}"
    with contextlib.ExitStack() as stack:
        try:
            _ip("link", "add", bridge, "type", "bridge")
        except (subprocess.CalledProcessError, FileNotFoundError) as exc:
            pytest.skip(f"no network namespaces here: {exc}")
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{network}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        found = []
        for number in range(1, count + 1):
            one = Machine(f"farm-{mark}-{number}", f"{network}.{number}")
            cable = f"fc{mark}-{number}"  # its end on the bridge
            inside = ("-n", one.namespace)
            _ip("netns", "add", one.namespace)
            stack.callback(_ip, "netns", "del", one.namespace)
            ends = ("type", "veth", "peer", "name", "eth0", "netns", one.namespace)
            _ip("link", "add", cable, *ends)
            _ip("link", "set", cable, "master", bridge, "up")
            _ip(*inside, "addr", "add", f"{one.address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip(*inside, "link", "set", device, "up")
            found.append(one)
        yield found


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
