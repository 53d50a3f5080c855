"""Find boards that could be added.

Hosts of ~/.ssh/config, a tracker's boards, those of adb, GPUs of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from farm import sanitize
from farm.config import Fleet
from farm.errors import FarmError
from farm.types import Device, Profile

_MOST = 200
_PATTERN = re.compile(r"[*?!]")


@dataclass(frozen=True, slots=True)
class DiscoveredBoard:
    """A board that could be added: a name for it, its url, and where it was found."""

    name: str
    url: str
    source: str


def discover_boards(fleet: Fleet) -> list[DiscoveredBoard]:
    """Return the boards that were found and are not in the fleet, at most 200.

    Nobody is logged in to: the configuration of ssh, the tracker that `[tracker]` of devices.toml
    names, the list of an adb server that runs, and the driver's list of this machine's GPUs are
    read. A source that cannot be read adds nothing, and nothing is started.
    """
    taken = {device.url for device in fleet.devices.values()}
    found = [
        *_ssh_hosts(Path("~/.ssh/config").expanduser()),
        *_lent(fleet),
        *_phones(),
        *_gpus(fleet),
    ]
    return [one for one in found if one.url not in taken][:_MOST]


def _ssh_hosts(file: Path) -> Iterator[DiscoveredBoard]:
    import paramiko

    from farm.config import parse_url
    from farm.transports.ssh.config_include import insert_included_files

    try:
        names = (
            paramiko.SSHConfig.from_text(insert_included_files(file)).get_hostnames()
            if file.is_file()
            else set()
        )
    except (paramiko.SSHException, OSError, ValueError, FarmError):
        return
    for name in sorted(names):
        if _PATTERN.search(name):
            continue
        try:
            parse_url(f"ssh://{name}")
        except ValueError:
            continue
        yield DiscoveredBoard(_as_name(name), f"ssh://{name}", "~/.ssh/config")


def _lent(fleet: Fleet) -> Iterator[DiscoveredBoard]:
    from farm.transports import tracker

    place = f"{fleet.tracker.host}:{fleet.tracker.port}"
    asked = Device("tracker", Profile("", {}, ""), f"tracker://{place}/any")
    try:
        keys = sorted(set(tracker.registered_keys(asked)))
    except (FarmError, OSError):
        return
    for key in keys:
        if re.fullmatch(r"[A-Za-z0-9_.:-]+", key):
            yield DiscoveredBoard(
                _as_name(key), f"tracker://{place}/{key}", f"the tracker at {place}"
            )


def _phones() -> Iterator[DiscoveredBoard]:
    """Yield the devices of adb that run commands, or will once their user allows it."""
    from farm.config import parse_url
    from farm.transports.adb import server

    try:
        where = server.server_address()
        listed = server.list_devices(where)
    except (FarmError, OSError, server.ServerError):
        return
    for one in listed:
        if one.state not in ("device", "unauthorized"):
            continue
        try:
            parse_url(f"adb:{one.serial}")
        except ValueError:
            continue
        allowed = "" if one.state == "device" else ", not authorized yet"
        yield DiscoveredBoard(
            _as_name(one.model or one.serial).lower(), f"adb:{one.serial}", f"adb devices{allowed}"
        )


def _gpus(fleet: Fleet) -> Iterator[DiscoveredBoard]:
    """Yield this machine if it has a GPU and the fleet has no device for it."""
    from farm.transports import gpu_preflight

    if gpu_preflight.is_cuda_driver_installed_here() and not any(
        one.scheme == "local" and one.profile.on_gpu for one in fleet.devices.values()
    ):
        yield DiscoveredBoard("gpu", "local:", "NVIDIA's driver on this machine")


def _as_name(text: str) -> str:
    """Return a text as the name of a device."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", sanitize.sanitized_line(text)).lstrip("-.") or "board"
