"""farm records: the fastest measured configuration of each kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.commands.common import Session, with_session
from farm.commands.output import echo

if TYPE_CHECKING:
    from farm.types import TuningRecord

_core = click.option(
    "--core",
    metavar="TEXT",
    help="Only records of cores whose name contains this, such as cortex-a72.",
)
_operator = click.option(
    "--operator",
    metavar="NAME",
    help="Only records of this operator, such as convolution or dense.",
)


@click.group(invoke_without_command=True)
@_core
@_operator
@with_session
def records(session: Session, core: str | None, operator: str | None) -> None:
    """List the records of farm tune: for each kernel and core, the fastest way to compute it.

    Every build uses the records of its core. Records can be copied to other machines:

    \b
    farm records --core cortex-a72 --operator convolution
    farm records export pi4.jsonl
    farm records import pi4.jsonl
    """
    if click.get_current_context().invoked_subcommand:
        return
    from farm import views
    from farm.store import TuningRecordStore, record_to_json

    found = TuningRecordStore.of_user().records(core, operator)
    if session.as_json:
        session.document("records", {"records": [record_to_json(record) for record in found]})
        return
    if not found:
        echo("no records: farm tune --device NAME MODEL", err=True)
        return
    console = session.out()
    console.print(views.records_table(found, console.width))


@records.command(name="export")
@click.argument("file", type=click.Path(path_type=Path))
@_core
@_operator
@with_session
def export(session: Session, file: Path, core: str | None, operator: str | None) -> None:
    """Write records to FILE, one JSON object per line."""
    from farm.store import TuningRecordStore, write_records_file

    found = TuningRecordStore.of_user().records(core, operator)
    write_records_file(file, found)
    if session.as_json:
        session.document("exported", {"records": len(found), "file": str(file)})
    else:
        echo(f"{len(found)} records written to {file}")


@records.command(name="import")
@click.argument("file", type=click.Path(path_type=Path))
@with_session
def import_(session: Session, file: Path) -> None:
    """Add the records of FILE.

    If there are two records for one kernel and core, the faster one is kept. If FILE has a mistake,
    nothing changes.
    """
    from farm.store import TuningRecordStore, read_records_file

    found = read_records_file(file)
    _check_traces(file, found)
    merged = TuningRecordStore.of_user().merge(found)
    if session.as_json:
        session.document(
            "imported", {"new": merged.new, "faster": merged.faster, "left": merged.left}
        )
    else:
        echo(
            f"{merged.new} new, {merged.faster} faster than those that were there, "
            f"{merged.left} not"
        )


@records.command(name="remove")
@_core
@_operator
@with_session
def remove(session: Session, core: str | None, operator: str | None) -> None:
    """Remove records; later builds no longer use them."""
    from farm.errors import UsageError
    from farm.store import TuningRecordStore

    if core is None and operator is None:
        raise UsageError(
            "which records to remove is not said",
            "--core, --operator or both",
            "farm records remove --core NAME",
        )
    count = TuningRecordStore.of_user().remove(core, operator)
    if session.as_json:
        session.document("removed", {"records": count})
    else:
        echo(f"{count} records removed")


def _check_traces(file: Path, found: Sequence[TuningRecord]) -> None:
    """Raise UsageError for a schedule that could bring code of its own into a kernel."""
    from farm.compiler.cpu.traces.trace_grammar import check_trace
    from farm.errors import UsageError

    for record in found:
        if "trace" not in record.choice:
            continue
        try:
            check_trace(record.choice["trace"])
        except ValueError as exc:
            raise UsageError(
                f"{file} has a schedule that farm does not write",
                f"the record of {record.workload[:200]} holds {exc}",
                "nothing was imported; leave this record out, and ask where it comes from",
            ) from exc
