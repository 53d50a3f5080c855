"""Devices that a command runs a shell in, as `docker exec -i NAME` does: the command here is a
program that behaves like it, with an environment, a folder and errors of its own.
"""

from __future__ import annotations

import json
import os
import signal
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from farm_processes import DIGITS, QUICK, Done, Farm, Running, kill_all
from timeouts import patient, wait_until

AGENT = r"^\S*qemu-arm .*farm-agent"


@dataclass
class Box:
    """A program that runs what follows its first word in a folder, or says that it is stopped."""

    farm: Farm
    program: Path
    home: Path

    def start(self) -> None:
        self._write(
            f"cd {self.home}\nshift\n"
            f'exec env -i PATH="$PATH" HOME={self.home} FARM_TEST={self.farm.mark} "$@"'
        )

    def stop(self) -> None:
        self._write('echo "Error: container $1 is not running" >&2\nexit 1')

    def configure(self, profile: str = "x86", more: str = "") -> None:
        command = json.dumps([str(self.program), "name"])
        self.farm.configure(
            f'[devices.box]\nprofile = "{profile}"\nurl = "exec:name"\n'
            f"options = {{ command = {command}{more} }}\n{DIGITS}{QUICK}"
        )

    def assert_nothing_is_left(self) -> None:
        self.farm.assert_nothing_is_left(10)
        kept = self.home / ".local/share/farm"
        assert [*kept.glob("work/farm-session-*"), *kept.rglob(".part-*")] == []

    def _write(self, script: str) -> None:
        part = self.program.with_suffix(".part")
        part.write_text(f"#!/bin/sh\n{script}\n")
        part.chmod(0o700)
        part.replace(self.program)


@pytest.fixture
def box(farm: Farm, tmp_path: Path) -> Box:
    found = Box(farm, tmp_path / "container-exec", tmp_path / "home")
    found.home.mkdir()
    found.start()
    found.configure()
    return found


def deploy(farm: Farm) -> Done:
    return farm.run("deploy", "--device", "box", "digits")


def layers(done: Done) -> dict[str, Any]:
    return {
        layer["layer"]: layer
        for one in done.json["examined"]
        if one["name"] == "box"
        for layer in one["layers"]
    }


def test_a_model_is_deployed_and_what_is_there_is_not_sent_again(farm: Farm, box: Box) -> None:
    done = deploy(farm)
    assert done.code == 0, done.err
    assert "right" in done.out and "MB sent" in done.out
    assert len(list(box.home.rglob("agents/*/farm-agent"))) == 1
    assert "nothing to send" in deploy(farm).out
    box.assert_nothing_is_left()


def test_its_facts_are_shown(farm: Farm, box: Box) -> None:
    (one,) = farm.run("devices", "-v", "--json").json["devices"]
    assert one["usable"] and one["facts"]["machine"] == os.uname().machine
    box.assert_nothing_is_left()


def test_the_doctor_examines_it_and_names_the_layer_that_fails(farm: Farm, box: Box) -> None:
    done = farm.run("doctor", "--device", "box", "--json")
    assert done.code == 0, done.out + done.err
    assert list(layers(done))[:5] == [
        "shell",
        "agent binary",
        "agent version",
        "RPC handshake",
        "answer",
    ]
    assert all(layer["holds"] for layer in layers(done).values())
    box.stop()
    found = layers(farm.run("doctor", "--device", "box", "--json"))
    assert list(found) == ["shell"]
    assert "container name is not running" in found["shell"]["error"]["why"]
    box.assert_nothing_is_left()


def test_it_is_added_and_removed_by_commands(farm: Farm, box: Box) -> None:
    (farm.folder / "devices.toml").unlink()
    command = json.dumps([str(box.program), "name"])
    assert "needs a command" in farm.run("add", "box", "exec:name").error["why"]
    done = farm.run("add", "box", "exec:name", "-o", f"command={command}")
    assert done.code == 0, done.err
    table = tomllib.loads((farm.folder / "devices.toml").read_text())["devices"]["box"]
    assert table["options"]["command"] == [str(box.program), "name"]
    assert farm.run("provision", "--device", "box", "--remove").code == 0
    assert [path for path in box.home.rglob("*") if path.is_file()] == []
    box.assert_nothing_is_left()


def test_one_that_is_stopped_is_offline_with_the_words_of_the_command(farm: Farm, box: Box) -> None:
    box.stop()
    done = deploy(farm)
    assert done.code == 5 and done.error["error"] == "box is offline"
    assert "container name is not running" in done.error["why"]
    assert "container-exec name sh -c 'echo works'" in done.error["fix"]


def run_slowly(farm: Farm, box: Box, more: str = "") -> Running:
    """A job in the middle of an inference that takes half a minute."""
    box.configure("rasp3b", f', launcher = "qemu-arm"{more}')
    running = farm.start("deploy", "--device", "box", "slow.onnx")
    running.says("box slow: running")
    wait_until(lambda: len(farm.processes_like(AGENT)) == 2, "the agent and its session")
    return running


def test_one_that_is_stopped_in_the_middle_of_a_session(
    farm: Farm, box: Box, emulators: None
) -> None:
    running = run_slowly(farm, box)
    box.stop()
    kill_all(farm.processes_like(AGENT), signal.SIGKILL)
    done = running.end()
    assert done.code == 5 and done.error["error"] == "box is offline, in the middle of a session"
    assert "container name is not running" in done.error["why"]


def test_an_agent_that_is_killed_in_the_middle_of_a_session(
    farm: Farm, box: Box, emulators: None
) -> None:
    running = run_slowly(farm, box)
    kill_all(farm.processes_like(AGENT), signal.SIGKILL)
    done = running.end()
    assert done.code == 5 and done.error["error"] == "the agent on box ended of signal 9"
    box.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_farm_that_ends_takes_the_agent_with_it(
    farm: Farm, box: Box, emulators: None, number: signal.Signals
) -> None:
    running = run_slowly(farm, box)
    running.send(number)
    running.end()
    wait_until(lambda: not farm.processes(), "the end of all processes", patient(10))


def test_a_deadline_ends_the_session_and_the_agent(farm: Farm, box: Box, emulators: None) -> None:
    done = run_slowly(farm, box, f", deadline_s = {patient(8)}").end()
    assert done.code == 6, done.err
    box.assert_nothing_is_left()
