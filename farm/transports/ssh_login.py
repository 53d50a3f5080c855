"""Log in to a board: through its hops, each with its host key checked against known_hosts, by the SSH agent's keys and key files.

A key that nobody has vouched for is refused, with its fingerprint and the command that accepts it. Nothing is ever added by itself.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Iterator
from typing import Any

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from farm.deadline import Deadline
from farm.errors import DeviceError
from farm.transports.ssh_config import SSH_PORT, Hop
from farm.transports.ssh_errors import translated
from farm.transports.ssh_transport import transport

_STEP_S = 10.0  # for each of: connecting, the banner, the key exchange, logging in
_KEEPALIVE_S = 5
_SILENCE_MS = 20_000  # without an acknowledgement from the other side


@contextlib.contextmanager
def logged_in(name: str, hops: tuple[Hop, ...], deadline: Deadline) -> Iterator[paramiko.SSHClient]:
    """A connection to the last hop, each reached through the one before. `name` is the device's, for errors: DeviceError, DeadlineError."""
    with contextlib.ExitStack() as stack:
        client: Any = None
        for hop in hops:
            before, client = client, paramiko.SSHClient()
            stack.callback(client.close)
            with translated(name, hop):
                _log_in(client, name, hop, _socket(hop, before, min(_STEP_S, deadline.remaining)), min(_STEP_S, deadline.remaining))
        yield client


def _socket(hop: Hop, before: Any, timeout_s: float) -> Any:
    if before is not None:
        return before.get_transport().open_channel("direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=timeout_s)
    sock = socket.create_connection((hop.host, hop.port), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MS)
    return sock


def _log_in(client: paramiko.SSHClient, name: str, hop: Hop, sock: Any, timeout_s: float) -> None:
    for entry in _known(hop):
        for host in entry.hostnames:
            client.get_host_keys().add(host, entry.key.get_name(), entry.key)
    client.set_missing_host_key_policy(_Refuse(name, hop))
    named = [str(file) for file in hop.identities if file.is_file()]
    try:
        client.connect(
            hop.key_name,
            SSH_PORT,  # with another one, paramiko would put it into the name that it looks up
            hop.user,
            sock=sock,
            key_filename=named or None,
            look_for_keys=not hop.identities,
            allow_agent=not hop.identities_only,
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
            channel_timeout=timeout_s,
            transport_factory=transport,
        )
    except paramiko.BadHostKeyException as exc:
        raise _changed(name, hop, exc.key, exc.expected_key.fingerprint) from exc
    connection = client.get_transport()
    assert connection
    if _is_revoked(hop, connection.get_remote_server_key()):
        raise DeviceError(f"the host key of {name} ({hop.place}) is revoked", "a known_hosts file says so", "give the board a new host key")
    connection.set_keepalive(_KEEPALIVE_S)


class _Refuse:
    """For a host whose key is not known, or whose known keys are of other types."""

    def __init__(self, name: str, hop: Hop) -> None:
        self._name, self._hop = name, hop

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        known = client.get_host_keys().lookup(hostname)
        if known:
            raise _changed(self._name, self._hop, key, ", ".join(one.fingerprint for one in known.values()))
        line = f"{hostname} {key.get_name()} {key.get_base64()}"
        raise DeviceError(
            f"the host key of {self._name} ({self._hop.place}) is not known",
            f"its fingerprint is {key.fingerprint} ({key.get_name()}), and no known_hosts file vouches for it",
            "compare that with what the board itself says (on it: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then: "
            f"echo {shlex.quote(line)} >> {shlex.quote(str(self._hop.known_hosts[0]))}",
        )


def _changed(name: str, hop: Hop, got: paramiko.PKey, expected: str) -> DeviceError:
    file = shlex.quote(str(next((file for file in hop.known_hosts if file.is_file()), hop.known_hosts[0])))
    return DeviceError(
        f"the host key of {name} ({hop.place}) has changed: somebody may be in between",
        f"its fingerprint is {got.fingerprint} ({got.get_name()}), known is {expected}",
        f"only if the board was set up anew: ssh-keygen -f {file} -R {shlex.quote(hop.key_name)}, then accept its new one",
    )


def _known(hop: Hop) -> Iterator[Any]:
    """The entries of the known_hosts files, less what paramiko cannot read, as ssh does it: what is left out vouches for nobody."""
    for line in _lines(hop):
        with contextlib.suppress(paramiko.SSHException, InvalidHostKey, ValueError):
            if not line.startswith(("#", "@")) and (entry := HostKeyEntry.from_line(line)):
                yield entry


def _is_revoked(hop: Hop, key: paramiko.PKey) -> bool:
    """Whether a line marked @revoked has the key, for whichever host: it is burnt."""
    return any(line.startswith("@revoked") and key.get_base64() in line.split() for line in _lines(hop))


def _lines(hop: Hop) -> Iterator[str]:
    for file in hop.known_hosts:
        if file.is_file():
            yield from filter(None, map(str.strip, file.read_text(errors="replace").splitlines()))
