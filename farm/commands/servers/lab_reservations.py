"""farm lab reserve, reservations and cancel: boards for a time to come."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import click

from farm.commands import output
from farm.commands.output import echo
from farm.commands.servers.lab_lease_lifecycle import parse_labels
from farm.commands.servers.lab_options import (
    as_json,
    of_door,
    of_socket,
    open_client,
    print_document,
)


@click.command()
@click.argument("kind")
@click.option(
    "--from",
    "from_",
    required=True,
    metavar="TIME",
    help="HH:MM (today, or tomorrow if it is past), 2026-11-26T14:00, or +2h.",
)
@click.option(
    "--for",
    "for_",
    metavar="DURATION",
    default="1h",
    show_default=True,
    help="For how long, such as 2h.",
)
@click.option(
    "--count", type=click.IntRange(1), default=1, show_default=True, help="How many boards."
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="WORD",
    help="Only boards with this tag; of several tags, with all.",
)
@click.option(
    "--class",
    "rank",
    default="interactive",
    show_default=True,
    metavar="CLASS",
    help="interactive, ci or batch: whose longest lease and number of boards count.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="Said of the lease where it is listed.",
)
@of_socket
@of_door
@as_json
def reserve(
    kind: str,
    from_: str,
    for_: str,
    count: int,
    tags: tuple[str, ...],
    rank: str,
    labels: tuple[str, ...],
    socket: Path | None,
    json_: bool,
) -> None:
    """Reserve boards of a kind from a time on.

    It holds any boards of the kind, not particular ones. No lease is granted that would leave too
    few of them. At its time the reservation becomes a lease. Ask for it within ten minutes, by
    farm lab lease KIND --reservation NUMBER or by farm lab run; later, others get the boards.

    \b
    farm lab reserve pi5 --count 2 --from 14:00 --for 2h
    """
    from farm.lab.durations import parse_duration, parse_time

    relative = from_.strip().startswith("+")  # to the server's clock
    when = (
        {"in_s": parse_duration(from_.strip()[1:])}
        if relative
        else {"starts_at": parse_time(from_, time.time())}
    )
    wanted: dict[str, Any] = {
        "kind": kind,
        **when,
        "for_s": parse_duration(for_),
        "class": rank,
        "count": count,
        "tags": list(tags),
        "labels": parse_labels(labels),
        "nonce": secrets.token_hex(8),
    }
    with open_client(socket) as client:
        found = client.ask("reserve", **wanted)["reservation"]
    if json_:
        print_document("lab_reservation", {"reservation": found})
        return
    echo(f"reservation {found['reservation']}: {_in_words(found)}")
    echo(f"give it up: farm lab cancel {found['reservation']}")


@click.command()
@of_socket
@of_door
@as_json
def reservations(socket: Path | None, json_: bool) -> None:
    """List what is reserved: by whom, from when until when.

    If boards have failed, it says how many are missing now.
    """
    with open_client(socket) as client:
        found = client.ask("reservations")["reservations"]
    if json_:
        print_document("lab_reservations", {"reservations": found})
        return
    if not found:
        echo("nothing is reserved", err=True)
        return
    from farm.views.lab import lab_reservations_table

    console = output.console(stderr=False)
    console.print(lab_reservations_table(found, time.time(), console.width))


@click.command()
@click.argument("number", metavar="RESERVATION", type=click.IntRange(1))
@click.option(
    "--because",
    "why",
    default="",
    metavar="REASON",
    help="Why; an administrator needs a reason for another's reservation.",
)
@of_socket
@of_door
@as_json
def cancel(number: int, why: str, socket: Path | None, json_: bool) -> None:
    """Give up a reservation that has not begun. One that has is a lease: farm lab end.

    \b
    farm lab cancel 3
    """
    with open_client(socket) as client:
        found = client.ask("cancel", reservation=number, why=why)["reservation"]
    if json_:
        print_document("lab_reservation", {"reservation": found})
        return
    echo(f"reservation {number}: {found['state']}")


def _in_words(found: dict[str, Any]) -> str:
    """Return what is reserved, and when."""
    from farm.lab.durations import clock_time

    now = time.time()
    starts_at, until = (clock_time(found[name], now) for name in ("starts_at", "until"))
    return f"{found['count']} {found['kind']} from {starts_at} to {until}"
