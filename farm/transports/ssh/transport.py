"""`ssh://[user@]host[:port]`: a board with an SSH server, on which farm installs its agent.

A separate process, the tunnel (see tunnel.py), installs and starts the agent and holds the SSH
connection.
"""

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

from farm import subprocesses
from farm.deadline import Deadline
from farm.errors import DeadlineError, DeviceError, FarmError, InternalError, LinkError
from farm.prompts import Ask, patiently
from farm.transports import rpc as transports_rpc
from farm.transports.rpc_client import session
from farm.transports.rpc_errors import translate
from farm.transports.ssh.config import route
from farm.transports.ssh.upload import carry
from farm.transports.state import State
from farm.types import Device

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from subprocess import Popen

# Files by which this process and the tunnel communicate
ORDER, PORT, ERROR, LOG = "tunnel.order", "tunnel.port", "tunnel.error", "agent.log"
_START = "import sys; sys.path[:] = {path!r}; from farm.transports.ssh import tunnel; tunnel.main()"
_POLL_S = 0.01
# A tunnel whose agent has ended keeps running, and each such error waits this long
_LAST_WORDS_S = 2.0


@contextlib.contextmanager
def open(  # noqa: A001
    device: Device,
    agent: Path | None,
    scratch: Path,
    timeout_s: float,
    ask: Ask,
    greeting_s: float | None,  # noqa: ARG001
) -> Iterator[Any]:
    """Start the tunnel, connect through it, and stop it when the block ends.

    If the session breaks, the error is the one that the tunnel reports.
    """
    if agent is None:
        there = state(device)
        raise DeviceError(f"{device.name} is {there.word}", there.why or "it has no agent", there.fix)
    for name in (PORT, ERROR, LOG):
        (scratch / name).unlink(missing_ok=True)
    key = secrets.token_hex(16)
    # Not on the command line, which every user could read
    (scratch / ORDER).write_bytes(pickle.dumps((device, agent, timeout_s, key)))
    with _tunnel(scratch) as (child, pipe):
        port = _port(device, child, scratch, Deadline(timeout_s), pipe, ask)
        try:
            with session(device, "127.0.0.1", port, key, timeout_s, None) as opened:
                yield opened, partial(carry, pipe)
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
    """Wait for the tunnel to report its end, which the client notices a moment earlier."""
    deadline = Deadline(_LAST_WORDS_S)
    while child.poll() is None and not (scratch / ERROR).exists() and not deadline.expired:
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _tunnel(scratch: Path) -> Iterator[tuple[Popen[bytes], Connection]]:
    """Start the tunnel's process; yield it and our end of a pipe to it."""
    program = _START.format(path=[entry for entry in sys.path if entry])
    ours, theirs = Pipe()
    with ours, contextlib.ExitStack() as stack:
        with theirs:
            command: list[str | Path] = [sys.executable, "-c", program, scratch, str(theirs.fileno())]
            child = stack.enter_context(subprocesses.running(command, log=scratch / "tunnel.log", pass_fds=[theirs.fileno()]))
        yield child, ours


def state(device: Device) -> State:
    """Return `ready` if the first SSH server on the way answers; a session alone shows the rest."""
    if device.profile.agent is None:
        return State("unavailable", False, f"profile {device.profile.name} has no native agent", "reach the board by rpc:// or tracker://")
    try:
        first = route(device.url)[0]
    except DeviceError as error:
        return State("unavailable", False, f"{error.what}: {error.why}", error.fix)
    if first.command:  # whether a ProxyCommand works is known only by running it
        return State("ready", True)
    try:
        transports_rpc.probe(first.host, first.port)
    except OSError as exc:
        return State("offline", False, f"{first.host}:{first.port}: {exc.strerror or exc}", f"check that this works: ssh {device.url}")
    return State("ready", True)


def _port(device: Device, child: Popen[bytes], scratch: Path, deadline: Deadline, questions: Connection, ask: Ask) -> int:
    """Return the port of the tunnel once it listens; answer its prompts meanwhile."""
    ask = patiently(ask, deadline)
    while not (scratch / PORT).exists():
        ended = child.poll() is not None
        with contextlib.suppress(EOFError, OSError):  # the tunnel has just ended
            if questions.poll():
                questions.send(ask(questions.recv()))
        if error := _error(scratch):
            raise error
        if ended:
            log = subprocesses.last_lines((scratch / "tunnel.log").read_text(errors="replace"))
            raise InternalError(f"the tunnel to {device.name} ended with status {child.returncode}", log)
        if deadline.expired:
            raise DeadlineError(
                f"the way to {device.name} was not open after {deadline.seconds:.0f} s", "", "give it longer with --deadline SECONDS"
            )
        time.sleep(_POLL_S)
    return int((scratch / PORT).read_text())


def _error(scratch: Path) -> FarmError | None:
    """Return the error by which the tunnel has reported its end, or None."""
    file = scratch / ERROR
    if not file.exists():
        return None
    error: FarmError = pickle.loads(file.read_bytes())
    return error
