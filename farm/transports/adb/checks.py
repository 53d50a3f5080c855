"""Check the connection to an Android board layer by layer, for `farm doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from farm.deadline import Deadline
from farm.errors import DeviceError
from farm.transports import board_architecture
from farm.transports.adb import client, devices, server
from farm.transports.adb.board import AdbBoard
from farm.transports.adb.server import Listed, Place
from farm.types import Device


def layers(device: Device, deadline: Deadline) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the layers below the agent, the lowest first, each with its check."""
    places: list[Place] = []
    listed: list[Listed] = []
    boards: list[AdbBoard] = []
    seen: dict[str, str] = {}

    def program() -> str:
        path = client.program()
        return f"{path}, version {client.version(path)}"

    def answers() -> str:
        places.append(client.ready())
        return f"{places[0]} has the same version"

    def is_listed() -> str:
        with devices.server_errors(device):
            listed.append(devices.choose(device, server.devices(places[0])))
        return ", ".join(filter(None, [listed[0].serial, listed[0].model]))

    def lets_in() -> str:
        devices.check_state(device, listed[0])
        return "it lets this computer in"

    def runs_commands() -> str:
        boards.append(AdbBoard(device, deadline, devices.find(device)))
        seen.update(boards[0].describe())
        return board_architecture.kind_of(seen).words

    def has_room() -> str:
        free = boards[0].check_room(seen)
        return (
            f"{seen['store']} runs programs, {free} free"
            if free
            else f"{seen['store']} runs programs"
        )

    if device.profile.agent is None:
        raise DeviceError(
            f"profile {device.profile.name} has no native agent",
            "",
            "reach the board by rpc:// or tracker://",
        )
    yield "adb program", program
    yield "adb server", answers
    yield "device", is_listed
    yield "authorization", lets_in
    yield "shell", runs_commands
    yield "folder", has_room
