"""Keys of agents: files that only their owner can read, found by the owner's clients.

`farm agent` makes a random key and keeps it in a file of the user, one for each address and port. A
client of the same user finds it there. An agent holds a lock on its file while it runs. If the file
is not locked, another program may listen at the address now, and the client does not send it the
key.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farm.errors import DeviceError, UsageError
from farm.ownership import make_private_folder, open_private
from farm.processes.deadline import Deadline
from farm.store import user_data_dir

VARIABLE = "FARM_AGENT_KEY"
# A key is inserted into messages unescaped: no spaces, quotes, backslashes
_KEY = re.compile(r"[!#-\[\]-~]+")
_BYTES = 24
_MOST_BYTES = 4096
_LOCKED_S = 1.0  # a client that checks whether an agent runs holds the lock for a moment
_WILDCARDS: Mapping[int, tuple[str, ...]] = {
    socket.AF_INET: ("0.0.0.0", "::"),
    socket.AF_INET6: ("::",),
}


@dataclass(frozen=True, slots=True)
class LocalAgent:
    """An agent of this user that listens on this machine."""

    address: str
    key: str = field(repr=False)


def is_key(text: str) -> bool:
    """Return whether a text is a valid key."""
    return _KEY.fullmatch(text) is not None


def reuse_or_create_key(address: str, port: int, *, fresh: bool) -> tuple[str, Path]:
    """Return the key for an agent that is about to listen, and the file that has it.

    This process holds the file's lock, also after it executes another program. The key of the agent
    that listened there before is reused, because clients elsewhere may have it, unless `fresh` is
    True. Raises DeviceError if another agent of this user listens there, or if the file cannot be
    written.
    """
    path = _folder() / f"{address}_{port}"
    try:
        make_private_folder(path.parent)
        descriptor = open_private(path)
        os.fchmod(descriptor, 0o600)
        _lock(descriptor, address, port)
        before = os.read(descriptor, _MOST_BYTES).decode("ascii", "replace").strip()
        key = before if is_key(before) and not fresh else secrets.token_hex(_BYTES)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{key}\n".encode(), 0)
    except OSError as exc:
        fix = "keep it elsewhere: export FARM_DATA=/path, or name a file with --key-file"
        raise DeviceError("the agent's key cannot be kept", f"{path}: {exc.strerror}", fix) from exc
    os.set_inheritable(descriptor, True)
    return key, path


def find_local_agent(host: str, port: int) -> LocalAgent | None:
    """Return the agent of this user that listens at a loopback address; None if there is none."""
    for address, family in _loopback_addresses(host, port):
        for listening in (address, *_WILDCARDS.get(family, ())):
            if key := _key_of_living(_folder() / f"{listening}_{port}"):
                return LocalAgent(address, key)
    return None


def read_key(path: Path | None) -> str:
    """Return the key in the first line of a file of mode 0600, or of standard input if None.

    The line may also be that of a service's environment file: FARM_AGENT_KEY=KEY. Raises UsageError
    if other users may use the file, or if it cannot be read or has no key.
    """
    name = str(path or "standard input")
    fix = f"one line with the key, in a file of mode 0600: chmod 600 {path or 'FILE'}"
    try:
        with path.open("rb") if path else contextlib.nullcontext(sys.stdin.buffer) as file:
            mode = os.fstat(file.fileno()).st_mode
            if path and stat.S_ISREG(mode) and mode & 0o077:
                why = f"its mode is {stat.S_IMODE(mode):04o}"
                raise UsageError(f"other users may use the key file {name}", why, fix)
            text = file.readline(_MOST_BYTES).decode("ascii", "replace").strip()
    except OSError as exc:
        why = exc.strerror or str(exc)
        raise UsageError(f"the key file {name} cannot be read", why, fix) from exc
    key = text.removeprefix(f"{VARIABLE}=").strip('"')
    if not is_key(key):
        why = "a key is letters, digits and signs, without spaces, quotes and backslashes"
        raise UsageError(f"there is no key in {name}", why, fix)
    return key


def _folder() -> Path:
    return user_data_dir() / "agent-keys"


def _lock(descriptor: int, address: str, port: int) -> None:
    deadline = Deadline(_LOCKED_S)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as exc:
            if deadline.expired:
                why = f"another agent of this user has {address}:{port}"
                fix = "end that one, or name another port with --port"
                raise DeviceError("the agent cannot listen", why, fix) from exc
        time.sleep(0.01)


def _loopback_addresses(host: str, port: int) -> Iterator[tuple[str, int]]:
    """Yield the loopback addresses of a host name with their families, in resolver order."""
    with contextlib.suppress(OSError, UnicodeError):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            text = str(address[0])
            if text == "::1" or (family == socket.AF_INET and text.startswith("127.")):
                yield text, family


def _key_of_living(path: Path) -> str:
    """Return the key in a file that a running agent of this user has locked, else ""."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return ""
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        key = os.read(descriptor, _MOST_BYTES).decode("ascii", "replace").strip()
        return key if is_key(key) else ""
    finally:
        os.close(descriptor)
    return ""
