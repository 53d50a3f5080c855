"""farm schema: what programs may rely on in the JSON."""

from __future__ import annotations

import json

import click

from farm.errors import UsageError, did_you_mean


@click.command()
@click.argument("name", required=False)
def schema(name: str | None) -> None:
    """Print the JSON Schema of what --json prints; without NAME, the names there are.

    NAME is the middle of a document's "schema": bench of farm/bench/1. A run of farm runs export, a line, is run.

    \b
    farm schema
    farm schema bench > bench.schema.json
    """
    from farm.views.schema import NAMES
    from farm.views.schema import schema as schema_of

    if name is None:
        click.echo("\n".join(sorted(NAMES)))
        return
    if name not in NAMES:
        raise UsageError(f"there is no schema {name!r}", did_you_mean(name, NAMES), "farm schema")
    click.echo(json.dumps(schema_of(name), indent=1))
