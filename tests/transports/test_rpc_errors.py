"""Errors of TVM's RPC and of sockets, as they were seen, become ours."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

import farm.agent
from farm.errors import BuildError, DeadlineError, DeviceError, FarmError, LinkError
from farm.transports.agent import legacy_error_texts as agent_errors_by_text
from farm.transports.agent.errors import MEANINGS, LoggedSessionEnd, parse_last_session_end
from farm.transports.rpc_errors import (
    ROWS,
    SYSTEM_ROWS,
    agent_exit_in_words,
    session_ended_error,
    shorten_tvm_message,
    translate_error,
)
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
        "not enough memory",
    ),
    (made("InternalError", "std::bad_alloc"), DeviceError, "not enough memory"),
    (
        made(
            "InternalError",
            "cannot load library: it wants 9 bytes of memory: Cannot allocate memory",
        ),
        DeviceError,
        "not enough memory",
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
    (made("InternalError", "the client said nothing"), LinkError, "its session, ended"),
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
    error = translate_error(DEVICE, cause)
    assert type(error) is kind
    assert what in error.what
    assert type(cause).__name__ in error.why
    assert error.fix and "{" not in error.what + error.fix


def test_every_row_has_an_error_that_was_seen() -> None:
    for row in (*SYSTEM_ROWS, *ROWS):
        assert any(row.fits(type(cause).__name__, str(cause)) for cause, _, _ in SEEN), row


def test_every_text_of_agents_without_codes_was_seen_and_has_a_meaning() -> None:
    seen = {agent_errors_by_text.find_error_code_by_text(str(cause)) for cause, _, _ in SEEN}
    assert seen - {None} == {code for _, code in agent_errors_by_text._CODES}
    assert seen - {None} <= set(MEANINGS)


@pytest.mark.parametrize("code", MEANINGS)
def test_the_code_of_an_agents_error_decides_and_its_text_does_not(code: str) -> None:
    # A text that by itself would be another error
    text = f"InternalError: {code}: digest mismatch: No space left on device"
    error = translate_error(DEVICE, made("RPCError", text))
    assert type(error) is MEANINGS[code].error
    assert error.what == MEANINGS[code].what.format(name="pi3")
    assert code in error.why, "a code can be searched for"
    assert error.fix and "{" not in error.what + error.fix


def test_an_unknown_code_is_an_error_of_the_board_with_its_text() -> None:
    error = translate_error(
        DEVICE, made("RPCError", "InternalError: E_OF_TOMORROW: the moon is full")
    )
    assert error.what == "pi3 reported an error" and "E_OF_TOMORROW: the moon" in error.why


AGENT = Path(farm.agent.__file__).parent / "src"
# The errors of TVM's runtime in the agent that farm shows as they are: file -> text
WITHOUT_CODE = {
    "device_api.cc": "memory of the GPU is aligned",
    "graph.cc": "driver.missing_for_graphs",
    "graph_capturing_vm.cc": "the library has no executable",
}


def test_the_host_knows_the_codes_of_the_agent_and_no_others() -> None:
    defined = re.findall(r'ErrorCode k\w+\{\s*"(\w+)"\}', (AGENT / "base/error_code.h").read_text())
    assert len(defined) > 20 and sorted(defined) == sorted(MEANINGS)


def test_every_error_that_the_agent_throws_has_a_code() -> None:
    thrown = [
        (file.name, statement)
        for file in sorted(AGENT.rglob("*.cc"))
        for statement in re.findall(r"TVM_FFI_THROW\(\w+\)(.*?);", file.read_text(), re.DOTALL)
    ]
    assert len(thrown) > 10  # an IoError cannot be made without a code
    for file, statement in thrown:
        forwarded = "e.what()" in statement or "on its way" in statement
        known = WITHOUT_CODE.get(file, "Coded(")
        assert "Coded(" in statement or known in statement or forwarded, (file, statement)


@pytest.mark.parametrize(
    ("coded", "uncoded", "end"),
    [
        ("END_SIGNAL_4: died of X", "died of Illegal instruction", LoggedSessionEnd(False, 4)),
        ("END_SIGNAL_9: died of X", "died of Killed", LoggedSessionEnd(False, 9)),
        ("END_SIGNAL_11: died of X", "died of Segmentation fault", LoggedSessionEnd(False, 11)),
        ("END_EXIT_0: exit code 9", "exit code 0", LoggedSessionEnd(True)),
        ("END_EXIT_1: exit code 0", "exit code 1", LoggedSessionEnd(False)),
        ("END_TOLD: it was told", "its client was told why", LoggedSessionEnd(True)),
        ("END_TIME_UP: exit code 0", "its time was up", LoggedSessionEnd(False)),
        ("END_CLIENT_GONE: exit code 0", "its client has gone", LoggedSessionEnd(False)),
    ],
)
def test_the_end_of_a_session_is_read_from_the_log_of_old_and_new_agents(
    coded: str, uncoded: str, end: LoggedSessionEnd
) -> None:
    line = "2026-11-24 20:00:00 farm-agent[7] session 8 is over after 1.5 s: "
    assert parse_last_session_end(f"x\n{line}{coded}\n") == end
    assert parse_last_session_end(f"x\n{line}{uncoded}\n") == end
    assert parse_last_session_end(f"{line}END_SIGNAL_9: y\n{line}{coded}\n") == end, (
        "the last session"
    )
    assert parse_last_session_end("2026-11-24 20:00:00 farm-agent[7] session 8 begins\n") is None


def test_the_fix_for_a_session_that_died_is_that_of_the_signal() -> None:
    def fix(how: str) -> str:
        return session_ended_error(
            DEVICE, "what", f"session 8 is over after 1.5 s: {how}: x", "otherwise"
        ).fix

    assert "correct `profile` of pi3" in fix("END_SIGNAL_4")
    assert "memory of the board" in fix("END_SIGNAL_9")
    assert "farm bisect --device pi3" in fix("END_SIGNAL_11")
    assert fix("END_SIGNAL_15") == fix("END_EXIT_1") == "otherwise"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "the session on pi3 ended"),
        (0, "the session on pi3 ended"),
        (1, "the agent on pi3 ended with exit code 1"),
        (128, "the agent on pi3 ended with exit code 128"),
        (137, "the agent on pi3 ended of signal 9"),
    ],
)
def test_the_exit_code_of_the_shell_tells_how_an_agent_ended(
    status: int | None, words: str
) -> None:
    assert agent_exit_in_words(DEVICE, status) == words


def test_the_essence_of_a_message_is_without_its_stack() -> None:
    message = """Traceback (most recent call last):
  File "rpc_endpoint.cc", line 420
RPCError: Error caught from RPC call:
[bt] (0) libtvm.so
ValueError: the cause
"""
    assert shorten_tvm_message(message) == "ValueError: the cause"
