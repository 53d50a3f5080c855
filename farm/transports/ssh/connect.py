"""Log in to a board through its hops.

For each hop, the host key is checked (see known_hosts.py) before authentication (see auth.py).
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import paramiko

from farm.errors import DeviceError, FarmError
from farm.processes import subprocesses
from farm.processes.cancellation import register_wait_breaker
from farm.processes.deadline import Deadline
from farm.processes.output_end import OutputEnd
from farm.prompts import Ask, answer_nothing, extend_deadline_while_asking
from farm.transports.ssh import tuned_paramiko_transport
from farm.transports.ssh.auth import HopAuthStrategy
from farm.transports.ssh.config import SSH_PORT, Hop
from farm.transports.ssh.errors import translate_errors
from farm.transports.ssh.known_hosts import (
    changed_key_error,
    is_revoked,
    known_keys,
    unknown_host_error,
)

_STEP_S = 10.0  # time limit for each of: connecting, the banner, the key exchange, logging in
_KEEPALIVE_S = 5
_SILENCE_MS = 20_000  # a connection ends after this time without an acknowledgement
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
# Option names in ssh_config(5) and in paramiko
_SETTABLE = {
    "ciphers": "ciphers",
    "macs": "digests",
    "kexalgorithms": "kex",
    "hostkeyalgorithms": "key_types",
}


# paramiko's threads log what they also raise; without a handler it would go to the terminal
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@contextlib.contextmanager
def log_in_through_hops(
    name: str, hops: tuple[Hop, ...], deadline: Deadline, ask: Ask = answer_nothing
) -> Iterator[paramiko.SSHClient]:
    """Yield a client connected to the last hop, each hop reached through the one before.

    `name` is the device's name, for messages. `ask` prompts for passwords and passphrases; the
    deadline does not run meanwhile. All waits are breakable (see farm.processes.cancellation).
    Raises DeviceError, DeadlineError and LinkError.
    """
    with contextlib.ExitStack() as stack:
        said = OutputEnd()
        client: Any = None
        for hop in hops:
            with _with_words(said), translate_errors(name, hop):
                client = _through(
                    client,
                    stack,
                    name,
                    hop,
                    deadline,
                    HopAuthStrategy(name, hop, extend_deadline_while_asking(ask, deadline)),
                    said,
                )
        yield client


def break_connection(client: paramiko.SSHClient) -> None:
    """Break the connection of a client to its first hop, and so all that go through it.

    It does not block: what waits for one of them sees its end.
    """
    transport = client.get_transport()
    while transport and isinstance(transport.sock, paramiko.Channel):
        transport = transport.sock.transport
    if transport:
        _shut(transport.sock)


def _close(client: paramiko.SSHClient) -> None:
    # Through a hop whose connection has broken, paramiko cannot say that it closes
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        client.close()


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _with_words(said: OutputEnd) -> Iterator[None]:
    """Add what a ProxyCommand wrote to its standard error to an error of the block."""
    try:
        yield
    except FarmError as error:
        words = subprocesses.last_lines(said.text())
        if not words:
            raise
        raise type(error)(
            error.what, f"{error.why}\nits ProxyCommand: {words}", error.fix
        ) from error


def _through(
    before: Any,
    stack: contextlib.ExitStack,
    name: str,
    hop: Hop,
    deadline: Deadline,
    login: HopAuthStrategy,
    said: OutputEnd,
) -> Any:
    """Return a client of a hop, connected through the client of the hop before.

    A server may close the connection while the user answers a prompt: then it is opened again, with
    the answer.
    """
    while True:
        client = paramiko.SSHClient()
        stack.callback(_close, client)
        timeout_s = min(_STEP_S, deadline.remaining)
        try:
            _log_in(
                client, name, hop, _socket(hop, before, stack, timeout_s, said), timeout_s, login
            )
        except (paramiko.SSHException, OSError, EOFError):
            client.close()
            if not login.goes_on():
                raise
        else:
            return client


def _socket(
    hop: Hop, before: Any, stack: contextlib.ExitStack, timeout_s: float, said: OutputEnd
) -> Any:
    """Return a connection to a hop, which another thread may break."""
    if before is not None:
        return before.get_transport().open_channel(
            "direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=timeout_s
        )
    if hop.command:
        command = subprocesses.program_over_socketpair(
            ["/bin/sh", "-c", f"exec {hop.command}"], stderr=said
        )
        sock, _ = stack.enter_context(command)
        stack.enter_context(register_wait_breaker(partial(_shut, sock)))
        return sock
    sock = _connected(
        hop, timeout_s if hop.connect_timeout_s is None else min(timeout_s, hop.connect_timeout_s)
    )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MS)
    stack.enter_context(register_wait_breaker(partial(_shut, sock)))
    return sock


def _connected(hop: Hop, timeout_s: float) -> socket.socket:
    source = (hop.bind_address, 0) if hop.bind_address else None
    if hop.family not in _FAMILIES:
        return socket.create_connection((hop.host, hop.port), timeout_s, source)
    address = socket.getaddrinfo(hop.host, hop.port, _FAMILIES[hop.family], socket.SOCK_STREAM)[0][
        4
    ][0]
    return socket.create_connection((str(address), hop.port), timeout_s, source)


def _log_in(
    client: paramiko.SSHClient,
    name: str,
    hop: Hop,
    sock: Any,
    timeout_s: float,
    login: HopAuthStrategy,
) -> None:
    for key in known_keys(hop):
        client.get_host_keys().add(hop.key_name, key.get_name(), key)
    client.set_missing_host_key_policy(_Refuse(name, hop))
    try:
        client.connect(
            hop.key_name,
            SSH_PORT,  # with another port, paramiko would include it in the name that it looks up
            hop.user,
            sock=sock,
            timeout=timeout_s,
            # Longer than the others: report silence as a timeout, not as a wrong banner
            banner_timeout=2 * timeout_s,
            auth_timeout=timeout_s,
            channel_timeout=timeout_s,
            transport_factory=_transport_of(hop),
            auth_strategy=_Checked(name, hop, login),
        )
    except paramiko.BadHostKeyException as exc:
        raise changed_key_error(name, hop, exc.key, exc.expected_key.fingerprint) from exc
    transport = client.get_transport()
    assert transport
    transport.set_keepalive(_KEEPALIVE_S)


class _Checked:
    """paramiko's hook for authentication, called when the host key is one of the known ones."""

    def __init__(self, name: str, hop: Hop, login: HopAuthStrategy) -> None:
        self._name, self._hop, self._login = name, hop, login

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in. Raises DeviceError if the host key is revoked."""
        if is_revoked(self._hop, transport.get_remote_server_key()):
            what = f"the host key of {self._name} ({self._hop.place}) is revoked"
            raise DeviceError(what, "a known_hosts file says so", "give the board a new host key")
        self._login.authenticate(transport)


class _Refuse:
    """paramiko's policy for hosts with no known key, or with known keys of other types only."""

    def __init__(self, name: str, hop: Hop) -> None:
        self._name, self._hop = name, hop

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        """Raise DeviceError for the host's key."""
        if others := client.get_host_keys().lookup(hostname):
            raise changed_key_error(
                self._name, self._hop, key, ", ".join(one.fingerprint for one in others.values())
            )
        raise unknown_host_error(self._name, self._hop, key)


