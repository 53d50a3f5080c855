"""farm export and farm import: runs as JSON lines."""

from __future__ import annotations

import json
from typing import IO

import click

from farm.commands.common import Session, complete, shared


@click.command()
@click.argument("model", required=False, shell_complete=complete("models"))
@click.option("-d", "--device", metavar="NAME", help="Only of this device.", shell_complete=complete("devices"))
@click.option("-o", "--output", type=click.File("w", encoding="utf-8"), default="-", help="A file.  [default: stdout]")
@shared
def export(_: Session, model: str | None, device: str | None, output: IO[str]) -> None:
    """Write kept runs, with all their samples, as JSON lines: a run a line, oldest first.

    \b
    farm export --output runs.jsonl
    """
    from farm.store import RunStore, data_root, run_to_json

    for run in reversed(RunStore(data_root() / "runs.sqlite").runs(model=model, device=device)):
        output.write(json.dumps(run_to_json(run), allow_nan=False) + "\n")


@click.command("import")
@click.argument("source", metavar="FILE")
@shared
def import_(session: Session, source: str) -> None:
    """Keep the runs of a file that farm export wrote, - for stdin: all of them or, where a line is wrong, none.

    A run that is kept already is not kept twice.

    \b
    farm import runs.jsonl
    """
    from farm.errors import FarmError, UsageError
    from farm.store import RunStore, data_root, run_from_json

    runs, number = [], 0
    try:
        with click.open_file(source, encoding="utf-8") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    runs.append(run_from_json(json.loads(line)))
    except OSError as exc:
        raise UsageError(f"{source} cannot be read", exc.strerror or str(exc), "give a file that farm export wrote") from exc
    except (ValueError, AttributeError, FarmError) as exc:
        why = exc.why or exc.what if isinstance(exc, FarmError) else str(exc)
        raise UsageError(f"{source}, line {number}: no run", why, "give a file that farm export wrote") from exc
    new = RunStore(data_root() / "runs.sqlite").add(runs)
    if session.as_json:
        session.document("import", {"runs": len(runs), "new": new})
    else:
        click.echo(f"{len(runs)} runs, {new} of them new")
