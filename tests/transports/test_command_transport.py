"""What a command of this machine runs a shell in: commands that do, and those that do not."""

from __future__ import annotations

import importlib
import shlex
import sys
import time
from pathlib import Path

import pytest
from host_profile import HOST

from farm import transports
from farm.errors import DeadlineError, DeviceError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.processes.output_end import OutputEnd
from farm.transports import command, shell_transports
from farm.transports.command import CommandBoard
from farm.types import Device

ELSEWHERE = ["sh", "-c", 'cd / && exec "$@"', "x"]
PTY = "import pty, sys; pty.spawn(sys.argv[1:])"


def board(*words: str, seconds: float = 60) -> CommandBoard:
    return CommandBoard(device(*words), Deadline(seconds))


def device(*words: str) -> Device:
    return Device("box", HOST, "exec:box", options={"command": shlex.join(words)} if words else {})


def test_a_script_gets_its_arguments_and_its_input_as_they_are() -> None:
    content = bytes(range(256)) * 1000
    told = board(*ELSEWHERE).ask(
        'tell place "$(pwd)"; tell word "$1"; tell bytes "$(cksum)"', ["a 'b' $c"], content
    )
    alone = board("env").ask('tell bytes "$(cksum)"', [], content)
    assert (told["place"], told["word"]) == ("/", "a 'b' $c")
    assert told["bytes"] == alone["bytes"] and told["bytes"].endswith(f" {len(content)}")
    assert "heard" not in told and "heard" not in told[""]


@pytest.mark.parametrize(
    ("words", "what", "why", "fix"),
    [
        ((), "unavailable", "needs a command in its options", '"docker", "exec"'),
        (("no-such-program",), "unavailable", "no program 'no-such-program'", "install it"),
        (("/etc/passwd",), "unavailable", "no program '/etc/passwd'", "install it"),
        (("true",), "offline", "ended with exit code 0", "true sh -c 'echo works'"),
        (
            ("sh", "-c", "echo Error: No such container: box >&2; exit 3"),
            "offline",
            "ended with exit code 3: Error: No such container: box",
            "see what this does",
        ),
        (("sh", "-c", "kill -9 $$"), "offline", "ended with exit code 137", "see what this does"),
        (("echo",), "offline", "runs no shell", "see what this does: echo sh -c"),
        (("sh", "-c", 'exec "$@" </dev/null', "x"), "without input", "standard input", "-i"),
        ((sys.executable, "-c", PTY), "behind a terminal", "changes the bytes", "-t"),
    ],
)
def test_a_command_that_runs_no_shell_as_it_should(
    words: tuple[str, ...], what: str, why: str, fix: str
) -> None:
    with pytest.raises(DeviceError) as caught:
        board(*words).ask("", [])
    error = caught.value
    assert error.what == f"box is {what}" and why in error.why and fix in error.fix
    there = transports.probe_state(device(*words))
    assert (there.word, there.usable, there.why) == (what, False, error.why)


def test_what_a_command_says_takes_bounded_room_and_its_end_is_kept() -> None:
    said = OutputEnd()
    script = "yes 0123456789abcde | head -c 20000000 >&2; echo the end >&2"
    with board("env").channel(script, [], said) as (_, child):
        assert subprocesses.wait_for_shell_exit_code(child, 60) == 0
    text = said.text()
    assert len(text) == 1 << 16 and text.endswith("abcde\nthe end\n")


@pytest.mark.parametrize("scheme", sorted(shell_transports._SHELLS))
def test_what_a_shell_is_reached_by_is_there(scheme: str) -> None:
    assert callable(importlib.import_module(shell_transports._SHELLS[scheme]).reach_board)


@pytest.mark.parametrize("scheme", sorted(shell_transports._CHECKS))
def test_the_layers_of_a_connection_are_there(scheme: str) -> None:
    assert callable(importlib.import_module(shell_transports._CHECKS[scheme]).connection_layers)


def test_a_program_that_the_kernel_cannot_start(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\1\2\3")
    program.chmod(0o700)
    with pytest.raises(DeviceError, match="box is unavailable") as caught:
        board(str(program)).ask("", [])
    assert "cannot be started: Exec format error" in caught.value.why


@pytest.mark.parametrize("script", ["sleep {0}; true", "while :; do echo {0}; done"])
def test_a_command_that_hangs_is_ended_with_all_that_it_started(script: str) -> None:
    mark = f"612.{time.time_ns()}"
    begin = time.monotonic()
    with pytest.raises(DeadlineError, match="box is without an answer") as caught:
        board("sh", "-c", script.format(mark), "x", seconds=1).ask("", [])
    assert "no end after 1 s" in caught.value.why
    assert time.monotonic() - begin < 60
    lines = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in _text(path)]
    assert lines == []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_a_command_that_runs_a_shell_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    assert transports.probe_state(device(*ELSEWHERE)).word == "ready"
    monkeypatch.setattr(command, "_STATE_S", 0.5)
    there = transports.probe_state(device("sh", "-c", "sleep 60"))
    assert (there.word, there.usable) == ("without an answer", False)
