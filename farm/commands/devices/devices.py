"""farm devices: list the configured devices and their state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from farm.commands.common import Session, max_parallel_builds, with_session
from farm.commands.options import add_device_selection_options

if TYPE_CHECKING:
    from farm.transports.device_availability import DeviceAvailability
    from farm.types import Device


@click.command()
@add_device_selection_options
@with_session
def devices(
    session: Session, devices: tuple[str, ...], tags: tuple[str, ...], everywhere: bool
) -> None:
    """List the devices of devices.toml with their state; with -v, also with their facts.

    A device is ready, emulated, offline (it does not answer) or unavailable (this machine lacks
    something, which the note names).
    """
    from farm import transports
    from farm.processes.workers import thread_map

    fleet = session.fleet()
    chosen = fleet.select_devices(devices, tags, everywhere or not (devices or tags))
    states = thread_map(transports.probe_state, chosen)
    facts: dict[str, Any] = {}
    if session.verbosity > 0:
        facts = _facts(
            session, [device for device, state in zip(chosen, states, strict=True) if state.usable]
        )
    if session.as_json:
        session.document(
            "devices",
            {
                "devices": [
                    _body(device, state, facts.get(device.name))
                    for device, state in zip(chosen, states, strict=True)
                ]
            },
        )
        return
    from farm import views

    console = session.out()
    rows = [
        views.DeviceRow(
            device.name,
            device.profile.name,
            device.url,
            device.tags,
            state.word,
            _note(state),
            _known(facts.get(device.name)),
        )
        for device, state in zip(chosen, states, strict=True)
    ]
    console.print(views.devices_table(rows, console.width))


def _note(state: DeviceAvailability) -> str:
    return ": ".join(filter(None, (state.why, state.fix)))


def _known(facts: Any) -> dict[str, str]:
    from farm.errors import FarmError

    return {"error": str(facts.what)} if isinstance(facts, FarmError) else dict(facts or {})


def _facts(session: Session, chosen: list[Device]) -> dict[str, Any]:
    from farm.commands.progress import Spinner
    from farm.pipeline import query_device_facts

    with Spinner(session, "asking the devices") as spinner:
        return query_device_facts(
            chosen, store=session.artifacts(), slots=max_parallel_builds(), show=spinner.show
        )


def _body(device: Device, state: DeviceAvailability, facts: Any) -> dict[str, Any]:
    return {
        "name": device.name,
        "profile": device.profile.name,
        "url": device.url,
        "tags": list(device.tags),
        "state": state.word,
        "usable": state.usable,
        "why": state.why,
        "fix": state.fix,
        "facts": _known(facts),
    }
