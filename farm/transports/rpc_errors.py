"""Translate errors of TVM's RPC and of sockets into FarmErrors; no other module does this.

TVM raises few exception classes for many causes, which differ only in their message. The first row
of `ROWS` that matches decides; the last row matches everything.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from farm.errors import BuildError, DeadlineError, DeviceError, FarmError, LinkError
from farm.types import Device


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table of errors.

    `kind` and `message` are regular expressions for an exception's class name and message; `error`,
    `what` and `fix` say what it means to the user.
    """

    kind: str
    message: str
    error: type[FarmError]
    what: str
    fix: str


_STACK = re.compile(
    r"(File |\[bt\]|Stack trace|at |\d+: |Traceback|\^|RPCError: Error caught from RPC call)"
)
_ANY = r"\w*"
_LONGER = "give it longer with --deadline SECONDS"
_LOOK = "check that the board is on and what it says: farm devices -v"
_URL = "correct `url` of {name}, or its option `key` or `key_file`"
_START = "start the agent there (farm agent), or correct `url` of {name}"
_BUDGET = "farm undeploy --device {name} MODEL, or raise `store_budget_mb` in its options"
_DEPLOYED = "see what is there: farm deployments --device {name}"
_PLAIN = (
    "give it a name of at most 100 letters, digits and signs, without slashes and with no dot in "
    "front"
)

ROWS = (
    Row(
        "RPCSessionTimeoutError",
        "",
        DeadlineError,
        "the session on {name} ran out of time",
        _LONGER,
    ),
    Row(
        "AgentAnswerError",
        "",
        DeviceError,
        "{name} answers what no agent answers",
        "what runs at {url} is faulty or hostile: look at what runs there before you use it again",
    ),
    Row(
        _ANY, "session has expired", DeadlineError, "the session on {name} ran out of time", _LONGER
    ),
    Row(
        _ANY,
        "No space left",
        DeviceError,
        "the disk of {name} is full",
        "free space there, or set `store` and `work_dir` in its options",
    ),
    Row(
        _ANY,
        "out of memory|bad_alloc|Cannot allocate memory",
        DeviceError,
        "{name} has not the memory for that",
        "a smaller model or batch, or end what else runs there",
    ),
    Row(
        _ANY,
        "the GPU failed",
        DeviceError,
        "the GPU of {name} failed",
        (
            "run the command again: each session is a fresh one; where it stays so, look there "
            "with nvidia-smi and dmesg (Xid)"
        ),
    ),
    Row(
        _ANY,
        "no GPU: ",
        DeviceError,
        "the GPU of {name} cannot be used",
        "farm doctor --device {name}",
    ),
    Row(
        _ANY,
        "cannot load library|soft-float|library is for",
        BuildError,
        "{name} refuses the library",
        "correct `profile` of {name}",
    ),
    Row(
        _ANY,
        "Cannot find ffi::Function|Invalid VM file format",
        DeviceError,
        "the TVM of {name} cannot load what the TVM of this farm has built",
        "run the same version of TVM there as here, or farm's agent: farm agent",
    ),
    Row(
        _ANY,
        "digest mismatch",
        DeviceError,
        "what arrived on {name} is not what was sent",
        "run the command again, then suspect its memory",
    ),
    Row(
        _ANY,
        "too many for a profile",
        DeviceError,
        "{name} cannot time each kernel of that",
        "measure it as a whole: farm bench",
    ),
    Row(
        _ANY,
        "hold the samples|the samples have|answers to the samples",
        DeviceError,
        "{name} cannot run these samples in one call",
        "a smaller model, or samples of the model's own shape",
    ),
    Row(
        _ANY, "the store's budget", DeviceError, "the store of {name} has no room for that", _BUDGET
    ),
    Row(
        _ANY,
        "may hold .* bytes",
        DeviceError,
        "the session's folder on {name} is full",
        "start its agent with a larger --max-work",
    ),
    Row(
        _ANY,
        "nothing named .* is deployed",
        DeviceError,
        "that is not deployed on {name}",
        _DEPLOYED,
    ),
    Row(_ANY, "has no (earlier )?release", DeviceError, "{name} has no such release", _DEPLOYED),
    Row(
        _ANY,
        "the store has no file|is damaged",
        DeviceError,
        "{name} has lost a file of the model",
        "farm deploy --device {name} MODEL",
    ),
    Row(
        _ANY,
        "not a manifest",
        DeviceError,
        "{name} refuses the description of the model",
        "shorten its labels; 1 MiB is the most",
    ),
    Row(
        _ANY,
        "plain file name|session's work directory",
        DeviceError,
        "{name} refuses a name",
        _PLAIN,
    ),
    Row(
        _ANY,
        "nothing was begun|leads past|leaves a gap|incomplete: of|a file cannot have|not a SHA-256",
        LinkError,
        "what was sent to {name} has not arrived whole",
        "run the command again: it goes on where it stopped",
    ),
    Row(
        _ANY,
        "a packet of the client has no sense",
        DeviceError,
        "{name} does not understand what it was sent",
        "run the command again; no file or tensor may have 2 GiB",
    ),
    Row(
        _ANY,
        "another session has held",
        DeviceError,
        "another session has the store of {name}",
        "run the command again when that one is done",
    ),
    Row(
        _ANY,
        r"cannot (read|write|make|remove|sync|keep|switch|lock) |(?<!\w)(read|write|close|fsync|fork|/dev/urandom|chdir.*): \w",  # noqa: E501
        DeviceError,
        "{name} cannot use one of its files or folders",
        "check its disk, and who may write to the folders `store` and `work_dir` of its options",
    ),
    Row(
        _ANY,
        "a core takes one|cores are big, little|has no little cores|is not there, or not for this "
        "process"
        "|this session has begun with|: no range|threads: a number above 0|cannot bind a thread",
        DeviceError,
        "{name} cannot compute with these threads and cores",
        (
            "choose others with --threads and --cores, or in its options; it tells its cores: "
            "farm devices -v"
        ),
    ),
    Row("ConnectionRefusedError", "", DeviceError, "nobody listens at {url}", _START),
    Row("gaierror", "", DeviceError, "the host of {url} has no address", "correct `url` of {name}"),
    Row("TimeoutError|timeout", "", DeadlineError, "{name} does not answer", _LOOK),
    Row(
        "Connection(Reset|Aborted)Error|BrokenPipeError|EOFError",
        "",
        LinkError,
        "the connection to {name} broke",
        _LOOK,
    ),
    Row(
        _ANY,
        "is not TVM RPC server|matches key|RecvAll|in use|Cannot request",
        DeviceError,
        "what listens at {url} is no server for {name}",
        _URL,
    ),
    Row(
        _ANY,
        # If the connection closes in the middle of a call, TVM's client complains about an invalid
        # reply: RPCCode.
        r"the client said nothing|RPCCode::k|kShutdown|[Cc]onnection (was previously )?(closed|reset)"  # noqa: E501
        r"|Channel closes|SockChannel::(Send|Recv)",
        LinkError,
        "the agent of {name}, or its session, ended",
        _LOOK,
    ),
    Row(
        _ANY,
        "[Cc]annot connect|[Cc]onnection refused|[Uu]nable to connect",
        DeviceError,
        "{url} cannot be reached",
        _START,
    ),
    Row("OSError", "", DeviceError, "{name} cannot be reached", _LOOK),
    Row(_ANY, "", DeviceError, "{name} reported an error", _LOOK),
)

