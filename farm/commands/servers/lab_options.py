"""Options and output that the commands of `farm lab` share: the server, and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.commands import output

if TYPE_CHECKING:
    from farm.lab_client.client import LabClient

of_socket = click.option(
    "--socket",
    type=click.Path(path_type=Path),
    envvar="FARM_LAB",
    metavar="FILE",
    help="The server's control socket.",
)
as_json = click.option("--json", "json_", is_flag=True, help="Print one JSON document on stdout.")


def document(kind: str, body: dict[str, Any]) -> None:
    """Print one JSON document with its schema's name and version."""
    from farm import views

    output.echo_json(views.document(kind, body))


def lab_folder() -> Path:
    """Return the folder of this user's lab server."""
    from farm.store import data_root

    return data_root() / "lab"


def path_of(socket: Path | None) -> Path:
    """Return the control socket that was named, or the usual one."""
    from farm.lab_client.client import SOCKET

    return socket or lab_folder() / SOCKET


def client_of(socket: Path | None) -> LabClient:
    """Return a client of the lab's server. Raises LinkError if it is away."""
    from farm.lab_client.client import LabClient

    return LabClient(path_of(socket))
