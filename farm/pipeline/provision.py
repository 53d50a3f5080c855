"""Provisioning: a board gets the agent that fits it, proves it with a small model, and may have it start at boot; or loses it all again.

Every step finds out first whether it is done already: to continue after an interruption is to do the same once more.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.deadline import Deadline
from farm.errors import UsageError
from farm.parallel import Desk
from farm.pipeline.examination import Examination, Finding
from farm.pipeline.single import Show
from farm.pipeline.tasks import crew_of
from farm.store import RunStore, Store
from farm.types import Device, Model, Profile

if TYPE_CHECKING:
    from farm.transports.ssh_service import Service

Tell = Callable[[str, Finding], None]
_SERVICE_S, _REMOVE_S = 90.0, 90.0


def provision(
    devices: Sequence[Device],
    *,
    service: Service | None,
    model: Model,
    host: Profile,
    store: Store,
    keep: RunStore,
    lanes: int,
    tell: Tell,
    show: Show,
) -> dict[str, list[Finding]]:
    """What was found and done on each device, up to the first thing that failed there. `tell` hears it as it happens.

    Raises UsageError where a service is wanted on a device that is not reached by SSH.
    """
    if service:
        _only_by_ssh(devices, "a service is installed")
    with crew_of(store) as crew:
        examination = Examination(crew, devices, host, store, lanes, show, tell)
        examination.reach()
        for device in examination.well:
            if not device.gets_agent:
                examination.note(device.name, Finding("agent binary", "somebody else starts the agent there", advice=_by_hand(device)))
        examination.place()
        examination.open_session()
        examination.prove(model, keep)
        if service:
            examination.ask("service", service_task, lambda device: (examination.agent(device), service, _SERVICE_S), _SERVICE_S)
        return examination.found


def remove(devices: Sequence[Device], *, host: Profile, store: Store, lanes: int, tell: Tell, show: Show) -> dict[str, list[Finding]]:
    """Take away what farm has put on devices; what there was. Raises UsageError where farm has put nothing, as it cannot."""
    here = [device for device in devices if device.on_this_machine]
    _only_by_ssh([device for device in devices if device not in here], "anything is removed")
    with crew_of(store) as crew:
        examination = Examination(crew, devices, host, store, lanes, show, tell)
        examination.ask("removal", remove_task, lambda _: (store.root, _REMOVE_S), _REMOVE_S)
        return examination.found


def _only_by_ssh(devices: Sequence[Device], what: str) -> None:
    for device in devices:
        if device.scheme != "ssh":
            raise UsageError(
                f"{device.name} is not reached by SSH, and only there {what}",
                f"its url is {device.url}",
                "name a device with an ssh:// url",
            )


def _by_hand(device: Device) -> str:
    from farm.transports.contract import start_command

    return f"on the board: {start_command(device)}; where farm is to do it, give the device an ssh:// url"


def service_task(desk: Desk, device: Device, agent: Path, service: Service, seconds: float) -> None:
    """In a lane: the agent becomes a service of the board."""
    from farm.transports import ssh_service

    with ExitStack() as stack:
        words = ssh_service.install(_board(desk, device, stack, seconds), agent, service)
    desk.note(Finding("service", words, advice=_unreachable(service)))


def _unreachable(service: Service) -> str:
    """A tracker tells clients to go to the board itself, where nobody listens but on its loopback."""
    host = service.tracker.rpartition(":")[0]
    if not host or host.startswith("127.") or host in ("localhost", "[::1]") or service.open_to_network:
        return ""
    return "it listens on the board's loopback only, where the tracker's clients cannot reach it: --host ADDRESS --open-to-network"


def remove_task(desk: Desk, device: Device, cache: Path, seconds: float) -> None:
    """In a lane: everything of ours goes."""
    if device.on_this_machine:
        kept = cache / "devices" / device.name
        gone = [("store", str(kept))] if kept.exists() else []
        shutil.rmtree(kept, ignore_errors=True)
    else:
        from farm.transports import ssh_service

        with ExitStack() as stack:
            gone = ssh_service.remove(_board(desk, device, stack, seconds))
    for kind, words in gone or [("removal", "there is nothing of ours")]:
        desk.note(Finding(kind, words))


def _board(desk: Desk, device: Device, stack: ExitStack, seconds: float) -> Any:
    from farm.transports.ssh_board import Board
    from farm.transports.ssh_config import route
    from farm.transports.ssh_errors import translated
    from farm.transports.ssh_login import logged_in

    hops, deadline = route(device.url), Deadline(seconds)
    client = stack.enter_context(logged_in(device.name, hops, deadline, desk.ask))
    stack.enter_context(translated(device.name, hops[-1]))
    return Board(client, device, deadline)
