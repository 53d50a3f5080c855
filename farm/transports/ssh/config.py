"""Resolve an `ssh://` url by ~/.ssh/config into hops: the jump hosts first, the board last.

Honoured are Include, Host and Match (except exec), and the options that say
    where a server is: HostName, Port, ProxyJump, ProxyCommand, AddressFamily, BindAddress,
        ConnectTimeout
    who the user is: User, IdentityFile, IdentitiesOnly, IdentityAgent, CertificateFile, BatchMode,
        PasswordAuthentication, KbdInteractiveAuthentication, PubkeyAuthentication
    which host keys are trusted: HostKeyAlias, UserKnownHostsFile, GlobalKnownHostsFile
    which algorithms are used: Ciphers, MACs, KexAlgorithms, HostKeyAlgorithms
StrictHostKeyChecking is ignored: host keys are always checked, in ~/.ssh/known_hosts if
UserKnownHostsFile names no file (ssh_config(5)).
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from farm.config.urls import check_host, check_user
from farm.errors import DeviceError
from farm.transports.ssh.config_include import insert_included_files

SSH_PORT = 22
_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_KNOWN_TO_ALL = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_NOWHERE = ("none", "/dev/null")
_MOST_HOPS = 8
_METHODS = {  # authentication methods that can be disabled
    "pubkeyauthentication": "publickey",
    "kbdinteractiveauthentication": "keyboard-interactive",
    "challengeresponseauthentication": "keyboard-interactive",
    "passwordauthentication": "password",
}
_ALGORITHMS = ("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms")


@dataclass(frozen=True, slots=True)
class Hop:
    """An SSH server on the way to the board, or the board itself.

    `key_name` is its name in known_hosts. `identities` are the key files configured for it. `agent`
    is the socket of the SSH agent. `without` are the disabled authentication methods. `algorithms`
    maps an option to its value in the configuration. `command` is a program whose standard streams
    lead to the server (ProxyCommand). `keys_remedy` is what to do if it accepts no key, where that
    is not ssh-copy-id.
    """

    host: str
    port: int
    user: str
    key_name: str
    known_hosts: tuple[Path, ...]
    identities: tuple[Path, ...] = ()
    identities_only: bool = False
    certificates: tuple[Path, ...] = ()
    agent: Path | None = None
    without: frozenset[str] = frozenset()
    asks_nothing: bool = False
    algorithms: Mapping[str, str] = field(default_factory=dict)
    connect_timeout_s: float | None = None
    family: str = "any"
    bind_address: str = ""
    command: str = ""
    keys_remedy: str = ""

    @property
    def place(self) -> str:
        """USER@HOST:PORT, for messages."""
        return f"{self.user}@{self.host}:{self.port}"


def resolve_hops(url: str, file: Path | None = None) -> tuple[Hop, ...]:
    """Return the hops to the host of an `ssh://[user@]host[:port]` url.

    `file` is the configuration; the default is ~/.ssh/config. Raises DeviceError if it is invalid
    or not supported.
    """
    import paramiko

    file = file or Path("~/.ssh/config").expanduser()
    try:
        text = insert_included_files(file) if file.is_file() else ""
        return tuple(_hops(url, text, file, 0))
    except (paramiko.SSHException, OSError, ValueError, KeyError) as exc:
        raise DeviceError(
            f"{file} cannot be followed",
            f"{type(exc).__name__}: {exc}",
            f"correct it until this works: ssh {shlex.quote(url)}",
        ) from exc


def _hops(url: str, text: str, file: Path, depth: int) -> list[Hop]:
    if depth > _MOST_HOPS:
        raise DeviceError(
            f"{url}: more than {_MOST_HOPS} jump hosts",
            "a jump host may be its own",
            f"correct ProxyJump in {file}",
        )
    _check_names(url)
    options = _lookup(url, text)
    jumps = options.get("proxyjump", "none")
    before: list[Hop] = []
    for jump in [] if jumps == "none" else jumps.split(","):
        # Only the first jump host may have jump hosts of its own: each other one is reached through
        # the one before it.
        hops = _hops(jump if "://" in jump else f"ssh://{jump.strip()}", text, file, depth + 1)
        before += hops if not before else hops[-1:]
    return [
        *before,
        _hop(
            urlsplit(url).hostname or "",
            options,
            command="" if before else options.get("proxycommand") or "",
        ),
    ]


def _check_names(url: str) -> None:
    """Raise DeviceError for a user or host name that a shell could interpret.

    A ProxyCommand may contain them as %r and %h.
    """
    parts = urlsplit(url)
    try:
        check_host(parts.hostname or "")
        if parts.username is not None:
            check_user(parts.username)
    except ValueError as exc:
        raise DeviceError(
            "an SSH url names nothing that can be reached",
            str(exc),
            "correct the url, or ProxyJump in ~/.ssh/config",
        ) from exc


def _lookup(url: str, text: str) -> Mapping[str, Any]:
    """Return all options for the host of a url.

    The url's own user and port take precedence; else the first value of an option holds.
    """
    import paramiko

    class Config(paramiko.SSHConfig):  # type: ignore[misc]
        def _tokenize(self, config: Any, target_hostname: str, key: str, value: str) -> str:
            if key == "match-exec":  # paramiko would run the command on our terminal
                raise DeviceError(
                    f"{url} is reached as a command decides",
                    f"farm does not follow Match exec {value}",
                    "use Match host there",
                )
            return str(super()._tokenize(config, target_hostname, key, value))

    parts = urlsplit(url)
    given = {"User": parts.username, "Port": parts.port}
    said = "".join(f"{name} {value}\n" for name, value in given.items() if value)
    options: Mapping[str, Any] = Config.from_text(said + text).lookup(parts.hostname or "")
    return options


def _hop(alias: str, options: Mapping[str, Any], command: str) -> Hop:
    port, host = int(options.get("port", SSH_PORT)), options["hostname"]
    user = options.get("user") or getpass.getuser()
    tokens = {
        "%": "%",
        "d": str(Path.home()),
        "h": host,
        "n": alias,
        "p": str(port),
        "r": user,
        "u": getpass.getuser(),
    }

    def paths(words: list[str]) -> tuple[Path, ...]:
        return tuple(_path(word, tokens) for word in words if word.lower() not in _NOWHERE)

    def is_on(name: str, default: str) -> bool:
        return str(options.get(name, default)).lower() == "yes"

    known_to_us = paths(_words(options.get("userknownhostsfile", _KNOWN_HOSTS))) or paths(
        _words(_KNOWN_HOSTS)
    )
    timeout = options.get("connecttimeout", "none")
    named = options.get("identityfile", ())
    return Hop(
        host,
        port,
        user,
        options.get("hostkeyalias")
        or (host.lower() if port == SSH_PORT else f"[{host.lower()}]:{port}"),
        (*known_to_us, *paths(_words(options.get("globalknownhostsfile", _KNOWN_TO_ALL)))),
        paths(named),
        is_on("identitiesonly", "no"),
        paths([options["certificatefile"]] if "certificatefile" in options else []),
        _agent(options.get("identityagent", "SSH_AUTH_SOCK"), tokens),
        frozenset(method for name, method in _METHODS.items() if not is_on(name, "yes")),
        is_on("batchmode", "no"),
        {name: options[name] for name in _ALGORITHMS if name in options},
        None if timeout == "none" else float(timeout),
        options.get("addressfamily", "any").lower(),
        options.get("bindaddress", ""),
        command,
    )


def _words(text: str) -> list[str]:
    return shlex.split(text)


def _agent(named: str, tokens: Mapping[str, str]) -> Path | None:
    """Return the socket that IdentityAgent names: a path, or an environment variable with one."""
    if named == "SSH_AUTH_SOCK":
        named = os.environ.get(named, "none")
    elif named.startswith("$"):
        named = os.environ.get(named[1:].strip("{}"), "none")
    return None if named in _NOWHERE else _path(named, tokens)


def _path(word: str, tokens: Mapping[str, str]) -> Path:
    word = re.sub("%(.)", lambda found: tokens.get(found[1], found[0]), word)
    return Path(os.path.expandvars(word)).expanduser()
