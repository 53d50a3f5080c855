"""Find the keys for a login: keys of the SSH agent and key files, with their certificates.

A key file may be encrypted with a passphrase.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH

from farm.prompts import TRIES, Ask, Question
from farm.transports.ssh.config import Hop

_DEFAULTS = ("id_ed25519", "id_ecdsa", "id_rsa")
_AGENT_S = 30.0  # the agent may ask the user for confirmation
_KINDS = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)


@dataclass
class LoginKeys:
    """The keys for one hop, in the order in which they are tried.

    The order is: keys of the SSH agent, key files that can be read, key files that need a
    passphrase. `locked` are the files that could not be decrypted so far. `useless` maps other keys
    to the reason why they cannot be used. `offered` holds the keys that were yielded: each is tried
    once.
    """

    hop: Hop
    ask: Ask
    locked: list[Path] = field(default_factory=list)
    useless: dict[str, str] = field(default_factory=dict)
    offered: set[bytes] = field(default_factory=set)

    def __iter__(self) -> Iterator[paramiko.PKey]:
        with contextlib.closing(_Agent()) as agent:
            for key in self._of_agent(agent):
                yield from self._once(key)
            self.locked = []
            for file in self._files():
                if key := self._read(file):
                    yield from self._with_certificates(key, file)
            for file in list(self.locked):
                if key := self._unlock(file):
                    self.locked.remove(file)
                    yield from self._with_certificates(key, file)

    def take_back(self, key: paramiko.PKey) -> None:
        """Mark a key that was not refused as not yet offered, so that it is tried again."""
        self.offered.discard(_blob(key))

    def _files(self) -> list[Path]:
        named = self.hop.identities
        return [
            file
            for file in (named or [Path("~/.ssh", name).expanduser() for name in _DEFAULTS])
            if file.is_file()
        ]

    def _of_agent(self, agent: _Agent) -> list[paramiko.PKey]:
        """Return the SSH agent's keys, those of the configured key files first.

        With IdentitiesOnly, only those are returned.
        """
        if self.hop.agent is None:
            return []
        agent.reach(self.hop.agent)
        ours = {blob for file in self.hop.identities if (blob := _public(file))}
        first = [key for key in agent.get_keys() if key.asbytes() in ours]
        return (
            first
            if self.hop.identities_only
            else [*first, *(key for key in agent.get_keys() if key not in first)]
        )

    def _read(self, file: Path, passphrase: str | None = None) -> paramiko.PKey | None:
        """Return the key in a file, or None.

        A file that is encrypted is added to `locked`, one without a readable key to `useless`.
        """
        why = ""
        for kind in _KINDS:
            try:
                return kind.from_private_key_file(str(file), passphrase)
            except paramiko.PasswordRequiredException:
                # Otherwise the agent has offered the key, and the server refused it
                if _public(file) not in self.offered:
                    self.locked.append(file)
                return None
            except (paramiko.SSHException, OSError, ValueError) as exc:
                why = str(exc)
        self.useless[str(file)] = f"it cannot be read, {why}"
        return None

    def _unlock(self, file: Path) -> paramiko.PKey | None:
        passphrase = None
        for _ in range(TRIES):
            passphrase = self.ask(Question(f"passphrase of the key {file}: ", wrong=passphrase))
            if passphrase is None:
                return None
            if key := self._read(file, passphrase):
                self.useless.pop(str(file), None)
                return key
        return None

    def _with_certificates(self, key: paramiko.PKey, file: Path) -> Iterator[paramiko.PKey]:
        """Yield a key with each of its certificates, and then alone."""
        for certificate in (*self.hop.certificates, file.with_name(f"{file.name}-cert.pub")):
            if _certify(key, certificate):
                yield from self._once(key)
        key.public_blob = None
        yield from self._once(key)

    def _once(self, key: paramiko.PKey) -> Iterator[paramiko.PKey]:
        if _blob(key) not in self.offered:
            self.offered.add(_blob(key))
            yield key


class _Agent(AgentSSH):  # type: ignore[misc]
    """The SSH agent at a socket."""

    def reach(self, path: Path) -> None:
        """Connect to the agent and fetch its keys; there are none if it cannot be reached."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(_AGENT_S)
        try:
            sock.connect(str(path))
            self._connect(sock)
        except (OSError, paramiko.SSHException):
            sock.close()

    def close(self) -> None:
        """Close the connection to the agent."""
        self._close()


def _certify(key: paramiko.PKey, certificate: Path) -> bool:
    """Attach a certificate to a key if it belongs to the key; return whether it does."""
    try:
        blob = paramiko.pkey.PublicBlob.from_file(str(certificate))
        message = paramiko.Message(blob.key_blob)
        message.get_text(), message.get_binary()  # skip the type and the nonce
        if message.get_remainder().startswith(_fields(key)):
            key.load_certificate(str(certificate))
            return True
    except (OSError, ValueError):
        pass
    return False


def _fields(key: paramiko.PKey) -> bytes:
    """Return a public key without its type, as a certificate contains it."""
    message = paramiko.Message(key.asbytes())
    message.get_text()
    return bytes(message.get_remainder())


def _blob(key: paramiko.PKey) -> bytes:
    """Return the bytes of a key, or of its certificate, that are presented to a server."""
    return bytes(key.public_blob.key_blob if key.public_blob else key.asbytes())


def _public(file: Path) -> bytes | None:
    """Return the public key of a key file, if it can be read without a passphrase."""
    for path in (file.with_name(f"{file.name}.pub"), file):
        with contextlib.suppress(ValueError, OSError, paramiko.SSHException):
            return bytes(paramiko.pkey.PublicBlob.from_file(str(path)).key_blob)
    return None
