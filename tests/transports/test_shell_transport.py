"""A transport that wraps a command needs a class with one method: here the command is `sh`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
