"""farm lab: serve a lab's boards, and lease them."""

from __future__ import annotations

import contextlib
import copy
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.commands import output
from farm.commands.output import echo
from farm.commands.servers.lab_health import health
from farm.commands.servers.lab_lending import lease, proxy, run
from farm.commands.servers.lab_options import (
    as_json,
    lab_folder,
    of_door,
    of_socket,
    open_client,
    print_document,
)
from farm.commands.servers.lab_reservations import cancel, reservations, reserve
from farm.commands.servers.lab_users import door, user
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.lab.run import CompanionServer

of_reason = click.option(
    "--because", "why", required=True, metavar="REASON", help="Why, for all to read."
)


@click.group()
def lab() -> None:
    """Lease a lab's boards: each to one person or job at a time, in turn, and with an end.

    \b
    farm lab boards                         what is there: kind, use, by whom, until when
    farm lab lease pi5 --for 30m            lease a board; wait for one if all are lent
    farm lab run pi5 -- python tune.py      lease one for as long as a program runs
    farm lab proxy                          a tracker on this machine, of the lab's boards
    farm lab leases                         who has what, and who waits for what
    farm lab end 17                         give boards back
    farm lab reserve pi5 --from 14:00       reserve a board for a time to come
    farm lab check pi5-07                   see whether a board is fit

    The server is farm lab serve.
    """


@lab.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The lab.toml with classes, shares and boards.",
)
@click.option(
    "--host",
    help="The address for TVM's clients and servers. [default: that of lab.toml, 127.0.0.1]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="The port; 0 lets the system choose. [default: that of lab.toml, 9190]",
)
@click.option(
    "--metrics",
    "metrics_port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve metrics for Prometheus at http://HOST:PORT/metrics.",
)
@click.option(
    "--page",
    "page_port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help=(
        "Serve the page, REST and metrics at http://127.0.0.1:PORT. [default: that of lab.toml; "
        "no page]"
    ),
)
@click.option(
    "--unknown-key-s",
    type=click.FloatRange(0, 1e6),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="How long a TVM client's request for a kind that no board has had waits for one.",
)
@click.option(
    "--open-to-network",
    is_flag=True,
    help="Listen beyond loopback: whoever reaches the port can use the boards.",
)
def serve(
    config: Path | None,
    host: str | None,
    port: int | None,
    metrics_port: int | None,
    page_port: int | None,
    unknown_key_s: float,
    open_to_network: bool,
) -> None:
    """Serve the boards of a lab, until Ctrl-C.

    It speaks the protocol of TVM's tracker, and keeps leases in a database: after a crash it goes
    on where it was.

    \b
    farm lab serve --config lab.toml
    """
    from farm.commands.servers.agent_and_tracker import check_loopback
    from farm.lab.lab_toml import read_settings
    from farm.lab.run import LabServerOptions
    from farm.lab.run import serve as serve_lab
    from farm.processes import signals

    settings = read_settings(config)
    address, usual_port = settings.tracker
    address = host or address
    check_loopback(address, open_to_network)
    place = LabServerOptions(
        lab_folder(), address, usual_port if port is None else port, unknown_key_s, metrics_port
    )
    beside = _page(settings.page if page_port is None else page_port, place.folder)
    with contextlib.suppress(signals.Stopped):
        serve_lab(
            settings,
            place,
            lambda at, bound, path: echo(f"lab on {at}:{bound}, control socket {path}", err=True),
            lambda line: echo(line, err=True),
            beside,
        )


@lab.command()
@of_socket
@of_door
@as_json
def boards(socket: Path | None, json_: bool) -> None:
    """List the boards: kind, use, by whom, and for how long."""
    with open_client(socket) as client:
        found = client.ask("boards")["boards"]
    if json_:
        print_document("lab_boards", {"boards": found})
        return
    if not found:
        echo("no board has registered yet: farm agent --tracker HOST:PORT --key KIND", err=True)
        return
    from farm.views.lab import lab_boards_table

    console = output.console(stderr=False)
    console.print(lab_boards_table(found, time.time(), console.width))


@lab.command()
@click.option("--all", "ended", is_flag=True, help="Also those that have ended lately.")
@of_socket
@of_door
@as_json
def leases(socket: Path | None, json_: bool, ended: bool) -> None:
    """List the leases in force, and the queue.

    A lease in the queue has a place, a reason, and a time by which it surely has its boards.
    """
    with open_client(socket) as client:
        found = client.ask("leases", ended=ended)["leases"]
    _show_leases(found, json_, "nothing is leased")


@lab.command()
@of_socket
@of_door
@as_json
def queue(socket: Path | None, json_: bool) -> None:
    """List who waits for what, where in the queue, and why."""
    with open_client(socket) as client:
        found = client.ask("leases")["leases"]
    _show_leases([one for one in found if one["state"] == "queued"], json_, "nobody waits")


@lab.command()
@of_socket
@of_door
@as_json
def who(socket: Path | None, json_: bool) -> None:
    """List who has which boards, and for how long."""
    with open_client(socket) as client:
        found = client.ask("leases")["leases"]
    _show_leases([one for one in found if one["state"] == "active"], json_, "nobody has a board")


def _show_leases(found: list[dict[str, Any]], json_: bool, none: str) -> None:
    """Print leases as a table or as JSON; `none` says that there are none."""
    if json_:
        print_document("lab_leases", {"leases": found})
        return
    if not found:
        echo(none, err=True)
        return
    from farm.views.lab import lab_leases_table

    console = output.console(stderr=False)
    console.print(lab_leases_table(found, time.time(), console.width))


