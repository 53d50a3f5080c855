"""farm lab user, farm lab door: who may come into a lab by SSH, and the command of their keys."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.commands import output
from farm.commands.output import echo
from farm.commands.servers.lab_options import (
    as_json,
    control_socket_path,
    of_socket,
    print_document,
)
from farm.errors import BuildError, DeviceError, UsageError

if TYPE_CHECKING:
    from farm.lab.door.authorized_keys import AuthorizedKey, AuthorizedKeysFile

_MOST_KEY_BYTES = 1 << 16
_START_S = 60.0  # for Python to start and import farm
_FIRST_PORT, _LAST_PORT = 20001, 29999  # of the tunnels of boards
_TRACKER = ("127.0.0.1", 9190)
_of_keys = click.option(
    "--keys",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file of keys that sshd reads. [default: ~/.ssh/farm_keys]",
)


@click.group()
def user() -> None:
    """Let people and boards come in by SSH.

    \b
    farm lab user add alice --key alice.pub     write her key's line
    farm lab user list                          who may come in
    farm lab user remove alice                  remove her keys, and end her leases

    Run it as the account of the lab's server. sshd has to read the file: in sshd_config, under
    Match User, AuthorizedKeysFile .ssh/farm_keys
    """


@user.command()
@click.argument("name")
@click.option(
    "--key",
    "key_file",
    required=True,
    metavar="FILE",
    help="The public key, such as id_ed25519.pub; - reads it from standard input.",
)
@click.option(
    "--board",
    is_flag=True,
    help="It is the key of a board behind NAT, which opens a tunnel and may do nothing else.",
)
@click.option(
    "--account",
    is_flag=True,
    help="The user is who has the account of this name on this machine: both are one owner.",
)
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    help="The port of a board's tunnel on this machine's loopback. [default: the first free one]",
)
@_of_keys
@click.option(
    "--sshd-config",
    "sshd_config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="sshd's configuration, to check. [default: /etc/ssh/sshd_config]",
)
@of_socket
@as_json
def add(
    name: str,
    key_file: str,
    board: bool,
    account: bool,
    port: int | None,
    keys: Path | None,
    sshd_config: Path | None,
    socket: Path | None,
    json_: bool,
) -> None:
    """Let a person in by a key, or a board that is behind NAT.

    What sshd's configuration lacks for that is said. A board is not let in where its key could do
    more than open its tunnel.

    \b
    farm lab user add alice --key alice.pub
    farm lab user add pi5-07 --key pi5-07.pub --board
    """
    from farm.lab.door.authorized_keys import AuthorizedKey, DoorSettings, parse_key

    _check_name(name, is_person=not board, is_account=account)
    if port is not None and not board:
        raise UsageError("--port is the port of a board's tunnel", "a person has none", "--board")
    file = _file_of(keys)
    key = parse_key(_read_key(key_file), "standard input" if key_file == "-" else key_file)
    if board and port is None:
        port = _free_port(file.entries())
    tracker = _tracker(socket) if board else _TRACKER
    entry = AuthorizedKey(name, key, port, account)
    _check_sshd(file, sshd_config, board)
    file.add(
        entry, DoorSettings(_python(), control_socket_path(socket).expanduser().absolute(), tracker)
    )
    if json_:
        _document(file, [entry])
        return
    echo(f"{name} may come in: {file.path}")
    if board:
        echo(f"its tunnel ends at port {port} of this machine's loopback; on your machine:")
        words = f"--service --lab lab://{_account()}@HOST --board {name} --port {port}"
        echo(f"farm provision {words} --key KIND --device NAME")
    else:
        echo(f"their devices.toml names boards as lab://{_account()}@HOST/KIND")


@user.command(name="list")
@_of_keys
@as_json
def list_(keys: Path | None, json_: bool) -> None:
    """List who may come in, and by which keys."""
    file = _file_of(keys)
    entries = file.entries()
    if json_:
        _document(file, entries)
        return
    if not entries:
        echo("nobody may come in: farm lab user add alice --key alice.pub", err=True)
        return
    from farm.views.lab import lab_authorized_keys_table

    console = output.console(stderr=False)
    console.print(lab_authorized_keys_table([_shown(entry) for entry in entries], console.width))


@user.command()
@click.argument("name")
@_of_keys
@of_socket
@as_json
def remove(name: str, keys: Path | None, socket: Path | None, json_: bool) -> None:
    """Remove all keys of a user, end their leases, and hang up on them.

    \b
    farm lab user remove alice
    """
    from farm.errors import did_you_mean

    file = _file_of(keys)
    removed = file.remove(name)
    if not removed:
        known = {entry.user for entry in file.entries()}
        why = did_you_mean(name, known) or f"{file.path} has no keys of farm's"
        raise UsageError(f"no key is {name}'s", why, "farm lab user list")
    ended = _expel(name, socket)
    if json_:
        _document(file, removed)
        return
    count = "a key" if len(removed) == 1 else f"{len(removed)} keys"
    echo(f"{name}: {count} removed, {_leases_in_words(ended)}")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="NAME --socket FILE")
def door(arguments: tuple[str, ...]) -> None:
    """Serve the holder of a key, for sshd.

    It is the command in the lines that farm lab user add writes, not for hands. What the holder
    wants is in SSH_ORIGINAL_COMMAND: api, or board LEASE.
    """
    from farm.lab.door.main import main

    sys.exit(main(arguments))


def _check_name(name: str, *, is_person: bool, is_account: bool) -> None:
    """Raise UsageError for a name that no user can have, or that is another's."""
    from farm.lab import refusals
    from farm.lab.door.commands import is_user_name
    from farm.lab.door.main import has_account

    if not is_user_name(name):
        raise refusals.invalid_user_name_error(name)
    if name in ("root", _account()):
        why = "root and the server's own account are administrators by the socket"
        raise UsageError(f"{name} cannot come in by the door", why, "choose another name")
    if is_account and not (is_person and has_account(name)):
        why = f"{name} is a board" if not is_person else f"this machine has no account {name}"
        raise UsageError("--account is for a person with an account here", why, "leave it out")
    if is_person and not is_account and has_account(name):
        why = "both would be one owner of leases: each could end the other's, and see their keys"
        fix = "choose another name; or --account, if they are one person"
        raise UsageError(f"{name} is also the name of an account of this machine", why, fix)


