"""farm lab health: how fit a board is, and how its checks went."""

from __future__ import annotations

import time
from pathlib import Path

import click

from farm.commands import output
from farm.commands.output import echo
from farm.commands.servers.lab_options import (
    as_json,
    of_door,
    of_socket,
    open_client,
    print_document,
)


@click.command()
@click.argument("board")
@of_socket
@of_door
@as_json
def health(board: str, socket: Path | None, json_: bool) -> None:
    """Show how fit a board is, and why.

    Its state and the reason, its checks with their latencies, and the faults of its own.

    \b
    farm lab health pi5-07
    """
    from farm.views.lab import lab_checks_table

    with open_client(socket) as client:
        found = client.ask("health", board=board)["health"]
    if json_:
        print_document("lab_health", {"health": found})
        return
    why = f": {found['why']}" if found["why"] else ""
    echo(f"{found['board']} is {found['state']}{why}")
    if found["out"]:
        echo(f"out of service: {found['out']}")
    if found["reduced_stability"]:
        echo("reduced stability: it was taken out several times in the last 30 days")
    for fault in found["faults"]:
        moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(fault["at"]))
        echo(f"fault, {moment}: {fault['what']}")
    if found["checks"]:
        console = output.console(stderr=False)
        console.print(lab_checks_table(found["checks"], console.width))
    else:
        echo("it has not been checked: farm lab check " + board)
