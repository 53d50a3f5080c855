"""farm deployments, rollback and undeploy: list, switch and remove releases on devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from farm.commands.common import Session, max_parallel_builds, with_session
from farm.commands.options import add_device_selection_options
from farm.commands.output import echo, show_error
from farm.errors import FarmError

if TYPE_CHECKING:
    from farm.types import Device, Release

_SESSION_S = 60.0


@click.command()
@add_device_selection_options
@with_session
def deployments(
    session: Session, devices: tuple[str, ...], tags: tuple[str, ...], everywhere: bool
) -> None:
    """List the models deployed on devices, with their releases, digests and dates.

    The default is all devices. The release marked with an arrow is the current one: farm run uses
    it, and so does farm-agent run on the board itself.

    \b
    farm deployments
    farm deployments --device pi3 --json
    """
    from farm.pipeline.worker_tasks import list_deployments_task

    chosen = session.fleet().select_devices(devices, tags, everywhere or not (devices or tags))
    found = _ask(session, chosen, "asking the devices", list_deployments_task)
    if session.as_json:
        session.document(
            "deployments",
            {
                "devices": [
                    {"device": name, **_listed_body(answer)} for name, answer in found.items()
                ]
            },
        )
    else:
        _show(session, found)
    _end(found)


@click.command()
@click.argument("name")
@add_device_selection_options
@click.option(
    "--to",
    "number",
    type=click.IntRange(1),
    metavar="RELEASE",
    help="The release. [default: the one before the current]",
)
@with_session
def rollback(
    session: Session,
    name: str,
    devices: tuple[str, ...],
    tags: tuple[str, ...],
    everywhere: bool,
    number: int | None,
) -> None:
    """Make an earlier release of a deployed model the current one.

    Nothing is built, and nothing is sent.

    \b
    farm rollback --device pi3 digits
    farm rollback --tag lab digits --to 3
    """
    from farm.pipeline.worker_tasks import roll_back_task

    chosen = session.fleet().select_devices(devices, tags, everywhere)
    found = _ask(session, chosen, f"rolling {name} back", roll_back_task, name, number or 0)
    _report(
        session,
        found,
        lambda device, release: (
            f"{name} on {device}: release {release.number} of {_date(release)} is current"
        ),
    )


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@add_device_selection_options
@with_session
def undeploy(
    session: Session,
    names: tuple[str, ...],
    devices: tuple[str, ...],
    tags: tuple[str, ...],
    everywhere: bool,
) -> None:
    """Remove deployed models from devices, with all their releases.

    Their files are deleted when the space is needed for others; farm provision --remove removes
    everything at once.

    \b
    farm undeploy --device pi3 digits
    """
    from farm.pipeline.worker_tasks import undeploy_task

    chosen = session.fleet().select_devices(devices, tags, everywhere)
    found = _ask(session, chosen, "removing", undeploy_task, names)
    _report(session, found, lambda device, _: f"{', '.join(names)}: no longer on {device}")


def _ask(
    session: Session,
    chosen: tuple[Device, ...],
    title: str,
    question: Callable[..., Any],
    *arguments: Any,
) -> dict[str, Any]:
    """Return the devices' answers or errors, in the order of `chosen`."""
    from farm.commands.progress import Spinner
    from farm.pipeline import run_task_on_devices

    with Spinner(session, title) as spinner:
        slots = max(len(chosen), max_parallel_builds())
        found = run_task_on_devices(
            chosen,
            question,
            *arguments,
            store=session.artifacts(),
            slots=slots,
            timeout_s=_SESSION_S,
            show=spinner.show,
        )
    return {device.name: found[device.name] for device in chosen}


def _report(session: Session, found: Mapping[str, Any], line: Callable[[str, Any], str]) -> None:
    if session.as_json:
        session.document(
            "deployed",
            {"devices": [{"device": name, **_body(answer)} for name, answer in found.items()]},
        )
    for name, answer in found.items():
        if isinstance(answer, FarmError):
            show_error(answer)
        elif not session.as_json:
            echo(line(name, answer))
    _end(found)


def _end(found: Mapping[str, Any]) -> None:
    """Exit with 0 if every device succeeded, the code of a single device's error, or 1."""
    errors = [answer for answer in found.values() if isinstance(answer, FarmError)]
    raise SystemExit(0 if not errors else errors[0].exit_code if len(found) == 1 else 1)


def _show(session: Session, found: Mapping[str, Any]) -> None:
    from farm import views

    rows = [
        (name, release)
        for name, answer in found.items()
        if not isinstance(answer, FarmError)
        for release in answer
    ]
    if rows:
        console = session.out()
        console.print(views.deployments_table(rows, console.width))
    for name, answer in found.items():
        if isinstance(answer, FarmError):
            show_error(answer)
        elif not answer:
            echo(f"nothing is deployed on {name}: farm deploy --device {name} MODEL", err=True)


def _date(release: Release) -> str:
    return f"{release.installed_at[:16].replace('T', ' ')} UTC"


def _listed_body(answer: Any) -> dict[str, Any]:
    if isinstance(answer, FarmError):
        return _body(answer)
    return {"error": None, "releases": [_release_body(release) for release in answer]}


def _body(answer: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from farm.types import Release

    if isinstance(answer, FarmError):
        return {"error": asdict(answer.as_failure())}
    return {
        "error": None,
        **({"release": _release_body(answer)} if isinstance(answer, Release) else {}),
    }


def _release_body(release: Release) -> dict[str, Any]:
    return {
        "name": release.name,
        "release": release.number,
        "current": release.current,
        "artifact": release.artifact,
        "profile": release.profile,
        "files": dict(release.files),
        "installed_at": release.installed_at,
        "versions": dict(release.versions),
    }
