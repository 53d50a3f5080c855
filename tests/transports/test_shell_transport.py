"""A transport that wraps a command needs a class with one method: here the command is `sh`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from host_profile import HOST

from farm.errors import DeviceError
from farm.processes.deadline import Deadline
from farm.prompts import Ask, answer_nothing
from farm.transports import board_scripts, connectivity_checks, shell_transports
from farm.transports.shell_board import ShellBoard
from farm.types import Device


class Wrapped(ShellBoard):
    def ask(self, script: str, arguments: Sequence[str], content: bytes = b"") -> dict[str, str]:
        command = ["sh", "-c", self.command(script, arguments)]
        done = subprocess.run(command, input=content, capture_output=True, timeout=60)
        return board_scripts.parse_report(done.stdout.decode())


@contextlib.contextmanager
def reach_board(device: Device, deadline: Deadline, ask: Ask) -> Iterator[Wrapped]:
    yield Wrapped(device, deadline)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    monkeypatch.setitem(shell_transports._SHELLS, "wrapped", "a_wrapping_transport")
    monkeypatch.setitem(sys.modules, "a_wrapping_transport", sys.modules[__name__])
    places = {"store": str(tmp_path / "store"), "work_dir": str(tmp_path / "work")}
    return Device("box", HOST, "wrapped:", options=places)


def found(device: Device) -> dict[str, str]:
    with contextlib.ExitStack() as stack:
        layers = connectivity_checks.connection_layers(device, stack, Deadline(60))
        return {layer.name: layer.check() for layer in layers}


def test_the_doctor_checks_a_shell_that_has_no_checks_of_its_own(device: Device) -> None:
    assert list(found(device)) == ["shell"]
    assert f"free in {device.options['store']}" in found(device)["shell"]


def test_a_folder_that_cannot_be_used_is_found(device: Device, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(DeviceError) as error:
        found(device)
    assert "store" in error.value.fix


def test_the_board_is_identified_by_its_shell(device: Device) -> None:
    with shell_transports.reach_board(device, Deadline(60), answer_nothing) as board:
        assert board.identify()["machine"] == "x86_64"


@dataclass(frozen=True, slots=True)
class WithFreeSpace(Wrapped):
    free_kib: str = ""

    def ask(self, script: str, arguments: Sequence[str], content: bytes = b"") -> dict[str, str]:
        return {**Wrapped.ask(self, script, arguments, content), "free_kib": self.free_kib}


@pytest.mark.parametrize(
    ("free_kib", "shown"), [(8 << 10, "0.0 GiB"), (4 << 20, "4.0 GiB"), ("unknown", "")]
)
def test_free_space_that_suffices_is_told(device: Device, free_kib: object, shown: str) -> None:
    board = WithFreeSpace(device, Deadline(60), str(free_kib))
    assert board.check_room(board.look()) == shown


def test_a_board_with_less_space_than_an_agent_takes_is_full(device: Device) -> None:
    board = WithFreeSpace(device, Deadline(60), str((8 << 10) - 1))
    with pytest.raises(DeviceError, match="the disk of box is full") as error:
        board.check_room(board.look())
    assert error.value.why == "8.0 MiB are free, the agent and its work want 8.0"


def test_an_agent_is_put_on_a_board_once_and_started_with_its_options(
    device: Device, tmp_path: Path
) -> None:
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\necho this is $1\n")
    agent.chmod(0o700)
    asked = replace(device, options={**device.options, "store_budget_mb": 300})
    board = Wrapped(asked, Deadline(60))
    (_, seconds, *command), store = board.start_arguments(agent)
    assert seconds == "65", "this side ends the session first"
    placed, *words = command
    assert Path(placed).read_bytes() == agent.read_bytes() and Path(placed).parts[-3] == "agents"
    assert words == [
        "--stdio",
        *("--work-dir", device.options["work_dir"], "--store", device.options["store"]),
        *("--store-budget", "300000000"),
    ]
    assert store == device.options["store"]
    seen, sent = board.place(agent, proven=True)
    assert (sent, seen["version"]) == (0, "this is --version")
    Path(placed).write_text("#!/bin/sh\necho that is $1\n")  # as long as it was
    assert board.place(agent)[1] == 0
    seen, sent = board.place(agent, proven=True)
    assert (sent, seen["version"]) == (agent.stat().st_size, "this is --version")