def _check_sshd(file: AuthorizedKeysFile, config: Path | None, board: bool) -> None:
    """Say what is wrong with sshd's configuration.

    Raises UsageError if the key of a board could do more than it may.
    """
    import pwd

    from farm.errors import FarmError
    from farm.lab.door import sshd_settings_check

    place, home = config or sshd_settings_check.USUAL, Path(pwd.getpwuid(os.geteuid()).pw_dir)
    try:
        settings = sshd_settings_check.effective_settings(_account(), place)
    except FarmError as error:
        echo(f"sshd's settings could not be checked: {error.why}", err=True)
        return
    found = list(
        sshd_settings_check.setting_findings(settings, file.path, home, _account(), board=board)
    )
    if dangerous := [one for one in found if one.dangerous]:
        fix = f"in {place}, Match User {_account()}: {'; '.join(one.line for one in dangerous)}"
        raise UsageError("a board is not safe here", dangerous[0].why, fix)
    for one in found:
        echo(f"{place}: {one.why}: Match User {_account()}, {one.line}", err=True)


def _account() -> str:
    from farm import ownership

    return ownership.user_name(os.geteuid())


def _file_of(keys: Path | None) -> AuthorizedKeysFile:
    from farm.lab.door.authorized_keys import USUAL, AuthorizedKeysFile

    return AuthorizedKeysFile(keys or USUAL)


def _read_key(name: str) -> str:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(_MOST_KEY_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(_MOST_KEY_BYTES + 1)
    except OSError as exc:
        why = exc.strerror or str(exc)
        raise UsageError(
            f"{name} cannot be read", why, "name a public key, id_ed25519.pub"
        ) from exc
    return data.decode("utf-8", "replace")


def _python() -> Path:
    """Return the Python that sshd starts with -I: this one. Raises UsageError if it has no farm.

    With -I it finds none that is there for this user or this shell only.
    """
    from farm.processes import subprocesses
    from farm.processes.deadline import Deadline

    python = Path(sys.executable).absolute()
    look = [str(python), "-I", "-c", "import farm.lab.door.main"]
    try:
        subprocesses.run_program(look, deadline=Deadline(_START_S), what="looking for farm")
    except BuildError as exc:
        why = f"{python} -I does not import it: it is there for this user or shell only"
        fix = "install farm in an environment of its own: python -m venv, pip install tvm-farm"
        raise UsageError("sshd could not start farm", why, fix) from exc
    return python


def _free_port(entries: Sequence[AuthorizedKey]) -> int:
    taken = {entry.port for entry in entries}
    return next(port for port in range(_FIRST_PORT, _LAST_PORT + 1) if port not in taken)


def _tracker(socket: Path | None) -> tuple[str, int]:
    """Return where the lab's tracker listens; the usual place while the server is away."""
    from farm.lab_client.control_client import LabClient, loopback_if_wildcard_address

    with contextlib.suppress(DeviceError), LabClient(control_socket_path(socket)) as client:
        place = client.hello["tracker"]
        return loopback_if_wildcard_address(str(place["host"])), int(place["port"])
    return _TRACKER


def _expel(name: str, socket: Path | None) -> list[int] | None:
    """End the leases of a user, and return their numbers; None if the server is away."""
    from farm.errors import LinkError
    from farm.lab_client.control_client import LabClient

    try:
        with LabClient(control_socket_path(socket)) as client:
            ended: list[int] = client.ask("expel", user=name, why="the user was removed")["leases"]
            return ended
    except LinkError:
        return None


def _leases_in_words(ended: list[int] | None) -> str:
    if ended is None:
        return "the server is away: leases end when their heartbeats do"
    return f"ended: {', '.join(f'lease {number}' for number in ended)}" if ended else "had no lease"


def _shown(entry: AuthorizedKey) -> dict[str, Any]:
    from farm.lab.door.authorized_keys import fingerprint

    key = asdict(entry.key)
    return {
        "user": entry.user,
        "type": key["type"],
        "fingerprint": fingerprint(entry.key),
        "comment": key["comment"],
        "port": entry.port,
    }


def _document(file: AuthorizedKeysFile, entries: Sequence[AuthorizedKey]) -> None:
    print_document("lab_users", {"file": str(file.path), "users": [_shown(one) for one in entries]})
