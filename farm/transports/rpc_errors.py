"""Translate errors of TVM's RPC and of sockets into FarmErrors; no other module does this.

An agent's errors have codes (see `agent_errors`). TVM raises few exception classes for many causes,
which differ only in their message: the first row that matches decides.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farm.errors import DeadlineError, DeviceError, FarmError, LinkError
from farm.processes.deadline import Deadline
from farm.transports.agent import errors as agent_errors
from farm.transports.agent.errors import DISK_FULL, NO_MEMORY, SESSION_ENDED
from farm.types import Device


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """A row of the table of errors.

    `kind` and `message` are regular expressions for an exception's class name and message; `error`,
    `what` and `fix` say what it means to the user.
    """

    kind: str
    message: str
    error: type[FarmError]
    what: str
    fix: str

    def fits(self, kind: str, message: str) -> bool:
        """Return whether an exception is one of this row."""
        return bool(re.fullmatch(self.kind, kind) and re.search(self.message, message))


_STACK = re.compile(
    r"(File |\[bt\]|Stack trace|at |\d+: |Traceback|\^|RPCError: Error caught from RPC call)"
)
_ANY = r"\w*"
_LONGER = "give it longer with --deadline SECONDS"
_LOOK = "check that the board is on and what it says: farm devices -v"
_URL = "correct `url` of {name}, or its option `key` or `key_file`"
_START = "start the agent there (farm agent), or correct `url` of {name}"

# Of TVM, of the kernel and of the C++ library: an agent may report these without a code
SYSTEM_ROWS = (
    ErrorRow(
        "RPCSessionTimeoutError",
        "",
        DeadlineError,
        "the session on {name} ran out of time",
        _LONGER,
    ),
    ErrorRow(
        "AgentAnswerError",
        "",
        DeviceError,
        "{name} answers what no agent answers",
        "what runs at {url} is faulty or hostile: look at what runs there before you use it again",
    ),
    ErrorRow(
        _ANY, "session has expired", DeadlineError, "the session on {name} ran out of time", _LONGER
    ),
    ErrorRow(
        _ANY,
        "No space left",
        DISK_FULL.error,
        DISK_FULL.what,
        DISK_FULL.fix,
    ),
    ErrorRow(
        _ANY,
        "Cannot find ffi::Function|Invalid VM file format",
        DeviceError,
        "the TVM of {name} cannot load what the TVM of this farm has built",
        "run the same version of TVM there as here, or farm's agent: farm agent",
    ),
    ErrorRow(
        _ANY,
        "bad_alloc|Cannot allocate memory",
        NO_MEMORY.error,
        NO_MEMORY.what,
        NO_MEMORY.fix,
    ),
)
ROWS = (
    ErrorRow("ConnectionRefusedError", "", DeviceError, "nobody listens at {url}", _START),
    ErrorRow(
        "gaierror", "", DeviceError, "the host of {url} has no address", "correct `url` of {name}"
    ),
    ErrorRow("TimeoutError|timeout", "", DeadlineError, "{name} does not answer", _LOOK),
    ErrorRow(
        "Connection(Reset|Aborted)Error|BrokenPipeError|EOFError",
        "",
        LinkError,
        "the connection to {name} broke",
        _LOOK,
    ),
    ErrorRow(
        _ANY,
        "is not TVM RPC server|matches key|RecvAll|in use|Cannot request",
        DeviceError,
        "what listens at {url} is no server for {name}",
        _URL,
    ),
    ErrorRow(
        _ANY,
        # If the connection closes in the middle of a call, TVM's client complains about an invalid
        # reply: RPCCode.
        r"RPCCode::k|kShutdown|[Cc]onnection (was previously )?(closed|reset)"
        r"|Channel closes|SockChannel::(Send|Recv)",
        SESSION_ENDED.error,
        SESSION_ENDED.what,
        SESSION_ENDED.fix,
    ),
    ErrorRow(
        _ANY,
        "[Cc]annot connect|[Cc]onnection refused|[Uu]nable to connect",
        DeviceError,
        "{url} cannot be reached",
        _START,
    ),
    ErrorRow("OSError", "", DeviceError, "{name} cannot be reached", _LOOK),
)
_UNKNOWN = ErrorRow(_ANY, "", DeviceError, "{name} reported an error", _LOOK)


def session_deadline_error(device: Device, deadline: Deadline) -> DeadlineError:
    """Return the error for a session that ran out of time."""
    return DeadlineError(
        f"the session on {device.name} ran out of time",
        f"{deadline.seconds:.0f} s are over",
        "give it longer with --deadline SECONDS",
    )


def agent_exit_in_words(device: Device, status: int | None) -> str:
    """Say how an agent ended, by the exit code of the shell that ran it; None if it runs on."""
    if not status:
        return f"the session on {device.name} ended"
    how = f"of signal {status - 128}" if status > 128 else f"with exit code {status}"
    return f"the agent on {device.name} ended {how}"


def session_ended_error(device: Device, what: str, log: str, otherwise: str) -> LinkError:
    """Return the error for a session that has ended, as its agent's log tells.

    `otherwise` is the fix if the log names no known signal.
    """
    end = agent_errors.parse_last_session_end(log)
    return LinkError(what, log, end.fix(device.name, otherwise) if end else otherwise)


def translate_error(device: Device, cause: Exception) -> FarmError:
    """Return the FarmError for an exception of another library, or for what an agent reports."""
    kind, message = type(cause).__name__, str(cause)
    meaning = (
        agent_errors.find_error_meaning_by_code(message)
        or _first(SYSTEM_ROWS, kind, message)
        or agent_errors.find_error_meaning_by_text(message)
        or _first(ROWS, kind, message)
        or _UNKNOWN
    )
    names = {"name": device.name, "url": device.url}
    return meaning.error(
        meaning.what.format(**names),
        f"{kind}: {shorten_tvm_message(message)}",
        meaning.fix.format(**names),
    )


def _first(rows: Sequence[ErrorRow], kind: str, message: str) -> ErrorRow | None:
    return next((row for row in rows if row.fits(kind, message)), None)


@contextlib.contextmanager
def translate_errors(device: Device) -> Iterator[None]:
    """Translate any exception that a block raises while it talks to a device into a FarmError."""
    try:
        yield
    except FarmError:
        raise
    except Exception as exc:
        raise translate_error(device, exc) from exc


def shorten_tvm_message(message: str, width: int = 500) -> str:
    """Return the text of a TVM error message without its stack, cut to the last `width` letters."""
    lines = [line.strip() for line in message.strip().splitlines()]
    telling = [line for line in lines if line and not _STACK.match(line)]
    return " ".join(telling)[-width:]
