"""farm baseline: name runs, to compare later ones with them."""

from __future__ import annotations

import click

from farm.api.resolve import comparable_runs
from farm.commands.common import Session, with_session
from farm.commands.options import configured_name_completer, with_device_filter
from farm.commands.output import echo
from farm.errors import UsageError


@click.group()
def baseline() -> None:
    """Name runs, to compare later ones with them: farm bench --baseline NAME.

    \b
    farm baseline save release-1
    farm baseline list
    """


@baseline.command()
@click.argument("name")
@click.argument(
    "models", nargs=-1, metavar="[MODEL]...", shell_complete=configured_name_completer("models")
)
@with_device_filter
@with_session
def save(session: Session, name: str, models: tuple[str, ...], device: str | None) -> None:
    """Name the newest good run of each model on each device."""
    record = session.record()
    found = [
        run
        for model in models or (None,)
        for run in comparable_runs(record.runs(model=model, device=device))
    ]
    newest = {(run.device, run.title): run for run in reversed(found)}
    if not newest:
        raise UsageError(
            "there is no run to name", "none that was timed, and right, is kept", "farm bench --all"
        )
    record.save_baseline(name, newest.values())
    if session.as_json:
        session.document("baseline", {"name": name, "runs": [run.id for run in newest.values()]})
        return
    for run in newest.values():
        echo(f"{run.title} on {run.device}: {run.id}, {run.verdict.value}")


@baseline.command("list")
@with_session
def list_(session: Session) -> None:
    """List the baselines."""
    found = session.record().baselines()
    if session.as_json:
        session.document("baselines", {"baselines": found})
        return
    for name, count in found.items():
        echo(f"{name}: {count} run{'s' if count != 1 else ''}")


@baseline.command()
@click.argument("name")
@with_session
def remove(session: Session, name: str) -> None:
    """Remove a baseline; its runs stay."""
    from farm.errors import did_you_mean

    record = session.record()
    if not record.remove_baseline(name):
        raise UsageError(
            f"there is no baseline {name!r}",
            did_you_mean(name, record.baselines()),
            "farm baseline list",
        )
    if session.as_json:
        session.document("baseline", {"name": name, "runs": []})
