"""The way to a board as ~/.ssh/config has it: an `ssh://` url becomes hops, jump hosts first and the board last.

Honoured are Include, Host and Match (not its exec), and what says where a server is (HostName, Port, ProxyJump, ProxyCommand,
AddressFamily, BindAddress, ConnectTimeout), who we are (User, IdentityFile, IdentitiesOnly, IdentityAgent, CertificateFile, BatchMode,
Password-, KbdInteractive-, PubkeyAuthentication), which host keys we trust (HostKeyAlias, the known-hosts files), and in which
algorithms we speak (Ciphers, MACs, KexAlgorithms, HostKeyAlgorithms). StrictHostKeyChecking is not: host keys are always checked, in
~/.ssh/known_hosts where UserKnownHostsFile is nowhere (ssh_config(5)).
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

from farm.errors import DeviceError
from farm.transports.ssh_include import included

SSH_PORT = 22
_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_KNOWN_TO_ALL = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_NOWHERE = ("none", "/dev/null")
_MOST_HOPS = 8
_METHODS = {  # that can be switched off
    "pubkeyauthentication": "publickey",
    "kbdinteractiveauthentication": "keyboard-interactive",
    "challengeresponseauthentication": "keyboard-interactive",
    "passwordauthentication": "password",
}
_ALGORITHMS = ("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms")


@dataclass(frozen=True, slots=True)
class Hop:
    """An SSH server on the way. `key_name` is what known_hosts calls it; `identities` are key files that were named for it.

    `agent` is the socket of the SSH agent, `without` are methods of proof that are switched off, `algorithms` the words of the
    configuration by option, `command` a program whose standard streams lead to the server.
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

    @property
    def place(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def route(url: str, file: Path | None = None) -> tuple[Hop, ...]:
    """The hops to the host of an `ssh://[user@]host[:port]` url. Raises DeviceError where the configuration cannot be followed."""
    import paramiko

    file = file or Path("~/.ssh/config").expanduser()
    try:
        text = included(file) if file.is_file() else ""
        return tuple(_hops(url, text, file, 0))
    except (paramiko.SSHException, OSError, ValueError, KeyError) as exc:
        raise DeviceError(f"{file} cannot be followed", f"{type(exc).__name__}: {exc}", f"correct it until this works: ssh {url}") from exc


def _hops(url: str, text: str, file: Path, depth: int) -> list[Hop]:
    if depth > _MOST_HOPS:
        raise DeviceError(f"{url}: more than {_MOST_HOPS} jump hosts", "a jump host may be its own", f"correct ProxyJump in {file}")
    options = _lookup(url, text)
    jumps = options.get("proxyjump", "none")
    before: list[Hop] = []
    for jump in [] if jumps == "none" else jumps.split(","):
        # Only the first jump host may have jump hosts of its own: the others are reached through the one before.
        hops = _hops(jump if "://" in jump else f"ssh://{jump.strip()}", text, file, depth + 1)
        before += hops if not before else hops[-1:]
    return [*before, _hop(urlsplit(url).hostname or "", options, command="" if before else options.get("proxycommand") or "")]


def _lookup(url: str, text: str) -> Mapping[str, Any]:
    """All options for the host of a url. What the url says comes first, and the first value of an option is the one that holds."""
    import paramiko

    class Config(paramiko.SSHConfig):  # type: ignore[misc]
        def _tokenize(self, config: Any, target_hostname: str, key: str, value: str) -> str:
            if key == "match-exec":  # paramiko would run it on our terminal
                raise DeviceError(
                    f"{url} is reached as a command decides", f"farm does not follow Match exec {value}", "use Match host there"
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
    tokens = {"%": "%", "d": str(Path.home()), "h": host, "n": alias, "p": str(port), "r": user, "u": getpass.getuser()}

    def paths(words: list[str]) -> tuple[Path, ...]:
        return tuple(_path(word, tokens) for word in words if word.lower() not in _NOWHERE)

    def is_on(name: str, default: str) -> bool:
        return str(options.get(name, default)).lower() == "yes"

    known_to_us = paths(_words(options.get("userknownhostsfile", _KNOWN_HOSTS))) or paths(_words(_KNOWN_HOSTS))
    timeout = options.get("connecttimeout", "none")
    named = options.get("identityfile", ())
    return Hop(
        host,
        port,
        user,
        options.get("hostkeyalias") or (host.lower() if port == SSH_PORT else f"[{host.lower()}]:{port}"),
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
    """The socket of IdentityAgent: a path, or a variable that has it."""
    if named == "SSH_AUTH_SOCK":
        named = os.environ.get(named, "none")
    elif named.startswith("$"):
        named = os.environ.get(named[1:].strip("{}"), "none")
    return None if named in _NOWHERE else _path(named, tokens)


def _path(word: str, tokens: Mapping[str, str]) -> Path:
    word = re.sub("%(.)", lambda found: tokens.get(found[1], found[0]), word)
    return Path(os.path.expandvars(word)).expanduser()
