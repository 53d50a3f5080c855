"""`tracker://host:port/key`: a device that a TVM tracker hands out."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from farm.asking import Ask
from farm.errors import DeviceError
from farm.lightly import tvm_rpc
from farm.transports import direct
from farm.transports.readiness import State
from farm.transports.rpc_client import noticing_silence
from farm.types import Device


@contextlib.contextmanager
def open(device: Device, agent: Path | None, scratch: Path, timeout_s: float, ask: Ask) -> Iterator[Any]:  # noqa: A001, ARG001
    """Ask the tracker for a device of the key, waiting while all are in use. Raises DeviceError where it has none: TVM waits for ever."""
    host, port = direct.address(device)
    direct.probe(host, port)
    key = _key(device)
    with contextlib.closing(_greet(device, host, port)) as tracker:
        known = sorted(set(_keys(tracker)))
        if key not in known:
            raise DeviceError(
                f"the tracker at {host}:{port} has no device {key!r}",
                f"it has: {', '.join(known)}" if known else "no device has registered with it",
                f"on the board: farm agent --tracker {host}:{port} --key {key}",
            )
        with noticing_silence():
            session = tracker.request(key, session_timeout=timeout_s, max_retry=1)
        yield session, None


def boards(device: Device) -> int:
    """How many devices of the key have registered."""
    host, port = direct.address(device)
    direct.probe(host, port)
    with contextlib.closing(_greet(device, host, port)) as tracker:
        return _keys(tracker).count(_key(device))


def _key(device: Device) -> str:
    return urlsplit(device.url).path.lstrip("/")


def _keys(tracker: Any) -> list[str]:
    """The key of each device that has registered."""
    return [server["key"].partition(":")[2] for server in tracker.summary()["server_info"]]


def _greet(device: Device, host: str, port: int) -> Any:
    try:
        return tvm_rpc().connect_tracker(host, port)
    except (OSError, RuntimeError, struct.error) as exc:
        what, fix = f"what listens at {host}:{port} is no TVM tracker", f"correct `url` of {device.name}, or start one there: farm tracker"
        raise DeviceError(what, f"{type(exc).__name__}: {exc}", fix) from exc


def state(device: Device) -> State:
    """Ready if the tracker answers; whether it has a device of the key is known when one is asked for."""
    host, port = direct.address(device)
    try:
        direct.probe(host, port)
    except OSError as exc:
        return State("offline", False, f"tracker {host}:{port}: {exc.strerror or exc}", f"start it there: farm tracker --port {port}")
    return State("ready", True)
