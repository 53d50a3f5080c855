"""The adb program, which starts the server where none runs, and runs commands on a device.

An adb program that finds a server of another version kills it and starts its own, and with it end
the connections of whoever uses the server. The versions are therefore compared before the program
is run.
"""

from __future__ import annotations

import functools
import os
import re

from farm import ownership
from farm.errors import DeviceError, FarmError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.transports.adb import server
from farm.transports.adb.server import ServerAddress, ServerError

_START_S = 20.0
INSTALL = "sudo apt-get install adb, or Android's platform-tools with adb on PATH"


def adb_program() -> str:
    """Return the path of the adb program. Raises DeviceError if it is not installed."""
    if found := subprocesses.first_installed_program("adb"):
        return found
    raise DeviceError("adb is not installed", "Android boards are reached by it", INSTALL)


@functools.cache
def client_protocol_version(path: str) -> int:
    """Return the version of the protocol that an adb program speaks: 41 for `1.0.41`."""
    try:
        said = subprocesses.run_program(
            [path, "version"], deadline=Deadline(_START_S), what="starting adb", fix=INSTALL
        )
    except FarmError as exc:
        raise DeviceError("the adb program does not run", exc.why, INSTALL) from exc
    found = re.search(r"version 1\.0\.(\d+)", said)
    if not found:
        raise DeviceError("the adb program does not tell its version", said[:200], INSTALL)
    return int(found[1])


def ensure_server() -> ServerAddress:
    """Return where the server is; start one on this machine if none runs, as adb does.

    Raises DeviceError if there is no adb program, if its version is not the server's, if no server
    can be reached, or if one that the user did not name is another user's.
    """
    path, where = adb_program(), server.server_address()
    try:
        theirs = server.server_version(where)
    except ServerError as exc:
        fix = "see what listens there, or name another port: export ANDROID_ADB_SERVER_PORT=5038"
        raise DeviceError(f"what listens at {where} is no adb server", str(exc), fix) from exc
    except OSError as exc:
        if not where.here:
            raise DeviceError(
                f"there is no adb server at {where}",
                str(exc),
                "start it there: adb -a start-server",
            ) from exc
        return _started(path, where)
    if where.here and not server.is_server_configured():
        _check_user(where)
    if theirs != client_protocol_version(path):
        raise DeviceError(
            "the adb server is of another version than the adb program",
            (
                f"the server at {where} has {theirs}, {path} has {client_protocol_version(path)}: "
                "it would kill the server, which others may use"
            ),
            (
                "put the adb program that started the server first on PATH, or end the server "
                "with that one: adb kill-server"
            ),
        )
    return where


def _check_user(where: ServerAddress) -> None:
    """Raise DeviceError if the server is another user's.

    It sees, and can change, all that passes.
    """
    try:
        user = server.server_user(where)
    except (OSError, ServerError) as exc:
        raise DeviceError(
            f"what listens at {where} is no adb server",
            str(exc),
            "see what this says: adb devices -l",
        ) from exc
    if user not in (0, os.geteuid()):
        whose = (
            "a user whom the kernel does not name" if user is None else ownership.user_name(user)
        )
        fix = (
            "export ANDROID_ADB_SERVER_PORT=5038 for a server of your own; or trust this one: "
            f"export ANDROID_ADB_SERVER_PORT={where.port}"
        )
        raise DeviceError(f"the adb server at {where} is not yours", f"it runs as {whose}", fix)


def _started(path: str, where: ServerAddress) -> ServerAddress:
    try:
        subprocesses.run_program(
            [path, "start-server"], deadline=Deadline(_START_S), what="starting the adb server"
        )
        server.server_version(where)
    except (FarmError, OSError, ServerError) as exc:
        why = exc.why if isinstance(exc, FarmError) else str(exc)
        raise DeviceError(
            "the adb server cannot be started",
            why or str(exc),
            "see what this says: adb start-server",
        ) from exc
    return where
