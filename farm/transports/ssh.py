"""`ssh://[user@]host[:port]`: a board with an SSH server, where farm puts and starts its agent. The tunnel does the work (see there)."""

from __future__ import annotations

import contextlib
import pickle
import secrets
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import process
from farm.asking import Ask, patiently
from farm.deadline import Deadline
from farm.errors import DeadlineError, DeviceError, FarmError, InternalError, LinkError
from farm.lightly import tvm_rpc
from farm.transports import direct
from farm.transports.errors import translate
from farm.transports.readiness import State
from farm.transports.rpc_client import connect
from farm.transports.ssh_config import route
from farm.transports.ssh_upload import carry
from farm.types import Device

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from subprocess import Popen

ORDER, PORT, ERROR, LOG = "tunnel.order", "tunnel.port", "tunnel.error", "agent.log"  # files that the tunnel and we exchange
_START = "import sys; sys.path[:] = {path!r}; from farm.transports import tunnel; tunnel.main()"
_POLL_S = 0.01
_LAST_WORDS_S = 2.0  # a tunnel whose agent has ended lives on, and each such error waits so long


@contextlib.contextmanager
def open(device: Device, agent: Path | None, scratch: Path, timeout_s: float, ask: Ask) -> Iterator[Any]:  # noqa: A001
    """Start the tunnel, connect through it, and end it when the block ends. What breaks on the way is told in the tunnel's words."""
    if agent is None:
        there = state(device)
        raise DeviceError(f"{device.name} is {there.word}", there.why or "it has no agent", there.fix)
    for name in (PORT, ERROR, LOG):
        (scratch / name).unlink(missing_ok=True)
    key = secrets.token_hex(16)
    (scratch / ORDER).write_bytes(pickle.dumps((device, agent, timeout_s, key)))  # not on a command line, where everybody could read it
    tvm_rpc()  # it may take its time, and an agent does not wait long for the first word

    with _tunnel(scratch) as (child, pipe):
        port = _port(device, child, scratch, Deadline(timeout_s), pipe, ask)
        try:
            yield connect("127.0.0.1", port, key, timeout_s), partial(carry, pipe)
        except FarmError:
            raise
        except Exception as exc:
            if isinstance(translate(device, exc), LinkError):
                _await_end(child, scratch)
            if error := _error(scratch):
                raise error from exc
            if child.poll() is not None:
                raise LinkError(f"the tunnel to {device.name} ended", f"exit code {child.returncode}", "run the command again") from exc
            raise


def _await_end(child: Popen[bytes], scratch: Path) -> None:
    """Give the tunnel the moment that passes between what its client notices and what is to be known of its end."""
    deadline = Deadline(_LAST_WORDS_S)
    while child.poll() is None and not (scratch / ERROR).exists() and not deadline.expired:
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _tunnel(scratch: Path) -> Iterator[tuple[Popen[bytes], Connection]]:
    """The tunnel's process, and our end of a pipe whose other end it alone has."""
    program = _START.format(path=[entry for entry in sys.path if entry])
    ours, theirs = Pipe()
    with ours, contextlib.ExitStack() as stack:
        with theirs:
            command: list[str | Path] = [sys.executable, "-c", program, scratch, str(theirs.fileno())]
            child = stack.enter_context(process.running(command, log=scratch / "tunnel.log", pass_fds=[theirs.fileno()]))
        yield child, ours


def state(device: Device) -> State:
    """Ready if the first SSH server on the way can be reached; the rest is known when a session is asked for."""
    if device.profile.agent is None:
        return State("unavailable", False, f"profile {device.profile.name} has no native agent", "reach the board by rpc:// or tracker://")
    try:
        first = route(device.url)[0]
    except DeviceError as error:
        return State("unavailable", False, f"{error.what}: {error.why}", error.fix)
    if first.command:  # only an attempt would tell
        return State("ready", True)
    try:
        direct.probe(first.host, first.port)
    except OSError as exc:
        return State("offline", False, f"{first.host}:{first.port}: {exc.strerror or exc}", f"check that this works: ssh {device.url}")
    return State("ready", True)


def _port(device: Device, child: Popen[bytes], scratch: Path, deadline: Deadline, questions: Connection, ask: Ask) -> int:
    """The port at which the tunnel listens, once it does. What it asks is passed on meanwhile."""
    ask = patiently(ask, deadline)
    while not (scratch / PORT).exists():
        ended = child.poll() is not None
        with contextlib.suppress(EOFError, OSError):  # it has ended this moment
            if questions.poll():
                questions.send(ask(questions.recv()))
        if error := _error(scratch):
            raise error
        if ended:
            log = process.last_lines((scratch / "tunnel.log").read_text(errors="replace"))
            raise InternalError(f"the tunnel to {device.name} ended with status {child.returncode}", log)
        if deadline.expired:
            raise DeadlineError(
                f"the way to {device.name} was not open after {deadline.seconds:.0f} s", "", "give it longer with --deadline SECONDS"
            )
        time.sleep(_POLL_S)
    return int((scratch / PORT).read_text())


def _error(scratch: Path) -> FarmError | None:
    """What the tunnel has to say about its end."""
    file = scratch / ERROR
    if not file.exists():
        return None
    error: FarmError = pickle.loads(file.read_bytes())
    return error
