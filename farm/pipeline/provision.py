"""Install the agent on boards, test it with a small model and optionally start it at boot.

`remove_farm_from_devices` removes all of it again. Every step first checks whether it is already
done, so that an interrupted run can be repeated.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from farm.errors import UsageError
from farm.pipeline.doctor.checks import Examination, Finding
from farm.pipeline.operations import Show
from farm.pipeline.worker_tasks import open_pool
from farm.processes.deadline import Deadline
from farm.processes.workers import TaskContext
from farm.store import RunStore, Store
from farm.types import Device, Model, Profile

if TYPE_CHECKING:
    from farm.transports.ssh.systemd_service import AgentServiceSettings
    from farm.transports.ssh.systemd_tunnel import LabTunnel

Tell = Callable[[str, Finding], None]
_SERVICE_S, _REMOVE_S = 90.0, 90.0


def provision_devices(
    devices: Sequence[Device],
    *,
    service: AgentServiceSettings | None,
    tunnel: LabTunnel | None = None,
    model: Model,
    host: Profile,
    store: Store,
    keep: RunStore,
    slots: int,
    tell: Tell,
    show: Show,
) -> dict[str, list[Finding]]:
    """Provision the devices; return the findings of each, up to its first failure.

    `tell` is called with each finding as it is made. With a `service`, the agent is installed as a
    systemd service, and with a `tunnel` another one beside it, which reaches a lab. Raises
    UsageError if a service is requested for a device that is not reached by SSH.
    """
    if service:
        _only_by_ssh(devices, "a service is installed")
    with open_pool(store) as pool:
        examination = Examination(pool, devices, host, store, slots, show, tell)
        examination.reach()
        for device in examination.well:
            if not device.gets_agent:
                examination.note(
                    device.name,
                    Finding(
                        "agent binary",
                        "somebody else starts the agent there",
                        advice=_by_hand(device),
                    ),
                )
        examination.place()
        examination.open_session()
        examination.prove(model, keep)
        if service:
            examination.ask(
                "service",
                install_service_task,
                lambda device: (examination.agent(device), service, _SERVICE_S),
                _SERVICE_S,
            )
        if tunnel:
            examination.ask(
                "tunnel", install_tunnel_task, lambda _: (tunnel, _SERVICE_S), _SERVICE_S
            )
        return examination.found


def remove_farm_from_devices(
    devices: Sequence[Device], *, host: Profile, store: Store, slots: int, tell: Tell, show: Show
) -> dict[str, list[Finding]]:
    """Remove everything that farm has stored on the devices; return the findings of each.

    Raises UsageError for a device on another machine to which farm sends no agent: it cannot have
    installed anything there.
    """
    for device in devices:
        if not device.gets_agent:
            raise UsageError(
                f"farm has put nothing on {device.name} that it could remove",
                f"its url is {device.url}: somebody else started the agent there",
                "name a device with an ssh://, adb: or exec: url",
            )
    with open_pool(store) as pool:
        examination = Examination(pool, devices, host, store, slots, show, tell)
        examination.ask(
            "removal", remove_farm_from_device_task, lambda _: (store.root, _REMOVE_S), _REMOVE_S
        )
        return examination.found


def _only_by_ssh(devices: Sequence[Device], what: str) -> None:
    """Raise UsageError for a device that is not reached by SSH."""
    for device in devices:
        if device.scheme != "ssh":
            raise UsageError(
                f"{device.name} is not reached by SSH, and only there {what}",
                f"its url is {device.url}",
                "name a device with an ssh:// url",
            )


def _by_hand(device: Device) -> str:
    """Return the advice for starting the agent by hand."""
    from farm.transports.agent.version import agent_start_command

    return (
        f"on the board: {agent_start_command(device)}; where farm is to do it, give the device an "
        "ssh:// url"
    )


def install_service_task(
    context: TaskContext, device: Device, agent: Path, service: AgentServiceSettings, seconds: float
) -> None:
    """Install the agent as a service of the board; called in a worker process."""
    from farm.transports.ssh import systemd_service
    from farm.transports.ssh.board import reach_board

    with reach_board(device, Deadline(seconds), context.ask) as board:
        words = systemd_service.install_service(board, agent, service)
    context.note(Finding("service", words, advice=_unreachable(service)))


def install_tunnel_task(
    context: TaskContext, device: Device, tunnel: LabTunnel, seconds: float
) -> None:
    """Install a board's tunnel to a lab; called in a worker process."""
    from farm.transports.ssh import systemd_tunnel
    from farm.transports.ssh.board import reach_board

    with reach_board(device, Deadline(seconds), context.ask) as board:
        words, key = systemd_tunnel.install_tunnel(board, tunnel)
    advice = f"let it in, as the lab's account there: {tunnel.user_command(key)}"
    context.note(Finding("tunnel", words, advice=advice))


def _unreachable(service: AgentServiceSettings) -> str:
    """Return the advice for a service that the tracker's clients cannot reach, or an empty text.

    A tracker refers clients to the board itself, and an agent that listens on the board's loopback
    only is not reachable there.
    """
    host = service.tracker.rpartition(":")[0]
    if (
        not host
        or host.startswith("127.")
        or host in ("localhost", "[::1]")
        or service.open_to_network
    ):
        return ""
    return (
        "it listens on the board's loopback only, where the tracker's clients cannot reach it: "
        "--host ADDRESS --open-to-network"
    )


def remove_farm_from_device_task(
    context: TaskContext, device: Device, cache: Path, seconds: float
) -> None:
    """Remove farm's files and service from a device; called in a worker process."""
    if device.on_this_machine:
        kept = cache / "devices" / device.name
        gone = [("store", str(kept))] if kept.exists() else []
        shutil.rmtree(kept, ignore_errors=True)
    else:
        from farm.transports import shell_transports
        from farm.transports.ssh import systemd_service

        with shell_transports.reach_board(device, Deadline(seconds), context.ask) as board:
            gone = systemd_service.remove_farm(board)
    for kind, words in gone or [("removal", "there is nothing of ours")]:
        context.note(Finding(kind, words))
