"""Find the device that a url means in the adb server's list, and say why it cannot be used."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from farm.config import parse_url
from farm.errors import DeviceError
from farm.transports.adb import adb_program, server
from farm.transports.adb.server import ListedDevice, ServerAddress, ServerError
from farm.transports.device_availability import DeviceAvailability
from farm.types import Device

_PLUG = (
    "plug it in and switch on USB debugging in its developer options, or for one in the network: "
    "adb connect HOST:PORT; then see: adb devices"
)
_ALLOW = (
    "unlock its screen and allow USB debugging there; if it does not ask, revoke the "
    "authorizations "
    "in its developer options and plug it in again"
)
_AGAIN = (
    "plug it in again, or for one in the network: adb disconnect {serial}, then adb connect "
    "{serial}"
)
_RULES = (
    "install the udev rules (sudo apt-get install android-sdk-platform-tools-common), then plug "
    "it in again"
)
_BOOT = "start Android on it: adb -s {serial} reboot"
# What a state of adb's list means, and what to do
_STATES: Mapping[str, tuple[str, str]] = {
    "unauthorized": ("is unauthorized", _ALLOW),
    "authorizing": ("is unauthorized", _ALLOW),
    "offline": ("is offline", _AGAIN),
    "connecting": ("is offline", _AGAIN),
    "no permissions": ("is not permitted to this user", _RULES),
}
_SHELL = "shell_v2"
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class UsableDevice:
    """A device that can be used: where its server is, and its serial number."""

    where: ServerAddress
    serial: str


def find_device(device: Device) -> UsableDevice:
    """Return the device of an adb: url, ready for commands.

    Raises DeviceError if adb or its server cannot be used, if the device is not in its list or not
    in the state `device`, or if the url names none and there are several.
    """
    where = adb_program.ensure_server()
    with translate_server_errors(device):
        listed = choose_listed_device(device, server.list_devices(where))
        check_state(device, listed)
        if _SHELL not in server.device_features(where, listed.serial):
            why = "its adbd has no second version of the shell's protocol (shell_v2)"
            raise DeviceError(
                f"{device.name} is too old", why, "use a board with Android 7 or later"
            )
    return UsableDevice(where, listed.serial)


@contextlib.contextmanager
def translate_server_errors(device: Device) -> Iterator[None]:
    """Translate the errors of questions to the server into a DeviceError."""
    try:
        yield
    except (OSError, ServerError) as exc:
        raise DeviceError(
            f"the adb server does not say how {device.name} is",
            str(exc),
            "see what this says: adb devices -l",
        ) from exc


def choose_listed_device(device: Device, listed: Sequence[ListedDevice]) -> ListedDevice:
    """Return the device of the list that the url means. Raises DeviceError if there is not one."""
    wanted = parse_url(device.url).serial
    names = ", ".join(f"{one.serial} ({one.model or one.state})" for one in listed[:_MOST_NAMED])
    if wanted:
        if one := next((one for one in listed if one.serial == wanted), None):
            return one
        raise DeviceError(
            f"{device.name} is not connected",
            f"adb lists no {wanted}; it lists {names or 'no device'}",
            _PLUG,
        )
    if not listed:
        raise DeviceError(f"{device.name} is not connected", "adb lists no device", _PLUG)
    if len(listed) > 1:
        fix = f"name its serial number in the url: adb:{shlex.quote(listed[0].serial)}"
        raise DeviceError(
            f"{device.name} is any of several devices",
            f"its url names none, and adb lists {names}",
            fix,
        )
    return listed[0]


def check_state(device: Device, listed: ListedDevice) -> None:
    """Raise DeviceError if a device of the list cannot run commands."""
    if listed.state == "device":
        return
    key = "no permissions" if listed.state.startswith("no permissions") else listed.state
    words, fix = _STATES.get(key, ("is not in Android", _BOOT))
    why = f"adb lists {listed.serial} as {listed.state}"
    if words == "is unauthorized":
        why += ": its user has not allowed this computer"
    raise DeviceError(f"{device.name} {words}", why, fix.format(serial=shlex.quote(listed.serial)))


def probe_state(device: Device) -> DeviceAvailability:
    """Return `ready` if adb lists the device as one that can be used, else the reason why not."""
    if device.profile.agent is None:
        return DeviceAvailability(
            "unavailable",
            False,
            f"profile {device.profile.name} has no native agent",
            "reach the board by rpc:// or tracker://",
        )
    try:
        find_device(device)
    except DeviceError as error:
        begin = f"{device.name} is "
        if error.what.startswith(begin):
            return DeviceAvailability(error.what.removeprefix(begin), False, error.why, error.fix)
        return DeviceAvailability("unavailable", False, f"{error.what}: {error.why}", error.fix)
    return DeviceAvailability("emulated" if device.emulated else "ready", True)
