"""Check the connection to a board by SSH layer by layer, for `farm doctor`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from paramiko import AuthenticationException

from farm.errors import DeviceError, FarmError
from farm.processes.deadline import Deadline
from farm.prompts import Ask
from farm.transports import board_architecture, connection_layer
from farm.transports.connection_layer import LayerCheck
from farm.transports.ssh.board import SshBoard
from farm.transports.ssh.config import resolve_hops
from farm.transports.ssh.connect import log_in_through_hops
from farm.transports.ssh.errors import translate_errors
from farm.types import Device


def connection_layers(
    device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask
) -> Iterator[LayerCheck]:
    """Yield the layers below the agent, the lowest first."""
    return SshChecks(device, stack, deadline, ask).layers()


class SshChecks:
    """The checks of a device by SSH. Each needs the lower `connection_layers` to have passed.

    The connection that `host_key` opens is closed by `stack`.
    """

    def __init__(
        self, device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask
    ) -> None:
        self.device = device
        self._stack, self._deadline, self._ask = stack, deadline, ask
        self._hops = resolve_hops(device.url)
        self._board: SshBoard | None = None
        self._description: dict[str, str] = {}
        self._refused: DeviceError | None = None

    def layers(self) -> Iterator[LayerCheck]:
        """Yield the layers below the agent, the lowest first."""
        if self._hops[0].command:
            yield LayerCheck("way", self.proxy_command)
        else:
            yield LayerCheck("name", self.name)
            yield LayerCheck("TCP", self.tcp)
        yield LayerCheck("host key", self.host_key)
        yield LayerCheck("login", self.login)
        yield LayerCheck("architecture", self.architecture)
        yield LayerCheck("space", self.space)

    def proxy_command(self) -> str:
        """Return the first hop's ProxyCommand of ssh_config(5); only a login can test it."""
        return f"by {self._hops[0].command}"

    def name(self) -> str:
        """Resolve the first hop's name."""
        return connection_layer.check_host_resolves(self._hops[0].host, self._hops[0].port)

    def tcp(self) -> str:
        """Connect to the first hop's port."""
        return connection_layer.check_address_answers(
            self.device, self._hops[0].host, self._hops[0].port
        )

    def host_key(self) -> str:
        """Log in, which checks the host keys first; a refused login is the next check's finding."""
        try:
            client = self._stack.enter_context(
                log_in_through_hops(self.device.name, self._hops, self._deadline, self._ask)
            )
        except DeviceError as error:
            if not _is_of_authentication(error):
                raise
            self._refused = error
            return "it is known"
        self._board = SshBoard(self.device, self._deadline, client)
        return f"it is known, {client.get_transport().get_remote_server_key().fingerprint}"

    def login(self) -> str:
        """Raise the error of a login that was refused."""
        if self._refused:
            raise self._refused
        return f"as {self._hops[-1].user}"

    def architecture(self) -> str:
        """Compare the board's architecture with the profile's."""
        with translate_errors(self.device.name, self._hops[-1]):
            self._description = self._reached.describe()
        return board_architecture.architecture_from_probe_output(self._description).words

    def space(self) -> str:
        """Find the folder of the store and its free space."""
        free, store = self._reached.check_room(self._description), self._description["store"]
        return f"{free} free in {store}" if free else store

    @property
    def _reached(self) -> SshBoard:
        assert self._board, "the layers before have passed"
        return self._board


def _is_of_authentication(error: DeviceError) -> bool:
    """Return whether a login failed after the host key had been checked."""
    cause: BaseException | None = error
    while isinstance(cause, FarmError):
        cause = cause.__cause__
    return isinstance(cause, AuthenticationException)
