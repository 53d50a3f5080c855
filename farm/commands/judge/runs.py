"""farm runs: export and import stored runs as JSON lines."""

from __future__ import annotations

import json
from typing import IO

import click

from farm.commands.common import Session, with_session
from farm.commands.options import configured_name_completer, with_device_filter
from farm.commands.output import echo


@click.group()
def runs() -> None:
    """Export and import stored runs, as JSON lines.

    \b
    farm runs export --output runs.jsonl
    farm runs import runs.jsonl
    """


@runs.command(short_help="Write stored runs, with all their samples.")
@click.argument("model", required=False, shell_complete=configured_name_completer("models"))
@with_device_filter
@click.option(
    "-o",
    "--output",
    type=click.File("w", encoding="utf-8"),
    default="-",
    help="The file to write. [default: stdout]",
)
@with_session
def export(session: Session, model: str | None, device: str | None, output: IO[str]) -> None:
    """Write stored runs, with all their samples: one run per line, the oldest first."""
    from farm.store import run_to_json

    for run in reversed(session.record().runs(model=model, device=device)):
        output.write(json.dumps(run_to_json(run), allow_nan=False) + "\n")


@runs.command("import", short_help="Store the runs of a file that farm runs export wrote.")
@click.argument("source", metavar="FILE")
@with_session
def import_(session: Session, source: str) -> None:
    """Store the runs of a file that farm runs export wrote; - is stdin.

    If a line is wrong, none of the runs is stored. A run that is stored already is not added again.
    """
    from farm.errors import FarmError, UsageError
    from farm.store import parse_untrusted_run

    found, number = [], 0
    try:
        with click.open_file(source, encoding="utf-8") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    found.append(parse_untrusted_run(line))
    except OSError as exc:
        raise UsageError(
            f"{source} cannot be read",
            exc.strerror or str(exc),
            "give a file that farm runs export wrote",
        ) from exc
    except (ValueError, AttributeError, FarmError) as exc:
        why = exc.why or exc.what if isinstance(exc, FarmError) else str(exc)
        raise UsageError(
            f"{source}, line {number}: no run", why, "give a file that farm runs export wrote"
        ) from exc
    new = session.record().add(found)
    if session.as_json:
        session.document("import", {"runs": len(found), "new": new})
    else:
        echo(f"{len(found)} runs, {new} of them new")
