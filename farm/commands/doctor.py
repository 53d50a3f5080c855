"""farm doctor: what does not work, why, and the command that mends it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import farm
from farm.commands.common import Session, host_profile, on_devices, shared
from farm.words import plain

if TYPE_CHECKING:
    from farm.pipeline.doctor import Finding

_MODEL = "digits"


@click.command()
@on_devices
@shared
def doctor(session: Session, devices: tuple[str, ...], tags: tuple[str, ...], everywhere: bool) -> None:
    """Check this machine, and devices layer by layer: from the address to the answer of a small model.

    The first layer of a device that does not hold is named, with the reason and the command that mends it. Without a device, only this
    machine is checked.

    \b
    farm doctor
    farm doctor --device pi3
    """
    from farm.commands.progress import Spinner
    from farm.config import load
    from farm.pipeline.doctor import examine, failed
    from farm.pipeline.host_check import examine_host
    from farm.store import RunStore, Store, cache_root, data_root

    fleet = session.fleet()
    chosen = fleet.select_devices(devices, tags, everywhere) if devices or tags or everywhere else ()
    model = load(Path(farm.__file__).parent / "devices.toml").model(_MODEL)
    store = Store(cache_root())
    found: dict[str, list[Finding]] = {}

    def tell(name: str) -> None:
        if not session.as_json:
            _print(name, found[name])

    found["this machine"] = examine_host(store)
    tell("this machine")
    for device in chosen:
        with Spinner(session, device.name) as spinner:
            keep = RunStore(data_root() / "runs.sqlite")
            host = host_profile(fleet)
            found[device.name] = examine(device, model=model, host=host, store=store, keep=keep, show=spinner.show)
        tell(device.name)
    errors = [error for findings in found.values() if (error := failed(findings))]
    if session.as_json:
        session.document("doctor", {"examined": [{"name": name, "layers": list(map(_body, its))} for name, its in found.items()]})
    raise SystemExit(0 if not errors else errors[0].exit_code if len(errors) == 1 else 1)


def _print(name: str, findings: list[Finding]) -> None:
    colour = False if os.environ.get("NO_COLOR") else None
    click.echo(click.style(plain(name), bold=True), color=colour)
    for finding in findings:
        what, why, fix = finding.failure.parts() if finding.failure else (finding.detail, "", finding.advice)
        sign, shade = ("✗", "red") if finding.failure else ("!", "yellow") if finding.advice else ("✓", "green")
        click.echo(f"  {click.style(sign, fg=shade)} {finding.layer}: {plain(what)}", color=colour)
        for label, text in (("why", why), ("fix", fix)):
            if text:
                click.echo(f"      {label}: {plain(text)}", color=colour)


def _body(finding: Finding) -> dict[str, Any]:
    failure = finding.failure.as_failure() if finding.failure else None
    return {
        "layer": finding.layer,
        "holds": failure is None,
        "detail": finding.detail,
        "advice": finding.advice,
        "error": None if failure is None else {"kind": failure.kind, "what": failure.what, "why": failure.why, "fix": failure.fix},
    }
