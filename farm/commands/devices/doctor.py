"""farm doctor: find what does not work, why, and the command that repairs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import farm
from farm.commands.common import Session, host_profile, max_parallel_builds, with_session
from farm.commands.devices import doctor_output
from farm.commands.options import add_device_selection_options
from farm.commands.output import Styled, echo

if TYPE_CHECKING:
    from farm.pipeline.doctor.board import Finding

_HERE = "this machine"
_MODEL = "digits"


@click.command()
@add_device_selection_options
@with_session
def doctor(
    session: Session, devices: tuple[str, ...], tags: tuple[str, ...], everywhere: bool
) -> None:
    """Check this machine, and devices layer by layer: from the name to the answer of a small model.

    The first layer of a device that fails is reported, with the reason and the command that repairs
    it. Without a device, only this machine is checked.

    \b
    farm doctor
    farm doctor --device pi3
    """
    from farm.commands.progress import Spinner
    from farm.config import load_fleet
    from farm.pipeline.doctor.board import examine_devices
    from farm.pipeline.doctor.host import examine_host

    fleet = session.fleet()
    chosen = (
        fleet.select_devices(devices, tags, everywhere) if devices or tags or everywhere else ()
    )
    model = load_fleet(Path(farm.__file__).parent / "devices.toml").model(_MODEL)
    store = session.artifacts()
    found: dict[str, list[Finding]] = {_HERE: examine_host(store)}
    if not session.as_json:
        _print(_HERE, found[_HERE])
    if chosen:
        with Spinner(session, "asking the devices") as spinner:
            keep, host = session.record(), host_profile(fleet)
            found |= examine_devices(
                chosen,
                model=model,
                host=host,
                store=store,
                keep=keep,
                slots=max_parallel_builds(),
                show=spinner.show,
            )
    if session.as_json:
        session.document("doctor", {"examined": doctor_output.findings_to_json(found)})
    else:
        for device in chosen:
            _print(device.name, found[device.name])
    raise SystemExit(doctor_output.findings_exit_code(found))


def _print(name: str, found: list[Finding]) -> None:
    echo(Styled(name, bold=True))
    for finding in found:
        for line in doctor_output.finding_lines(finding):
            echo(*line)
