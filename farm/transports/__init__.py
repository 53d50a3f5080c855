"""How a device is reached: the scheme of its url names the transport. `open` gives a link, an open TVM RPC session, for a block.

Adding a transport: a module with `open(device, agent, scratch, timeout_s, ask)`, a context manager that yields a TVM `RPCSession` and,
where it has one, a way of its own for large files (see upload.py), else None; with `state(device)`, which tells without waiting whether
it is there; and one line in the table. One that lends boards also has `boards(device)`, how many there are.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.asking import Ask, nobody
from farm.errors import DeviceError, UsageError, did_you_mean
from farm.transports import gpu_driver, upload
from farm.transports.readiness import State
from farm.types import Device

_TRANSPORTS = {
    "local": "farm.transports.agent_process",
    "qemu": "farm.transports.agent_process",
    "rpc": "farm.transports.direct",
    "ssh": "farm.transports.ssh",
    "tracker": "farm.transports.tracker",
}


@dataclass(frozen=True, slots=True)
class Link:
    """An open session with a device. `native` tells our agent, which keeps files by digest and knows facts, from TVM's own server."""

    session: Any
    native: bool
    carry: upload.Carry | None = None
    _functions: dict[str, Any] = field(default_factory=dict)  # to have one, and to let it go, takes a round trip each

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the device by its global name."""
        if name not in self._functions:
            self._functions[name] = self.session.get_function(name)
        return self._functions[name](*arguments)

    def let_go(self) -> None:
        """Give back what the session has on the device, which ends it where nothing else has anything of it.

        What is given back after its end costs a failure each: 0.4 s of processor time for the first of a process, as C++ reads the symbols
        of all libraries for its trace.
        """
        self._functions.clear()
        vars(self.session).clear()  # among it are functions that only TVM's C++ can let go

    def put(self, path: Path, digest: str, note: upload.Note) -> int:
        """Have a file in the store of a native agent under its SHA-256, whole or not at all. Returns the bytes sent.

        They are fewer than the file has where a transfer that was cut goes on. `note` hears, several times a second, how many are there.
        """
        return upload.put(self.call, self.carry, path, digest, note)


@contextlib.contextmanager
def open(device: Device, agent: Path | None, scratch: Path, timeout_s: float, ask: Ask = nobody) -> Iterator[Link]:  # noqa: A001
    """A session with a device. The device ends it by itself after `timeout_s`.

    `agent` is the native agent's executable, for the transports that start one; `scratch` a folder for its files. `ask` is for
    passwords. Raises DeviceError, also for a native agent of another version.
    """
    from farm.transports import contract

    with connect(device, agent, scratch, timeout_s, ask) as link:
        if link.native:
            contract.check(device, json.loads(link.call("farm.agent.facts")))
        yield link


@contextlib.contextmanager
def connect(device: Device, agent: Path | None, scratch: Path, timeout_s: float, ask: Ask = nobody) -> Iterator[Link]:
    """The same with an agent of whatever version: for whoever looks what it is."""
    from farm.transports.errors import translated

    if lacking := gpu_driver.lacking(device):
        raise DeviceError(f"{device.name} is {lacking.word}", lacking.why, lacking.fix)
    with translated(device), _transport(device).open(device, agent, scratch, timeout_s, ask) as (session, carry):
        link = Link(session, _is_native(session), carry)
        try:
            yield link
            if device.on_this_machine:  # to another, it takes round trips, which may be longer
                link.let_go()
        finally:
            _close(session)


def state(device: Device) -> State:
    """Whether the device can be used, as far as can be told within a few seconds and without a session."""
    result: State = gpu_driver.lacking(device) or _transport(device).state(device)
    return result


def boards(device: Device) -> int:
    """How many boards its url can give at once: those of its key at a tracker, else one. Raises DeviceError where the tracker is none."""
    from farm.transports.errors import translated

    with translated(device):
        count = getattr(_transport(device), "boards", None)
        return max(1, count(device)) if count else 1


def _transport(device: Device) -> Any:
    if device.scheme not in _TRANSPORTS:
        raise UsageError(
            f"{device.name}: devices cannot be reached by {device.scheme}: yet",
            did_you_mean(device.scheme, _TRANSPORTS),
            f"start an agent on the board (farm agent) and use rpc://{_host(device)}:9090 through an SSH tunnel",
        )
    return importlib.import_module(_TRANSPORTS[device.scheme])


def _host(device: Device) -> str:
    return device.url.partition("://")[2].rpartition("@")[2].partition("/")[0].partition(":")[0]


def _is_native(session: Any) -> bool:
    try:
        session.get_function("farm.agent.facts")
    except Exception:  # TVM's server says so in different words in each version
        return False
    return True


def _close(session: Any) -> None:
    """End the session now: waiting for the last remote handle to be collected would keep the device busy."""
    with contextlib.suppress(Exception):  # a broken connection is closed already
        session.get_function("CloseRPCConnection")()
