"""farm records: the best choices that were measured."""

from __future__ import annotations

from pathlib import Path

import click

from farm.commands.common import Session, shared

_core = click.option("--core", metavar="TEXT", help="Only of cores with this in their name, such as cortex-a72.")
_operator = click.option("--operator", metavar="NAME", help="Only of this operator, such as convolution or dense.")


@click.group(invoke_without_command=True)
@_core
@_operator
@shared
def records(session: Session, core: str | None, operator: str | None) -> None:
    """List the records of farm tune: for each kernel and core, the fastest way to compute it.

    Every build uses the records of its core. They can be carried to others:

    \b
    farm records --core cortex-a72 --operator convolution
    farm records export pi4.jsonl
    farm records import pi4.jsonl
    """
    if click.get_current_context().invoked_subcommand:
        return
    from farm import views
    from farm.store import RecordStore, record_to_json

    found = RecordStore.of_user().records(core, operator)
    if session.as_json:
        session.document("records", {"records": [record_to_json(record) for record in found]})
        return
    if not found:
        click.echo("no records: farm tune --device NAME MODEL", err=True)
        return
    console = session.out()
    console.print(views.records_table(found, console.width))


@records.command(name="export")
@click.argument("file", type=click.Path(path_type=Path))
@_core
@_operator
@shared
def export(session: Session, file: Path, core: str | None, operator: str | None) -> None:
    """Write records into FILE, a line of JSON each."""
    from farm.store import RecordStore, write_records

    found = RecordStore.of_user().records(core, operator)
    write_records(file, found)
    if session.as_json:
        session.document("exported", {"records": len(found), "file": str(file)})
    else:
        click.echo(f"{len(found)} records written to {file}")


@records.command(name="import")
@click.argument("file", type=click.Path(path_type=Path))
@shared
def import_(session: Session, file: Path) -> None:
    """Take in the records of FILE. Of two for one kernel and core the faster stays; a FILE with a mistake changes nothing."""
    from farm.store import RecordStore, read_records

    merged = RecordStore.of_user().merge(read_records(file))
    if session.as_json:
        session.document("imported", {"new": merged.new, "faster": merged.faster, "left": merged.left})
    else:
        click.echo(f"{merged.new} new, {merged.faster} faster than those that were there, {merged.left} not")


@records.command(name="remove")
@_core
@_operator
@shared
def remove(session: Session, core: str | None, operator: str | None) -> None:
    """Remove records: builds are then as they were without them."""
    from farm.errors import UsageError
    from farm.store import RecordStore

    if core is None and operator is None:
        raise UsageError("which records to remove is not said", "--core, --operator or both", "farm records remove --core NAME")
    count = RecordStore.of_user().remove(core, operator)
    if session.as_json:
        session.document("removed", {"records": count})
    else:
        click.echo(f"{count} records removed")
