"""Find the device that a url means in the adb server's list, and say why it cannot be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.config import parse_url
from farm.errors import DeviceError
from farm.transports.adb import client, server
from farm.transports.adb.server import Listed, Place, ServerError
from farm.transports.state import State
from farm.types import Device

_PLUG = (
    "plug it in and switch on USB debugging in its developer options, or for one in the network: "
    "adb connect HOST:PORT; then see: adb devices"
)
_ALLOW = (
    "unlock its screen and allow USB debugging there; if it does not ask, revoke the authorizations "
    "in its developer options and plug it in again"
)
_AGAIN = "plug it in again, or for one in the network: adb disconnect {serial}, then adb connect {serial}"
_RULES = "install the udev rules (sudo apt-get install android-sdk-platform-tools-common), then plug it in again"
_BOOT = "start Android on it: adb -s {serial} reboot"
# The word of a state, what it means, and what to do
_STATES: Mapping[str, tuple[str, str]] = {
    "unauthorized": ("has not authorized this computer", _ALLOW),
    "authorizing": ("has not authorized this computer yet", _ALLOW),
    "offline": ("is offline", _AGAIN),
    "connecting": ("is offline: it does not answer yet", _AGAIN),
    "no permissions": ("may not be used by this user", _RULES),
}
_SHELL = "shell_v2"
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A device that can be used: where its server is, and its serial number."""

    where: Place
    serial: str


def find(device: Device) -> Found:
    """Return the device of an adb: url, ready for commands.

    Raises DeviceError if adb or its server cannot be used, if the device is not in its list or not in
    the state `device`, or if the url names none and there are several.
    """
    where = client.ready()
    try:
        listed = choose(device, server.devices(where))
        check_state(device, listed)
        if _SHELL not in server.features(where, listed.serial):
            why = "its adbd has no second version of the shell's protocol (shell_v2)"
            raise DeviceError(f"the Android of {device.name} is too old", why, "use a board with Android 7 or later")
    except (OSError, ServerError) as exc:
        raise DeviceError(f"the adb server does not say how {device.name} is", str(exc), "see what this says: adb devices -l") from exc
    return Found(where, listed.serial)


def choose(device: Device, listed: Sequence[Listed]) -> Listed:
    """Return the device of the list that the url means. Raises DeviceError if there is not one."""
    wanted = parse_url(device.url).serial
    names = ", ".join(f"{one.serial} ({one.model or one.state})" for one in listed[:_MOST_NAMED])
    if wanted:
        if one := next((one for one in listed if one.serial == wanted), None):
            return one
        raise DeviceError(f"{device.name} is not connected", f"adb lists no {wanted}; it lists {names or 'no device'}", _PLUG)
    if not listed:
        raise DeviceError(f"{device.name} is not connected", "adb lists no device", _PLUG)
    if len(listed) > 1:
        fix = f"name its serial number in the url: adb:{listed[0].serial}"
        raise DeviceError(f"it is not clear which device {device.name} is", f"the url names none, and adb lists {names}", fix)
    return listed[0]


def check_state(device: Device, listed: Listed) -> None:
    """Raise DeviceError if a device of the list cannot run commands."""
    if listed.state == "device":
        return
    key = "no permissions" if listed.state.startswith("no permissions") else listed.state
    words, fix = _STATES.get(key, (f"is in the state {listed.state}, not in Android", _BOOT))
    raise DeviceError(f"{device.name} {words}", f"adb lists {listed.serial} as {listed.state}", fix.format(serial=listed.serial))


def state(device: Device) -> State:
    """Return `ready` if adb lists the device as one that can be used, else the reason why not."""
    if device.profile.agent is None:
        return State("unavailable", False, f"profile {device.profile.name} has no native agent", "reach the board by rpc:// or tracker://")
    try:
        find(device)
    except DeviceError as error:
        return State("unavailable", False, f"{error.what}: {error.why}", error.fix)
    return State("emulated" if device.emulated else "ready", True)
