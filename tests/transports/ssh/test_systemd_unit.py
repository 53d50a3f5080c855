"""The unit that makes the agent a service: what systemd itself says of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from farm.errors import DeviceError
from farm.processes import subprocesses
from farm.transports.local import agent_arguments, agent_thread_arguments
from farm.transports.ssh.systemd_service import (
    AgentServiceSettings,
    _environment_value,
    unit_text,
)
from farm.types import Device, Profile

DIGEST = "0" * 64


def unit(folder: Path, *, is_root: bool, walls: bool = True, launcher: tuple[str, ...] = ()) -> str:
    """For a board that keeps what is ours in a folder."""
    seen = {"base": str(folder), "work": str(folder / "work"), "store": str(folder / "store")}
    return unit_text(
        seen,
        DIGEST,
        launcher,
        AgentServiceSettings("lab:9190", "pi").arguments,
        is_root=is_root,
        walls=walls,
    )


@pytest.mark.parametrize("scope", ["--system", "--user"])
@pytest.mark.parametrize("name", ["plain", "a b", "100%", "$HOME"])
def test_systemd_has_nothing_to_say_against_it(tmp_path: Path, scope: str, name: str) -> None:
    if not subprocesses.first_installed_program("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    folder = tmp_path / name
    (folder / "service").mkdir(parents=True)
    (folder / "service" / "farm-agent").symlink_to("/bin/true")
    file = tmp_path / "farm-agent.service"
    file.write_text(unit(folder, is_root=scope == "--system"))
    command = ["systemd-analyze", "verify", scope, "--man=no", file]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}  # without one it looks at no user's unit
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert [line for line in done.stderr.splitlines() if "farm-agent" in line] == []


def test_a_key_is_on_no_command_line() -> None:
    assert "pi" not in AgentServiceSettings("lab:9190", "pi").arguments


def test_it_listens_on_loopback_unless_it_is_told_otherwise() -> None:
    assert AgentServiceSettings().arguments == ["--host", "127.0.0.1", "--port", "9090"]
    told = AgentServiceSettings(host="192.168.7.2", open_to_network=True).arguments
    assert told[:2] == ["--host", "192.168.7.2"] and "--open-to-network" in told
    of_lab = AgentServiceSettings("lab:9190", "pi5", port=9191, board="pi5-07").arguments
    assert of_lab[2:] == ["--port", "9191", "--tracker", "lab:9190", "--board", "pi5-07"]


def test_what_it_may_write_to_is_named() -> None:
    text = unit(Path("/home/pi/.local/share/farm"), is_root=False)
    folder = "/home/pi/.local/share/farm"
    assert f'ReadWritePaths="{folder}/work" "{folder}/store" "{folder}/service"\n' in text
    assert "ProtectSystem=strict" in text and "PrivateTmp=yes" in text
    assert "CapabilityBoundingSet" not in text, "of root only"
    assert "CapabilityBoundingSet=\n" in unit(Path("/root/farm"), is_root=True)


def test_folders_under_tmp_are_not_hidden_by_a_tmp_of_its_own() -> None:
    assert "PrivateTmp" not in unit(Path("/tmp/farm"), is_root=True)


def test_systemd_expands_nothing_in_the_words_of_its_command() -> None:
    text = unit(Path("/srv/$HOME/100%"), is_root=True)
    assert '"--work-dir" "/srv/$$HOME/100%%/work"' in text
    assert 'ExecStart="/srv/$HOME/100%%/service/farm-agent"' in text, "the program's name is not"
    assert 'ReadWritePaths="/srv/$HOME/100%%/work"' in text


@pytest.mark.parametrize(
    ("key", "line"),
    [("lab-1_a.b:c+@=/", "lab-1_a.b:c+@=/"), ("a#b", '"a#b"'), ("it's;", '"it\'s;"')],
)
def test_a_key_is_read_from_the_file_of_the_service_as_it_was_given(key: str, line: str) -> None:
    assert _environment_value(key) == line


def test_the_options_of_a_device_hold_for_its_service() -> None:
    options = {"store_budget_mb": 300, "threads": 3, "cores": "0-2", "pinned": True}
    device = Device("pi", Profile("rasp4", {}, ""), "ssh://pi", options=options)
    assert agent_arguments(device) == ["--store-budget", "300000000"]
    assert agent_thread_arguments(device) == ["--threads", "3", "--cores", "0-2"]
    plain = Device("pi", Profile("rasp4", {}, ""), "ssh://pi")
    assert agent_arguments(plain) == agent_thread_arguments(plain) == []


def test_a_user_manager_that_cannot_build_walls_gets_none() -> None:
    text = unit(Path("/home/pi/farm"), is_root=False, walls=False)
    assert "ProtectSystem" not in text and "NoNewPrivileges=yes" in text


def test_a_launcher_comes_before_the_agent() -> None:
    text = unit(Path("/opt/farm"), is_root=True, launcher=("taskset", "-c", "4-5"))
    assert 'ExecStart="taskset" "-c" "4-5" "/opt/farm/service/farm-agent" "--host"' in text


@pytest.mark.parametrize("name", ["base", "work", "store", "launcher", "argument"])
def test_no_option_begins_a_line_of_its_own_in_the_unit(name: str) -> None:
    evil = "/tmp/w\nExecStartPre=/bin/touch /tmp/x"
    seen = {
        "base": "/b",
        "work": "/w",
        "store": "/s",
        **({name: evil} if name in ("base", "work", "store") else {}),
    }
    launcher, arguments = (
        ([evil] if name == "launcher" else []),
        ([evil] if name == "argument" else []),
    )
    with pytest.raises(DeviceError, match="control character"):
        unit_text(seen, DIGEST, launcher, arguments, is_root=True, walls=True)
