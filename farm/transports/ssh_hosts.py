"""Whether a server is who we think: its host key against the known_hosts files. Nothing is ever added to them by us.

A key that nobody has vouched for is refused, with its fingerprint and the command that accepts it.
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
from farm.transports.ssh_config import Hop


def known(hop: Hop) -> Iterator[paramiko.PKey]:
    """The keys that known_hosts files have for a hop.

    What paramiko cannot read is left out, as ssh does it: it vouches for nobody. So are certificate authorities (@cert-authority).
    """
    for line in _lines(hop):
        with contextlib.suppress(paramiko.SSHException, InvalidHostKey, ValueError):
            entry = None if line.startswith(("#", "@")) else HostKeyEntry.from_line(line)
            if entry and entry.key and _is_for(hop.key_name, entry.hostnames):
                yield entry.key


def _is_for(name: str, patterns: list[str]) -> bool:
    """Whether a line is for a host: its names, which may be hashed or have * and ?; one after ! is none of it."""
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
    return fnmatch.fnmatchcase(name.lower(), pattern.lower().replace("[", "[[]"))  # brackets are around a name that has a port


def is_revoked(hop: Hop, key: paramiko.PKey) -> bool:
    """Whether a line marked @revoked has the key, for whichever host: it is burnt."""
    return any(line.startswith("@revoked") and key.get_base64() in line.split() for line in _lines(hop))


def unknown(name: str, hop: Hop, key: paramiko.PKey) -> DeviceError:
    """Of the key of a host for which there is none."""
    return DeviceError(
        f"the host key of {name} ({hop.place}) is not known",
        f"its fingerprint is {key.fingerprint} ({key.get_name()}), and no known_hosts file vouches for it",
        "compare that with what the board itself says (on it: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then: "
        + _accepting(hop.known_hosts[0], f"{hop.key_name} {key.get_name()} {key.get_base64()}"),
    )


def changed(name: str, hop: Hop, got: paramiko.PKey, expected: str) -> DeviceError:
    """Of a key that is not the one, or of another type than those, whose fingerprints are `expected`."""
    file = shlex.quote(str(next((file for file in hop.known_hosts if file.is_file()), hop.known_hosts[0])))
    return DeviceError(
        f"the host key of {name} ({hop.place}) has changed: somebody may be in between",
        f"its fingerprint is {got.fingerprint} ({got.get_name()}), known is {expected}",
        f"only if the board was set up anew: ssh-keygen -f {file} -R {shlex.quote(hop.key_name)}, then accept its new one",
    )


def _accepting(file: Path, line: str) -> str:
    """The command that adds a line to a file, whose folder may be missing, or its last newline."""
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
