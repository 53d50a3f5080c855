"""farm schema: print the JSON Schemas that programs may rely on."""

from __future__ import annotations

import click

from farm.commands.output import echo, echo_json
from farm.errors import UsageError, did_you_mean


@click.command()
@click.argument("name", required=False)
def schema(name: str | None) -> None:
    """Print the JSON Schema of a document of --json; without NAME, list the names.

    NAME is the middle of a document's "schema": bench for farm/bench/1. The name for a line
    of farm runs export is run.

    \b
    farm schema
    farm schema bench > bench.schema.json
    """
    from farm.views.schema import NAMES
    from farm.views.schema import schema as schema_of

    if name is None:
        for known in sorted(NAMES):
            echo(known)
        return
    if name not in NAMES:
        raise UsageError(f"there is no schema {name!r}", did_you_mean(name, NAMES), "farm schema")
    echo_json(schema_of(name))