def _transport_of(hop: Hop) -> Callable[..., paramiko.Transport]:
    """Return a factory of transports that use the algorithms of the hop's configuration."""

    def made(sock: Any, **options: Any) -> paramiko.Transport:
        transport = tuned_paramiko_transport.transport_factory(sock, **options)
        security = transport.get_security_options()
        for option, wanted in hop.algorithms.items():
            offered = getattr(security, _SETTABLE[option])
            setattr(security, _SETTABLE[option], _chosen(option, wanted, offered, hop))
        return transport

    return made


def _chosen(option: str, wanted: str, offered: Sequence[str], hop: Hop) -> tuple[str, ...]:
    """Return the algorithms of paramiko that a list of ssh_config(5) selects, in its order.

    The list is a,b or +a (in addition), -a (without) or ^a (first). Raises DeviceError if none is
    left.
    """
    patterns = wanted.lstrip("+-^").split(",")
    named = [one for pattern in patterns for one in offered if fnmatch.fnmatchcase(one, pattern)]
    others = [one for one in offered if one not in named]
    chosen = {"+": offered, "-": others, "^": [*named, *others]}.get(wanted[:1], named)
    if not chosen:
        raise DeviceError(
            f"{hop.place} is to be spoken to in algorithms that farm has not",
            f"{option} {wanted}",
            f"allow one of these in ~/.ssh/config: {', '.join(offered)}",
        )
    return tuple(dict.fromkeys(chosen))
