"""The checks of a connection to a lab's boards, for `farm doctor`: door, server, board."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from farm.errors import DeviceError
from farm.lab_client.leasing import LabAccess
from farm.processes.deadline import Deadline
from farm.prompts import Ask
from farm.transports.connection_layer import LayerCheck
from farm.transports.lab.reach_lab import is_local, reach_lab, socket_path, ssh_url
from farm.transports.lab.transport import wanted_boards
from farm.types import Device


class LabChecks:
    """The checks, each of which needs that those before it have passed."""

    def __init__(
        self, device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask
    ) -> None:
        self._device, self._stack, self._deadline, self._ask = device, stack, deadline, ask
        self._lab: LabAccess | None = None

    def layers(self) -> Iterator[LayerCheck]:
        """Yield the layers, the lowest first."""
        yield LayerCheck("socket" if is_local(self._device) else "door", self.door)
        yield LayerCheck("server", self.server)
        yield LayerCheck("board", self.board)

    def door(self) -> str:
        """Reach the lab: log in, or find its socket."""
        self._lab = self._stack.enter_context(
            reach_lab(self._device, self._ask, self._deadline.remaining)
        )
        return str(socket_path()) if is_local(self._device) else f"logged in: {self._place}"

    def server(self) -> str:
        """Ask the server who one is."""
        assert self._lab
        with self._lab.client() as client:
            return f"you are {client.hello['you']}"

    def board(self) -> str:
        """Look at the boards that the device may be."""
        assert self._lab
        wants = wanted_boards(self._device)
        with self._lab.client() as client:
            boards = client.boards()
        wants.kind_among(boards)
        there = [one for one in boards if wants.fits(one) and one["use"] != "away"]
        if not there:
            away = [one["name"] for one in boards if wants.fits(one)]
            why = f"away: {', '.join(away)}" if away else "no board has registered as one"
            fix = f"on the board: farm agent --tracker HOST:PORT --key {wants.kind or 'KIND'}"
            raise DeviceError(f"the lab has not {wants.words}", why, fix)
        free = sum(one["use"] == "free" for one in there)
        return f"{free} of {len(there)} free: {', '.join(one['name'] for one in there[:5])}"

    @property
    def _place(self) -> str:
        return ssh_url(self._device)