@lab.command()
@click.argument("number", metavar="LEASE", type=click.IntRange(1))
@click.option(
    "--because",
    "why",
    default="",
    metavar="REASON",
    help="Why; an administrator's reason for ending another's lease.",
)
@of_socket
@of_door
@as_json
def end(number: int, why: str, socket: Path | None, json_: bool) -> None:
    """End a lease: give its boards back, or leave the queue.

    \b
    farm lab end 17
    """
    with open_client(socket) as client:
        found = client.ask("end", lease=number, why=why)["lease"]
    if json_:
        print_document("lab_lease", {"lease": found, "tracker": client.hello["tracker"]})
        return
    echo(f"lease {number}: {found['state']}")


@lab.command()
@click.argument("number", metavar="LEASE", type=click.IntRange(1))
@click.argument("by", metavar="DURATION")
@of_socket
@of_door
@as_json
def extend(number: int, by: str, socket: Path | None, json_: bool) -> None:
    """Extend a lease by a duration, as far as its class allows.

    And as far as others have not reserved the boards.

    \b
    farm lab extend 17 1h
    """
    from farm.lab.durations import format_duration, parse_duration

    with open_client(socket) as client:
        found = client.ask("extend", lease=number, by_s=parse_duration(by.removeprefix("+")))[
            "lease"
        ]
    if json_:
        print_document("lab_lease", {"lease": found, "tracker": client.hello["tracker"]})
        return
    echo(f"lease {number}: ends in {format_duration(found['ends_at'] - time.time())}")


@lab.command()
@click.option(
    "--since",
    type=click.IntRange(0),
    default=0,
    metavar="NUMBER",
    help="Only those after this one.",
)
@of_socket
@of_door
@as_json
def events(since: int, socket: Path | None, json_: bool) -> None:
    """List what has happened.

    Boards came and went; leases were queued, granted, extended, and ended in one way or another.
    """
    found: list[dict[str, Any]] = []
    with open_client(socket) as client:
        while page := client.ask("events", since=found[-1]["number"] if found else since)["events"]:
            found += page
    if json_:
        print_document("lab_events", {"events": found})
        return
    for event in found:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
        said = [f"lease {event['lease']}"] if event["lease"] else []
        said += [event[name] for name in ("who", "board", "detail") if event[name]]
        echo(f"{event['number']}  {moment}  {event['what']}  {', '.join(said)}")


@lab.command()
@click.argument("board")
@of_socket
@as_json
def check(board: str, socket: Path | None, json_: bool) -> None:
    """Check a board with the golden models once nobody has it.

    \b
    farm lab check pi5-07
    """
    _care("check", board, "", socket, json_)


@lab.command()
@click.argument("board")
@of_socket
@as_json
def power(board: str, socket: Path | None, json_: bool) -> None:
    """Cycle the power of a board, by what lab.toml says of it. It is checked when it is back.

    \b
    farm lab power pi5-07
    """
    _care("power", board, "", socket, json_)


@lab.command()
@click.argument("board")
@of_reason
@of_socket
@as_json
def drain(board: str, why: str, socket: Path | None, json_: bool) -> None:
    """Take a board out of service once its lease has ended.

    The lease goes on to its end, and nobody else gets the board.

    \b
    farm lab drain pi5-07 --because "it gets a new fan"
    """
    _care("drain", board, why, socket, json_)


@lab.command("return")
@click.argument("board")
@of_reason
@of_socket
@as_json
def return_board(board: str, why: str, socket: Path | None, json_: bool) -> None:
    """Return a board to service; it is checked before it is lent.

    \b
    farm lab return pi5-07 --because "new fan"
    """
    _care("return", board, why, socket, json_)


@lab.command("page")
@of_socket
def page_link(socket: Path | None) -> None:
    """Print a link to the lab's page, with which it knows you.

    The link is good once, for two minutes. The page listens on the server's loopback: from
    elsewhere, use ssh -L.

    \b
    farm lab page
    """
    with open_client(socket) as client:
        echo(client.ask("page")["url"])


def _care(do: str, board: str, why: str, socket: Path | None, json_: bool) -> None:
    """Ask the server to do something with a board, and show the board."""
    with open_client(socket) as asked:
        found = asked.ask(do, board=board, why=why)["boards"]
    shown = next(one for one in found if one["name"] == board)
    if json_:
        print_document("lab_board", {"board": shown})
        return
    state = ", ".join(part for part in (shown["use"], shown["health"], shown["barred"]) if part)
    echo(f"{board}: {state}")


def _page(port: int | None, folder: Path) -> CompanionServer | None:
    """Return what serves the page, if there is to be one.

    Raises UsageError if its library is missing.
    """
    if port is None:
        return None
    try:
        from farm.lab_page.server import create_page_server
    except ModuleNotFoundError as exc:
        why = f"Python has no {exc.name}"
        raise UsageError(
            "the lab's page needs a library",
            why,
            "pip install 'tvm-farm[lab]', or leave the page out",
        ) from exc
    return create_page_server(port, folder, lambda address: echo(f"page on {address}", err=True))


for command in (lease, run, proxy, reserve, reservations, cancel, user, door, health):
    lab.add_command(command)
_release = copy.copy(end)  # of its own name: the reference of the commands has both
_release.name, _release.short_help = "release", "The same as end."
lab.add_command(_release)
