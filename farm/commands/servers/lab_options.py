"""Options and output that the commands of `farm lab` share: the server, and JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farm.commands import output
from farm.commands.options import was_given

if TYPE_CHECKING:
    from farm.lab_client.control_client import LabClient
    from farm.lab_client.leasing import LabAccess

F = TypeVar("F", bound=Callable[..., Any])

of_socket = click.option(
    "--socket",
    type=click.Path(path_type=Path),
    envvar="FARM_LAB",
    metavar="FILE",
    help="The server's control socket.",
)
_DOOR = "farm.lab.door"  # in the context of a command: the url that --lab names


def _keep_door(context: click.Context, _: click.Parameter, url: str | None) -> None:
    context.meta[_DOOR] = url


def selected_door_url() -> str:
    """Return the url of the door that the command uses; empty for the server of this machine.

    What is on the command line goes before the environment. Raises UsageError for both.
    """
    from farm.errors import UsageError

    url: str = click.get_current_context().meta.get(_DOOR) or ""
    if url and was_given("socket"):
        if was_given("lab"):
            why = "one server is on this machine, the other behind a door"
            raise UsageError("--socket and --lab", why, "use one of them")
        return ""
    return url


of_door = click.option(
    "--lab",
    metavar="URL",
    envvar="FARM_LAB_DOOR",
    expose_value=False,
    callback=_keep_door,
    help="From outside: the lab's door, lab://farm@HOST.",
)
as_json = click.option("--json", "json_", is_flag=True, help="Print one JSON document on stdout.")


def add_lease_request_options(command: F) -> F:
    """Add the options of what is leased."""
    options = (
        click.option(
            "--for",
            "for_",
            metavar="DURATION",
            default="1h",
            show_default=True,
            help="For how long at most, such as 30m.",
        ),
        click.option(
            "--count", type=click.IntRange(1), default=1, show_default=True, help="How many boards."
        ),
        click.option(
            "--board",
            default="",
            metavar="NAME",
            help="This board only. [default: any of the kind]",
        ),
        click.option(
            "--class",
            "rank",
            default="interactive",
            show_default=True,
            metavar="CLASS",
            help="interactive, ci or batch.",
        ),
        click.option(
            "--any-health",
            is_flag=True,
            help="Also a board that was bad lately, and is lent to batch work only.",
        ),
        click.option(
            "--wait",
            metavar="DURATION",
            help="How long to wait in the queue. [default: as long as it takes]",
        ),
        click.option(
            "--label",
            "labels",
            multiple=True,
            metavar="NAME=VALUE",
            help="Said of the lease where it is listed.",
        ),
        click.option(
            "--reservation",
            type=click.IntRange(1),
            metavar="NUMBER",
            help="The boards of this reservation of yours, which has begun.",
        ),
    )
    for option in reversed(options):  # the last one that is added is the first of the help
        command = option(command)
    return command


def print_document(kind: str, body: dict[str, Any]) -> None:
    """Print one JSON document with its schema's name and version."""
    from farm import views

    output.echo_json(views.json_document(kind, body))


def lab_folder() -> Path:
    """Return the folder of this user's lab server."""
    from farm.store import user_data_dir

    return user_data_dir() / "lab"


def control_socket_path(socket: Path | None) -> Path:
    """Return the control socket that was named, or the usual one."""
    from farm.lab_client.control_client import SOCKET

    return socket or lab_folder() / SOCKET


@contextlib.contextmanager
def open_lab(socket: Path | None) -> Iterator[LabAccess]:
    """Yield the lab, by the socket of its server or by its door. Raises FarmError."""
    from farm.transports.lab.reach_lab import LocalLab, reach_lab_at_door

    if url := selected_door_url():
        with reach_lab_at_door(url) as lab:
            yield lab
    else:
        yield LocalLab(control_socket_path(socket))


@contextlib.contextmanager
def open_client(socket: Path | None) -> Iterator[LabClient]:
    """Yield a client of the lab's server. Raises LinkError if it is away."""
    with open_lab(socket) as lab, lab.client() as client:
        yield client
