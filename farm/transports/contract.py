"""The contract between farm and its agent: the same protocol, the same farm, the same TVM. What the agent says of itself tells.

TVM's own handshake does not: its version string has been the same since TVM 0.8.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from farm import __version__
from farm.errors import DeviceError
from farm.types import Device

PROTOCOL = 5  # of the agent's own functions


def ours() -> dict[str, str]:
    """What the facts of an agent must say: its protocol, and the versions of farm and TVM."""
    return {"protocol": str(PROTOCOL), "agent": __version__, "tvm": _tvm_version()}


@functools.cache
def _tvm_version() -> str:
    return importlib.metadata.version("apache-tvm")


def check(device: Device, facts: Mapping[str, Any]) -> None:
    """Raises DeviceError, with what to do, for an agent that is of another version."""
    names = {"protocol": "protocol", "agent": "farm", "tvm": "TVM"}
    wanted = ours()
    wrong = [name for name in names if str(facts.get(name)) != wanted[name]]
    if wrong:
        theirs, here = (" and ".join(f"{names[name]} {one.get(name)}" for name in wrong) for one in (facts, wanted))
        raise DeviceError(f"the agent of {device.name} is of another version", f"it has {theirs}, this farm has {here}", _fix(device))


def _fix(device: Device) -> str:
    if device.gets_agent:
        return f"farm provision --device {device.name}"
    by_farm = "where farm has installed it as a service, farm provision --service again, by SSH"
    return f"on the board, end the agent that runs and start the one of this farm: {start_command(device)}; {by_farm}"


def start_command(device: Device) -> str:
    """What starts this farm's agent on the board of an rpc:// or tracker:// device."""
    parts, gpu = urlsplit(device.url), " --cuda" if device.profile.on_gpu else ""
    if device.scheme == "tracker":
        return f"farm agent{gpu} --tracker {parts.hostname}:{parts.port or 9190} --key {parts.path.lstrip('/')}"
    return f"farm agent{gpu} --port {parts.port or 9090}"
