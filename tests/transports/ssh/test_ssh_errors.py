"""Every error of paramiko, and of sockets under it, has words of its own."""

from __future__ import annotations

import errno
import importlib
import inspect
import pkgutil
import socket
from pathlib import Path

import paramiko
import pytest

from farm.errors import DeadlineError, DeviceError, LinkError
from farm.transports.ssh.config import Hop
from farm.transports.ssh.errors import ROWS, broken_connection_error, translate_error

HOP = Hop("10.0.0.5", 22, "pi", "10.0.0.5", (Path("known_hosts"),))
SOCKETS = (
    *(
        ConnectionRefusedError,
        ConnectionResetError,
        ConnectionAbortedError,
        BrokenPipeError,
        EOFError,
    ),
    *(TimeoutError, socket.gaierror, OSError),
)


def classes() -> list[type[Exception]]:
    """Every class of errors that paramiko defines, wherever, and those of sockets."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(paramiko.__path__, "paramiko.")
        if not _is_of_windows(found.name)
    ]
    everything = {
        one
        for module in modules
        for _, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, Exception)
    }
    return [
        *sorted(
            (one for one in everything if one.__module__.startswith("paramiko")),
            key=lambda one: one.__name__,
        ),
        *SOCKETS,
    ]


def _is_of_windows(module: str) -> bool:
    return "win" in module.rpartition(".")[2]


def made(kind: type[Exception], message: str = "") -> Exception:
    """An error of a class, whatever its constructor wants."""
    error = kind.__new__(kind)
    error.args = (message,)
    if kind.__str__ not in (Exception.__str__, BaseException.__str__, OSError.__str__):
        return type(kind.__name__, (Exception,), {})(message)
    return error


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_every_class_has_a_row_other_than_the_last(kind: type[Exception]) -> None:
    assert len(classes()) > 25
    error = translate_error("pi3", HOP, made(kind))
    assert isinstance(error, DeviceError)
    assert error.what != ROWS[-1].what.format(place=HOP.place), (
        "only what nobody knows gets the last row"
    )
    assert kind.__name__ in error.why
    assert error.fix
    assert "{" not in error.what + error.fix


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.message}")
def test_no_row_is_hidden_by_one_before_it(row: object) -> None:
    samples = {
        "[Aa]gent|signing": "key cannot be used for signing",
        r"\[Errno": "[Errno 110] Connection timed out",
        "encrypted|passphrase": "private key file is encrypted",
        "[Tt]imeout": "Authentication timeout.",
        "No authentication methods": "No authentication methods available",
        "prohibited": "Administratively prohibited",
        "banner|Indecipherable": "Error reading SSH protocol banner",
        "[Tt]ime(d )?out|No existing session": "Timeout opening channel.",
        "Incompatible|[Nn]egotiation": "Incompatible ssh peer (no acceptable kex algorithm)",
        "": "",
    }
    assert isinstance(row, type(ROWS[0]))
    kind = {
        r"\w+": "Whatever",
        r"EOFError|SSHException|NeedRekeyException|Connection\w+Error|BrokenPipeError": "EOFError",
    }.get(row.kind, row.kind.split("|")[0])
    error = translate_error("pi3", HOP, type(kind, (Exception,), {})(samples[row.message]))
    assert error.what.startswith(row.what.split("{")[0])
    assert error.fix.startswith(row.fix.split("{")[0])


def test_a_timeout_is_a_deadline() -> None:
    assert isinstance(translate_error("pi3", HOP, TimeoutError("timed out")), DeadlineError)
    assert isinstance(
        translate_error("pi3", HOP, paramiko.SSHException("Timeout opening channel.")),
        DeadlineError,
    )
    assert not isinstance(translate_error("pi3", HOP, ConnectionRefusedError()), DeadlineError)


@pytest.mark.parametrize(
    "cause",
    [
        OSError(errno.ETIMEDOUT, "Connection timed out"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        EOFError("it was closed from the other side"),
        paramiko.SSHException("Server connection dropped: "),
    ],
    ids=lambda cause: str(cause)[:30],
)
def test_what_ends_a_connection_that_was_there_is_a_broken_link(cause: Exception) -> None:
    error = broken_connection_error("pi3", HOP, cause)
    assert type(error) is LinkError
    assert "broke" in error.what and str(cause) in error.why and "{" not in error.fix


def test_a_protocol_that_is_broken_is_no_broken_link() -> None:
    assert (
        type(broken_connection_error("pi3", HOP, paramiko.MessageOrderError("unexpected")))
        is DeviceError
    )


def test_a_connection_that_nobody_acknowledges_is_a_broken_link() -> None:
    assert (
        type(translate_error("pi3", HOP, OSError(errno.ETIMEDOUT, "Connection timed out")))
        is LinkError
    )
    assert type(translate_error("pi3", HOP, TimeoutError("timed out"))) is DeadlineError