_SIGNALS = {  # signals by which a session's process may die, as named by strsignal(3), with the fix
    "Illegal instruction": (
        "correct `profile` of {name}: its code is for another core than the board has (farm "
        "devices -v)"
    ),
    "Killed": "check the memory of the board (dmesg there), then run the command again",
    "Segmentation fault": (
        "the model's code did that, or the board: farm doctor --device {name}, farm bisect "
        "--device {name} MODEL"
    ),
}


def ended(device: Device, what: str, why: str, fix: str) -> LinkError:
    """Return the error for a session whose agent reported in `why` how the session ended.

    `fix` is used if the reason contains no known signal.
    """
    known = next(
        (
            advice.format(name=device.name)
            for signal, advice in _SIGNALS.items()
            if f"died of {signal}" in why
        ),
        fix,
    )
    return LinkError(what, why, known)


def translate(device: Device, cause: Exception) -> FarmError:
    """Return the FarmError for an exception of another library."""
    kind, message = type(cause).__name__, str(cause)
    row = next(
        row for row in ROWS if re.fullmatch(row.kind, kind) and re.search(row.message, message)
    )
    names = {"name": device.name, "url": device.url}
    return row.error(
        row.what.format(**names), f"{kind}: {essence(message)}", row.fix.format(**names)
    )


@contextlib.contextmanager
def translated(device: Device) -> Iterator[None]:
    """Translate any exception that a block raises while it talks to a device into a FarmError."""
    try:
        yield
    except FarmError:
        raise
    except Exception as exc:
        raise translate(device, exc) from exc


def essence(message: str, width: int = 500) -> str:
    """Return the text of a TVM error message without its stack, cut to the last `width` letters."""
    lines = [line.strip() for line in message.strip().splitlines()]
    telling = [line for line in lines if line and not _STACK.match(line)]
    return " ".join(telling)[-width:]
