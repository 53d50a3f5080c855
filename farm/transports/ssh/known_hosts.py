"""Check a server's host key against the known_hosts files. farm never adds a key to them.

A key that is in none of them is refused; the error has its fingerprint and the command that accepts
it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import shlex
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey

from farm.errors import DeviceError
from farm.transports.ssh.config import Hop


def known_keys(hop: Hop) -> Iterator[paramiko.PKey]:
    """Yield the keys that the known_hosts files have for a hop.

    Lines that paramiko cannot read are skipped, as ssh does: they vouch for no host. Certificate
    authorities (@cert-authority) are skipped, too.
    """
    for line in _lines(hop):
        with contextlib.suppress(paramiko.SSHException, InvalidHostKey, ValueError):
            entry = None if line.startswith(("#", "@")) else HostKeyEntry.from_line(line)
            if entry and entry.key and _is_for(hop.key_name, entry.hostnames):
                yield entry.key


def _is_for(name: str, patterns: list[str]) -> bool:
    """Return whether a line's patterns match a host name.

    A pattern is a name that may be hashed or contain * and ?. A match of a pattern after ! excludes
    the host.
    """
    found = False
    for pattern in patterns:
        if pattern.startswith("|1|"):
            found |= HostKeys.hash_host(name, pattern) == pattern
        elif _matches(name, pattern.lstrip("!")):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _matches(name: str, pattern: str) -> bool:
    # A name with a port is written in brackets
    return fnmatch.fnmatchcase(name.lower(), pattern.lower().replace("[", "[[]"))


def is_revoked(hop: Hop, key: paramiko.PKey) -> bool:
    """Return whether a line marked @revoked has the key, whatever host the line names."""
    return any(
        line.startswith("@revoked") and key.get_base64() in line.split() for line in _lines(hop)
    )


def unknown_host_error(name: str, hop: Hop, key: paramiko.PKey) -> DeviceError:
    """Return the error for a host of which no key is known."""
    return DeviceError(
        f"the host key of {name} ({hop.place}) is not known",
        (
            f"its fingerprint is {key.fingerprint} ({key.get_name()}), and no known_hosts file "
            "vouches for it"
        ),
        (
            "compare that with what the board itself says (on it: ssh-keygen -lf "
            "/etc/ssh/ssh_host_ed25519_key.pub), then: "
        )
        + _accepting(hop.known_hosts[0], f"{hop.key_name} {key.get_name()} {key.get_base64()}"),
    )


def changed_key_error(name: str, hop: Hop, got: paramiko.PKey, expected: str) -> DeviceError:
    """Return the error for a host key that differs from the known ones.

    `expected` are the fingerprints of the known keys, which may also be of another type.
    """
    file = shlex.quote(
        str(next((file for file in hop.known_hosts if file.is_file()), hop.known_hosts[0]))
    )
    return DeviceError(
        f"the host key of {name} ({hop.place}) has changed: somebody may be in between",
        f"its fingerprint is {got.fingerprint} ({got.get_name()}), known is {expected}",
        (
            f"only if the board was set up anew: ssh-keygen -f {file} -R "
            f"{shlex.quote(hop.key_name)}, then accept its new one"
        ),
    )


def _accepting(file: Path, line: str) -> str:
    """Return the shell command that adds a line to a file.

    It creates the file's folder or ends its last line if necessary.
    """
    command = f"echo {shlex.quote(line)} >> {shlex.quote(str(file))}"
    if not file.parent.is_dir():
        return f"mkdir -p -m 700 {shlex.quote(str(file.parent))} && {command}"
    if file.is_file() and file.read_bytes()[-1:] not in (b"", b"\n"):
        return f"echo >> {shlex.quote(str(file))} && {command}"
    return command


def _lines(hop: Hop) -> Iterator[str]:
    for file in hop.known_hosts:
        if file.is_file():
            yield from filter(None, map(str.strip, file.read_text(errors="replace").splitlines()))
