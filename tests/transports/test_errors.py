"""Errors of TVM's RPC and of sockets, as they were seen, become ours."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

import farm.agent
from farm.errors import BuildError, DeadlineError, DeviceError, FarmError, LinkError
from farm.transports.rpc_errors import ROWS, essence, translate
from farm.types import Device, Profile

DEVICE = Device("pi3", Profile("rasp3b", {}, ""), "rpc://10.0.0.5:9090")


def made(kind: str, message: str) -> Exception:
    return type(kind, (Exception,), {})(message)


SEEN = [
    (
        made("RPCSessionTimeoutError", "the session's 5.0 s are over"),
        DeadlineError,
        "ran out of time",
    ),
    (made("InternalError", "RPCError: the session has expired"), DeadlineError, "ran out of time"),
    (
        made("InternalError", "cannot write x: write: No space left on device"),
        DeviceError,
        "disk of pi3 is full",
    ),
    (
        made("InternalError", "cannot load library m.so: the library is for x86_64"),
        BuildError,
        "refuses the library",
    ),
    (
        made(
            "RPCError",
            "the GPU failed: cuMemAlloc: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal address)",
        ),
        DeviceError,
        "GPU of pi3 failed",
    ),
    (
        made("RPCError", "no GPU: it has 1 GPU, counted from 0; 2 is asked for"),
        DeviceError,
        "GPU of pi3 cannot be used",
    ),
    (
        made(
            "RPCError",
            "InternalError: Check failed: (func.has_value()) is false: Error: Cannot find "
            "ffi::Function vm.builtin.new in either Relax VM kernel library, or in TVM runtime",
        ),
        DeviceError,
        "TVM of pi3 cannot load",
    ),
    (made("InternalError", "digest mismatch: a has 1, not 2"), DeviceError, "not what was sent"),
    (
        made("InternalError", "out of memory: the session may use 5 bytes (--max-memory)"),
        DeviceError,
        "not the memory",
    ),
    (made("InternalError", "std::bad_alloc"), DeviceError, "not the memory"),
    (
        made(
            "InternalError",
            "cannot load library: it wants 9 bytes of memory: Cannot allocate memory",
        ),
        DeviceError,
        "not the memory",
    ),
    (
        made(
            "InternalError",
            "the model makes more than a million calls in an inference: too many for a profile",
        ),
        DeviceError,
        "cannot time each kernel",
    ),
    (
        made("InternalError", "an input does not hold the samples"),
        DeviceError,
        "cannot run these samples",
    ),
    (
        made(
            "InternalError",
            "the store's budget of 10 bytes has no room for 5: 6 are deployed or in use",
        ),
        DeviceError,
        "no room",
    ),
    (
        made(
            "InternalError",
            "the session's work directory may hold 10 bytes (--max-work), and has 9 of them",
        ),
        DeviceError,
        "is full",
    ),
    (
        made("InternalError", 'nothing named "digits" is deployed'),
        DeviceError,
        "not deployed on pi3",
    ),
    (made("InternalError", "digits has no earlier release than 1"), DeviceError, "no such release"),
    (made("InternalError", "digits has no release 7"), DeviceError, "no such release"),
    (made("InternalError", f"the store has no file {'a' * 64}"), DeviceError, "has lost a file"),
    (
        made("InternalError", "not a manifest: it is nested too deeply"),
        DeviceError,
        "refuses the description",
    ),
    (made("InternalError", 'not a plain file name: "../x"'), DeviceError, "refuses a name"),
    (made("InternalError", "incomplete: of abc came 1 of 2 bytes"), LinkError, "not arrived whole"),
    (
        made("RPCServerError", "a packet of the client has no sense: its length"),
        DeviceError,
        "does not understand",
    ),
    (
        made("InternalError", "cannot lock /store/.lock: another session has held it for 60.0 s"),
        DeviceError,
        "another session",
    ),
    (
        made("InternalError", "cannot write /store/1.json: Read-only file system"),
        DeviceError,
        "files or folders",
    ),
    (
        made("InternalError", "4 threads on 2 cores (0-1): a core takes one"),
        DeviceError,
        "threads and cores",
    ),
    (
        ConnectionRefusedError(111, "Connection refused"),
        DeviceError,
        "nobody listens at rpc://10.0.0.5:9090",
    ),
    (socket.gaierror(-2, "Name or service not known"), DeviceError, "has no address"),
    (TimeoutError("timed out"), DeadlineError, "does not answer"),
    (ConnectionResetError(104, "Connection reset by peer"), LinkError, "broke"),
    (
        made("InternalError", "URL 10.0.0.5:9090 is not TVM RPC server"),
        DeviceError,
        "no server for pi3",
    ),
    (
        made("InternalError", "URL 10.0.0.5:9090 cannot find server that matches key=client:"),
        DeviceError,
        "no server for pi3",
    ),
    (
        made(
            "InternalError",
            "Check failed: sock.RecvAll(&code, sizeof(code)) == sizeof(code) (0 vs. 4) :",
        ),
        DeviceError,
        "no server",
    ),
    (
        made("InternalError", "Check failed: (code == RPCCode::kReturn) is false: code=kShutdown"),
        LinkError,
        "ended",
    ),
    (
        made(
            "InternalError",
            "Check failed: (HandleUntilReturnEvent(true, f) == RPCCode::kReturn) is false: ",
        ),
        LinkError,
        "ended",
    ),
    (
        made(
            "InternalError",
            (
                "Expected connection to server x to be active, but the connection was previously "
                "closed"
            ),
        ),
        LinkError,
        "ended",
    ),
    (made("InternalError", "Socket SockChannel::Send Error:Broken pipe"), LinkError, "ended"),
    (made("RuntimeError", "Cannot connect to 10.0.0.5:9090"), DeviceError, "cannot be reached"),
    (OSError(113, "No route to host"), DeviceError, "cannot be reached"),
    (
        made("AgentAnswerError", "farm.agent.facts gives no text"),
        DeviceError,
        "pi3 answers what no agent answers",
    ),
    (made("ValueError", "anything"), DeviceError, "reported an error"),
]


@pytest.mark.parametrize(("cause", "kind", "what"), SEEN, ids=lambda value: str(value)[:40])
def test_an_error_that_was_seen_says_what_why_and_what_to_do(
    cause: Exception, kind: type[FarmError], what: str
) -> None:
    error = translate(DEVICE, cause)
    assert type(error) is kind
    assert what in error.what
    assert type(cause).__name__ in error.why
    assert error.fix and "{" not in error.what + error.fix


def test_every_row_has_an_error_that_was_seen() -> None:
    def row_of(cause: Exception) -> int:
        fits = (
            re.fullmatch(row.kind, type(cause).__name__) and re.search(row.message, str(cause))
            for row in ROWS
        )
        return next(number for number, fit in enumerate(fits) if fit)

    assert sorted({row_of(cause) for cause, _, _ in SEEN}) == list(range(len(ROWS)))


AGENT = Path(farm.agent.__file__).parent / "src"
# What these say, they say on the device's own command line or in its log, and not to a client.
OWN_WORDS = {
    "main.cc",
    "command_line.cc",
    "run.cc",
    "npy.cc",
    "server.cc",
    "tracker.cc",
    "signals.cc",
}

# What some functions of the agent put before their words.
BEFORE = {
    "Refuse": "not a manifest: ",
    "Check": "cannot load library: ",
    "Sane": "a packet of the client has no sense: ",
}


def agent_messages() -> list[tuple[str, str]]:
    """The errors of the agent's C++: the file, and the text with a 1 where a value goes."""
    found = []
    for file in sorted(AGENT.rglob("*.cc")):
        for kind, statement in re.findall(
            r"\b(IoError|Fail|Refuse|Check|Sane)(?: \w+)?\((.*?)\);", file.read_text(), re.DOTALL
        ):
            # A literal stays as it is; whatever else stands between the plus signs is a value.
            parts = re.split(r'"((?:[^"\\]|\\.)*)"', statement)
            text = "".join(
                part if index % 2 else "1" * bool(re.search(r"\w", part))
                for index, part in enumerate(parts)
            )
            if text.strip(": 1"):
                found.append(
                    (
                        file.name,
                        BEFORE.get(kind, "")
                        + text
                        + (": Input/output error" if kind == "Fail" else ""),
                    )
                )
    return found


def test_every_error_of_the_agent_falls_into_a_row_that_is_made_for_it() -> None:
    messages = [(file, text) for file, text in agent_messages() if file not in OWN_WORDS]
    assert len(messages) > 60
    anything = translate(DEVICE, made("ValueError", "anything")).what
    lost = [
        (file, text)
        for file, text in messages
        if translate(DEVICE, made("InternalError", text)).what == anything
    ]
    assert not lost


def test_the_essence_of_a_message_is_without_its_stack() -> None:
    message = """Traceback (most recent call last):
  File "rpc_endpoint.cc", line 420
RPCError: Error caught from RPC call:
[bt] (0) libtvm.so
ValueError: the cause
"""
    assert essence(message) == "ValueError: the cause"
