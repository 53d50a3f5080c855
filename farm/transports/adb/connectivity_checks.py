"""Check the connection to an Android board layer by layer, for `farm doctor`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from farm.errors import DeviceError
from farm.processes.deadline import Deadline
from farm.prompts import Ask
from farm.transports import board_architecture
from farm.transports.adb import adb_program, devices, server
from farm.transports.adb.board import AdbBoard
from farm.transports.adb.server import ListedDevice, ServerAddress
from farm.transports.connection_layer import LayerCheck
from farm.types import Device


def connection_layers(
    device: Device,
    stack: contextlib.ExitStack,  # noqa: ARG001
    deadline: Deadline,
    ask: Ask,  # noqa: ARG001
) -> Iterator[LayerCheck]:
    """Yield the layers below the agent, the lowest first."""
    return AdbChecks(device, deadline).layers()


class AdbChecks:
    """The checks of an Android board. Each needs the lower `connection_layers` to have passed."""

    def __init__(self, device: Device, deadline: Deadline) -> None:
        self.device = device
        self._deadline = deadline
        self._server: ServerAddress | None = None
        self._listed: ListedDevice | None = None
        self._board: AdbBoard | None = None
        self._description: dict[str, str] = {}

    def layers(self) -> Iterator[LayerCheck]:
        """Yield the layers below the agent, the lowest first."""
        if self.device.profile.agent is None:
            raise DeviceError(
                f"profile {self.device.profile.name} has no native agent",
                "",
                "reach the board by rpc:// or tracker://",
            )
        yield LayerCheck("adb program", self.program)
        yield LayerCheck("adb server", self.server)
        yield LayerCheck("device", self.listed)
        yield LayerCheck("authorization", self.authorization)
        yield LayerCheck("shell", self.shell)
        yield LayerCheck("folder", self.folder)

    def program(self) -> str:
        """Find the adb program and its version."""
        path = adb_program.adb_program()
        return f"{path}, version {adb_program.client_protocol_version(path)}"

    def server(self) -> str:
        """Connect to the adb server, which is started if none runs."""
        self._server = adb_program.ensure_server()
        return f"{self._server} has the same version"

    def listed(self) -> str:
        """Find the board in the server's list."""
        assert self._server, "the layers before have passed"
        with devices.translate_server_errors(self.device):
            self._listed = devices.choose_listed_device(
                self.device, server.list_devices(self._server)
            )
        return ", ".join(filter(None, [self._listed.serial, self._listed.model]))

    def authorization(self) -> str:
        """Check that the board lets this computer in."""
        assert self._listed, "the layers before have passed"
        devices.check_state(self.device, self._listed)
        return "it lets this computer in"

    def shell(self) -> str:
        """Run a command, and compare the board's architecture with the profile's."""
        self._board = AdbBoard(self.device, self._deadline, devices.find_device(self.device))
        self._description = self._board.describe()
        return board_architecture.architecture_from_probe_output(self._description).words

    def folder(self) -> str:
        """Find the folder of the store and its free space."""
        assert self._board, "the layers before have passed"
        free = self._board.check_room(self._description)
        runs = f"{self._description['store']} runs programs"
        return f"{runs}, {free} free" if free else runs
