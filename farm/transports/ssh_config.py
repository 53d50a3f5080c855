"""The way to a board as ~/.ssh/config has it: an `ssh://` url becomes hops, jump hosts first and the board last.

Honoured are Host and Match, HostName, Port, User, IdentityFile, IdentitiesOnly, ProxyJump, HostKeyAlias and the known-hosts files.
StrictHostKeyChecking is not: host keys are always checked (ssh_config(5)).
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from farm.errors import DeviceError

SSH_PORT = 22
_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_KNOWN_TO_ALL = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_MOST_HOPS = 8


@dataclass(frozen=True, slots=True)
class Hop:
    """An SSH server on the way. `key_name` is what known_hosts calls it; `identities` are key files that were named for it."""

    host: str
    port: int
    user: str
    key_name: str
    known_hosts: tuple[Path, ...]
    identities: tuple[Path, ...] = ()
    identities_only: bool = False

    @property
    def place(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def route(url: str, file: Path | None = None) -> tuple[Hop, ...]:
    """The hops to the host of an `ssh://[user@]host[:port]` url. Raises DeviceError where the configuration cannot be followed."""
    import paramiko

    file = file or Path("~/.ssh/config").expanduser()
    try:
        config = paramiko.SSHConfig.from_path(str(file)) if file.is_file() else paramiko.SSHConfig()
        return tuple(_hops(url, config, file, 0))
    except (paramiko.SSHException, OSError, ValueError) as exc:
        raise DeviceError(f"{file} cannot be followed", f"{type(exc).__name__}: {exc}", f"correct it until this works: ssh {url}") from exc


def _hops(url: str, config: Any, file: Path, depth: int) -> list[Hop]:
    if depth > _MOST_HOPS:
        raise DeviceError(f"{url}: more than {_MOST_HOPS} jump hosts", "a jump host may be its own", f"correct ProxyJump in {file}")
    parts = urlsplit(url)
    options = config.lookup(parts.hostname or "")
    if options.get("proxycommand", "none") != "none":
        raise DeviceError(f"{url} is reached by a ProxyCommand", "farm starts no commands for its connections", f"use ProxyJump in {file}")
    jumps = options.get("proxyjump", "none")
    before: list[Hop] = []
    for jump in [] if jumps == "none" else jumps.split(","):
        # Only the first jump host may have jump hosts of its own: the others are reached through the one before.
        hops = _hops(jump if "://" in jump else f"ssh://{jump.strip()}", config, file, depth + 1)
        before += hops if not before else hops[-1:]
    return [*before, _hop(parts.port, parts.username, options)]


def _hop(port: int | None, user: str | None, options: Mapping[str, Any]) -> Hop:
    port = port or int(options.get("port", SSH_PORT))
    host = options["hostname"]
    key_name = options.get("hostkeyalias") or (host if port == SSH_PORT else f"[{host}]:{port}")
    files = f"{options.get('userknownhostsfile', _KNOWN_HOSTS)} {options.get('globalknownhostsfile', _KNOWN_TO_ALL)}"
    return Hop(
        host,
        port,
        user or options.get("user") or getpass.getuser(),
        key_name,
        tuple(Path(name).expanduser() for name in files.split()),
        tuple(Path(name).expanduser() for name in options.get("identityfile", ())),
        options.get("identitiesonly", "no") == "yes",
    )
