"""Translate errors of paramiko, and of sockets under SSH, into FarmErrors.

No other module does this. The first row of `ROWS` that matches decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from farm.errors import DeadlineError, DeviceError, FarmError, LinkError
from farm.transports.rpc_errors import ErrorRow
from farm.transports.ssh.config import Hop

_ANY = r"\w+"
_SEE = "see what this says: ssh -v -p {port} {user}@{host}"
_KEYS = (
    "ssh-copy-id -p {port} {user}@{host}, or name the right `user@` in the url and the right "
    "IdentityFile in ~/.ssh/config"
)
_ON = "check that the board is on and in the network: ping {host}"
_CONFIG = "correct ~/.ssh/config"

ROWS = (
    ErrorRow(
        "SSHException|AuthenticationException",
        "[Aa]gent|signing",
        DeviceError,
        "the SSH agent does not help to log in to {place}",
        "see what it has: ssh-add -l, or name a key file by IdentityFile in ~/.ssh/config",
    ),
    ErrorRow(
        "UnknownKeyType|BERException",
        "",
        DeviceError,
        "a key for {place} cannot be read",
        "name another IdentityFile in ~/.ssh/config",
    ),
    ErrorRow(
        "PasswordRequiredException",
        "",
        DeviceError,
        "the key for {place} is locked by a passphrase",
        "ssh-add, which asks for it once",
    ),
    ErrorRow(
        "SSHException",
        "encrypted|passphrase",
        DeviceError,
        "the key for {place} is locked by a passphrase",
        "ssh-add, which asks for it once",
    ),
    ErrorRow(
        "BadAuthenticationType",
        "",
        DeviceError,
        "{place} does not accept keys",
        "let its SSH server accept keys (PubkeyAuthentication)",
    ),
    ErrorRow(
        "PartialAuthentication",
        "",
        DeviceError,
        "{place} wants more than a key",
        "let its SSH server be content with a key",
    ),
    ErrorRow(
        "AuthenticationException",
        "[Tt]imeout",
        DeadlineError,
        "{place} does not answer the login",
        _SEE,
    ),
    ErrorRow(
        "AuthenticationException|AuthFailure|UnableToAuthenticate",
        "",
        DeviceError,
        "{place} refuses the login",
        _KEYS,
    ),
    ErrorRow(
        "SSHException",
        "No authentication methods",
        DeviceError,
        "there is no key to log in to {place} with",
        f"ssh-keygen, then {_KEYS}",
    ),
    ErrorRow(
        "BadHostKeyException",
        "",
        DeviceError,
        "the host key of {place} has changed",
        "ssh-keygen -R {key_name}",
    ),
    ErrorRow(
        "InvalidHostKey",
        "",
        DeviceError,
        "a line of a known_hosts file cannot be read",
        "correct or remove that line",
    ),
    ErrorRow(
        "IncompatiblePeer",
        "",
        DeviceError,
        "{place} and this farm have no algorithm in common",
        "update the SSH server of the board",
    ),
    ErrorRow(
        "MessageOrderError",
        "",
        DeviceError,
        "{place} breaks the SSH protocol",
        "update its SSH server; suspect the network in between",
    ),
    ErrorRow(
        "ChannelException",
        "prohibited",
        DeviceError,
        "{place} forbids what farm needs of it",
        "allow commands and TcpForwarding there",
    ),
    ErrorRow(
        "ChannelException",
        "",
        DeviceError,
        "{place} cannot go on to the next host",
        "check the ProxyJump of ~/.ssh/config",
    ),
    ErrorRow(
        "ProxyCommandFailure|CouldNotCanonicalize|ConfigParseError",
        "",
        DeviceError,
        "~/.ssh/config cannot be followed",
        _CONFIG,
    ),
    ErrorRow(
        "SSHException",
        "banner|Indecipherable",
        DeviceError,
        "what listens at {host}:{port} is no SSH server",
        "correct `url` of {name}",
    ),
    ErrorRow(
        "SSHException",
        "[Tt]ime(d )?out|No existing session",
        DeadlineError,
        "{place} does not answer",
        _ON,
    ),
    ErrorRow(
        "SSHException",
        "Incompatible|[Nn]egotiation",
        DeviceError,
        "{place} and this farm have no algorithm in common",
        _SEE,
    ),
    ErrorRow(
        "NoValidConnectionsError|ConnectionRefusedError",
        "",
        DeviceError,
        "nobody listens at {host}:{port}",
        "start the SSH server there",
    ),
    ErrorRow(
        "gaierror",
        "",
        DeviceError,
        "{host} has no address",
        "correct `url` of {name}, or HostName in ~/.ssh/config",
    ),
    # Raised by the kernel: packets are no longer acknowledged
    ErrorRow("TimeoutError", r"\[Errno", LinkError, "the SSH connection to {place} broke", _SEE),
    ErrorRow(
        "SFTPError",
        "",
        DeviceError,
        "{place} does not take files",
        "let its SSH server have the subsystem sftp",
    ),
    ErrorRow("TimeoutError|timeout|PipeTimeout", "", DeadlineError, "{place} does not answer", _ON),
    ErrorRow(
        "EOFError|SSHException|NeedRekeyException|Connection\\w+Error|BrokenPipeError",
        "",
        LinkError,
        "the SSH connection to {place} broke",
        _SEE,
    ),
    ErrorRow("OSError", "", DeviceError, "{host}:{port} cannot be reached", _ON),
    ErrorRow(_ANY, "", DeviceError, "the SSH connection to {place} failed", _SEE),
)


def translate_error(name: str, hop: Hop, cause: BaseException) -> FarmError:
    """Return the FarmError for an error that a hop on the way to the device `name` caused."""
    kind, message = type(cause).__name__, str(cause)
    row = next(row for row in ROWS if row.fits(kind, message))
    names = {
        "name": name,
        "place": hop.place,
        "host": hop.host,
        "port": hop.port,
        "user": hop.user,
        "key_name": f'"{hop.key_name}"',
    }
    return row.error(
        row.what.format(**names),
        f"{kind}: {message or 'it ended without a word'}"[:500],
        row.fix.format(**names),
    )


def broken_connection_error(name: str, hop: Hop, cause: BaseException) -> FarmError:
    """Return the FarmError for an error that ended an established connection.

    Errors of the network become a LinkError: they do not mean that the board is unreachable.
    """
    error = translate_error(name, hop, cause)
    if not isinstance(cause, (OSError, EOFError)) or isinstance(error, LinkError):
        return error
    return LinkError(
        f"the SSH connection to {hop.place} broke",
        error.why,
        _SEE.format(host=hop.host, port=hop.port, user=hop.user),
    )


@contextlib.contextmanager
def translate_errors(name: str, hop: Hop) -> Iterator[None]:
    """Translate any exception that a block raises while it talks to a hop into a FarmError."""
    try:
        yield
    except FarmError:
        raise
    except Exception as exc:
        raise translate_error(name, hop, exc) from exc
