"""Parse the command of a key's holder: `api`, or `board LEASE`. All others are refused."""

from __future__ import annotations

import re
from typing import NamedTuple

USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")  # names of users and boards; re.fullmatch
MOST_COMMAND_BYTES = 200
_BOARD = re.compile(r"board ([1-9][0-9]{0,14})")
TUNNEL = "--tunnel"  # on the line of a board's key: it runs no command of the door
ACCOUNT = "--account"  # on the line of a key whose user has the account of the same name
USAGE = "ssh farm@lab api, or ssh farm@lab board LEASE"


class CommandError(Exception):
    """Raised for a command that the door does not have; its text says why."""


class ApiCommand(NamedTuple):
    """Ask the server, line by line."""


class BoardCommand(NamedTuple):
    """A session with an idle board of a lease."""

    lease: int


def parse_command(text: bytes) -> ApiCommand | BoardCommand:
    """Return what a command asks for. Raises CommandError."""
    if not text:
        raise CommandError("a shell is not given here")
    if len(text) > MOST_COMMAND_BYTES:
        raise CommandError(f"the command is longer than {MOST_COMMAND_BYTES} bytes")
    if text == b"api":
        return ApiCommand()
    if found := _BOARD.fullmatch(text.decode("ascii", "replace")):
        return BoardCommand(int(found[1]))
    raise CommandError(f"there is no command {text.decode('utf-8', 'replace')!a}")


def is_user_name(name: str) -> bool:
    """Return whether a text may be the name of a user."""
    return bool(USER.fullmatch(name))
