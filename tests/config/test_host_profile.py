"""What depends on the machine that farm runs on: its own profile, and systems that are refused."""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from farm import Farm, boards, cli
from farm.api.resolve import host_profile
from farm.config import load_fleet, parse_fleet
from farm.config import profiles as built_in_profiles
from farm.errors import ConfigError, FarmError
from farm.transports import local

MACHINES = [("x86_64", "x86"), ("aarch64", "arm64"), ("arm64", "arm64")]


@pytest.fixture
def of_machine(monkeypatch: pytest.MonkeyPatch, machine: str) -> str:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    return machine


@pytest.mark.parametrize(("machine", "profile"), MACHINES)
def test_the_built_in_host_is_this_machine(of_machine: str, profile: str) -> None:
    fleet = load_fleet(Path(cli.__file__).parent / "devices.toml")
    host = fleet.device("host")
    assert host.profile.name == host_profile(fleet).name == profile
    assert host.profile.target["mcpu"] == "native"
    assert local.probe_state(host).word == "ready"


@pytest.mark.parametrize(("machine", "profile"), MACHINES)
def test_a_local_device_may_leave_its_profile_out(of_machine: str, profile: str) -> None:
    fleet = parse_fleet('[devices.me]\nurl = "local:"\n', Path("/devices.toml"))
    assert fleet.device("me").profile.name == profile
    named = parse_fleet('[devices.me]\nurl = "local:"\nprofile = "x86-v3"\n', Path("/devices.toml"))
    assert named.device("me").profile.name == "x86-v3"


def test_a_launcher_that_is_not_there_makes_a_device_unavailable() -> None:
    fleet = load_fleet(Path(cli.__file__).parent / "devices.toml")
    for launcher, word in (("env A=1", "ready"), ("no-such-program -v", "unavailable")):
        device = replace(fleet.device("host"), options={"launcher": launcher})
        state = local.probe_state(device)
        assert (state.word, state.usable) == (word, word == "ready")
    assert state.why == "its launcher 'no-such-program' is not installed"


@pytest.mark.parametrize("machine", ["x86_64"])
@pytest.mark.parametrize("url", ["qemu:", "ssh://board", "adb:"])
def test_no_other_device_may_leave_its_profile_out(of_machine: str, url: str) -> None:
    with pytest.raises(ConfigError, match="mistake") as caught:
        parse_fleet(f'[devices.me]\nurl = "{url}"\n', Path("/devices.toml"))
    assert "devices.me.profile: is missing" in caught.value.why


@pytest.mark.parametrize("machine", ["riscv64"])
def test_a_machine_without_a_profile_of_its_own_has_to_name_one(of_machine: str) -> None:
    host = load_fleet(Path(cli.__file__).parent / "devices.toml").device("host")
    state = local.probe_state(host)
    assert state.word == "unavailable" and "this machine is riscv64" in state.why
    fleet = parse_fleet(
        '[devices.me]\nurl = "local:"\nprofile = "riscv64"\n', Path("/devices.toml")
    )
    assert local.probe_state(fleet.device("me")).word == "ready"
    assert host_profile(fleet).target == {"kind": "llvm", "mcpu": "native"}


def test_an_arm_machine_that_adds_itself_gets_the_profile_of_its_own_cpu() -> None:
    evidence = boards.hardware_from_report(
        "aarch64", {"arm_cores": "4 0x41 0xd0b,", "board": "Raspberry Pi 5 Model B Rev 1.0"}
    )
    choice = boards.choose_profile(
        "me", evidence, built_in_profiles.built_in_profile_tables(), here=True
    )
    assert (choice.profile, choice.table) == ("arm64", None)
    assert "Raspberry Pi 5 Model B Rev 1.0" in choice.reason
    assert (
        boards.choose_profile("pi5", evidence, built_in_profiles.built_in_profile_tables()).table
        is not None
    )


@pytest.mark.parametrize(
    ("system", "name", "words"),
    [
        ("darwin", "Darwin", "macOS"),
        ("win32", "Windows", "Windows"),
        ("freebsd14", "", "freebsd14"),
    ],
)
def test_other_systems_are_refused_by_one_error_that_says_what_needs_linux(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    system: str,
    name: str,
    words: str,
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "system", lambda: name)
    monkeypatch.setattr(sys, "argv", ["farm", "devices"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 1
    assert f"farm does not run on {words}" in shown
    for part in ("agent", "/proc", "Landlock"):
        assert part in shown
    with pytest.raises(FarmError, match=f"does not run on {words}"):
        Farm.load()


def test_help_is_shown_on_every_system(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sys, "argv", ["farm", "--help"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0 and "Usage: farm" in capsys.readouterr().out
