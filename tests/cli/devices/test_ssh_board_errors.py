"""What may be wrong with a board that SSH reaches, or with the agent there: each fault has its own
words, its cure and its exit code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from farm_processes import DIGITS, HOST, QUICK, Done, Farm, kill_all
from farm_processes import server as serving
from ssh_board_checks import (
    assert_failed,
    assert_nothing_is_left,
    configure,
    run_slowly,
    running_agents,
)
from ssh_server import SshServer

FULL = "the disk of board is full"


def deploy(farm: Farm) -> Done:
    return farm.run("deploy", "--device", "board", "digits")


@contextlib.contextmanager
def disk(server: SshServer, options: str) -> Iterator[Path]:
    """A small disk of its own under the board's home."""
    if os.getuid():
        pytest.skip("only root may mount a disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", server.data], check=True)
    try:
        yield server.data
    finally:
        subprocess.run(["umount", "--lazy", server.data], check=True)


def test_a_dead_host(farm: Farm, server: SshServer) -> None:
    configure(farm, "ssh://root@192.0.2.1")  # of a network for documentation: nobody is there
    shown = assert_failed(deploy(farm), 5, "board is offline")
    assert "192.0.2.1:22" in shown["why"]


def test_a_disk_that_is_too_small_for_the_agent(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    with disk(server, "size=3m"):
        shown = assert_failed(deploy(farm), 5, FULL)
    assert "MiB are free" in shown["why"] and "`store`" in shown["fix"]


def test_a_disk_without_any_room(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    with disk(server, "size=64k") as home:
        (home / "other").write_bytes(bytes(64 << 10))
        assert "No space left" in assert_failed(deploy(farm), 5, FULL)["why"]
        doctor = farm.run("doctor", "--device", "board")
    assert "✗ space: the disk of board is full" in doctor.out
    assert doctor.code == 5


def test_a_disk_that_gets_full_with_the_model(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    with disk(server, "size=12m") as home:
        assert farm.run("devices", "-v").code == 0  # the agent is there now
        free = os.statvfs(home)
        (home / "other").write_bytes(bytes(free.f_bavail * free.f_frsize - (40 << 10)))
        assert_failed(deploy(farm), 5, FULL)
        (home / "other").unlink()
        assert deploy(farm).code == 0


def test_a_read_only_home(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    with disk(server, "size=12m,ro"):
        shown = assert_failed(deploy(farm), 5, "the folder of farm on board is read-only")
    assert str(server.kept) in shown["why"] and "`store`" in shown["fix"]


def test_a_home_that_runs_no_programs(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    with disk(server, "size=12m,noexec"):
        assert (
            "`store`"
            in assert_failed(deploy(farm), 5, "board runs no programs from its folder")["fix"]
        )
        assert server.agents() == []
        assert list(server.kept.rglob(".part-*")) == []


def test_a_profile_for_another_architecture(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url, "rasp3b")
    shown = assert_failed(deploy(farm), 5, "another kind of board than its profile says")
    assert "armv7" in shown["why"] and os.uname().machine in shown["why"]
    assert "x86-v3" in shown["fix"]


@pytest.fixture
def pi_os(server: SshServer, agents: Callable[[str], Path]) -> None:
    """The board tells what a Raspberry Pi with a 64-bit kernel and a 32-bit system would."""
    folder = server.folder / "bin"
    folder.mkdir()
    told = {
        "uname": "echo aarch64",
        "getconf": "echo 32",
        "od": f"exec /usr/bin/od -A n -v -t x1 -N 52 {agents('armv7')}",
    }
    for name, line in told.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    server.configure(PATH=f"{folder}:{os.defpath}")


@pytest.mark.usefixtures("pi_os")
def test_32_bit_programs_on_a_64_bit_kernel(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url, "rasp3b-64")
    shown = assert_failed(deploy(farm), 5, "32-bit programs on a 64-bit kernel")
    assert "32-bit hard-float programs (armv7)" in shown["why"]
    assert "rasp3b" in shown["fix"].split() or "rasp3b," in shown["fix"]
    assert 'userland = "any"' in shown["fix"]
    assert "✗ architecture" in farm.run("doctor", "--device", "board").out


@pytest.mark.usefixtures("pi_os")
@pytest.mark.parametrize(
    ("profile", "options"), [("rasp3b-64", 'userland = "any"'), ("rasp3b", "")]
)
def test_what_may_run_there_is_tried(
    farm: Farm, server: SshServer, profile: str, options: str
) -> None:
    configure(farm, server.url, profile, options)
    assert_failed(deploy(farm), 5, "cannot run the agent")  # for it is this machine


def test_a_kernel_for_which_there_is_no_agent(farm: Farm, server: SshServer) -> None:
    server.configure('ForceCommand setarch i686 sh -c "$SSH_ORIGINAL_COMMAND"')
    configure(farm, server.url)
    assert_failed(deploy(farm), 5, "no agent for the i686 kernel")


def test_a_soft_float_library(farm: Farm, server: SshServer, emulators: None) -> None:
    configure(farm, server.url, "soft", 'launcher = "qemu-arm"')
    with (farm.folder / "devices.toml").open("a") as file:
        file.write('[profiles.soft]\ninherits = "rasp3b"\ntarget.mfloat-abi = "soft"\n')
    shown = assert_failed(deploy(farm), 4, "board refuses the library")
    assert "soft-float" in shown["why"] and "profile" in shown["fix"]


@pytest.fixture
def old_agent(agents: Callable[[str], Path], tmp_path: Path) -> Path:
    """An agent that says that it is of another version, and is the same otherwise.

    The version ends as before, because a linker may keep a shorter text in the end of it.
    """
    old = tmp_path / "old-agent"
    content = agents("x86_64").read_bytes()
    assert b"0.1.0" in content
    old.write_bytes(content.replace(b"0.1.0", b"0.0.0"))
    old.chmod(0o755)
    return old


def test_an_agent_of_another_version_by_ssh(farm: Farm, server: SshServer, old_agent: Path) -> None:
    configure(farm, server.url)
    assert deploy(farm).code == 0
    (there,) = server.agents()
    there.write_bytes(old_agent.read_bytes())
    shown = assert_failed(deploy(farm), 5, "the agent of board is of another version")
    assert "it has farm 0.0.0, this farm has farm 0.1.0" in shown["why"]
    assert shown["fix"] == "farm provision --device board"
    done = farm.run("provision", "--device", "board")
    assert done.code == 0 and "MB sent" in done.out
    assert deploy(farm).code == 0


def test_an_agent_of_another_version_that_somebody_else_has_started(
    farm: Farm, old_agent: Path
) -> None:
    words = (old_agent, "--work-dir", farm.folder / "work")
    with serving(farm.folder, *words, says=r"listening on [^:]*:(\d+)") as port:
        configure(farm, f"rpc://{HOST}:{port}")
        shown = assert_failed(deploy(farm), 5, "the agent of board is of another version")
        assert f"farm agent --port {port}" in shown["fix"]
        doctor = farm.run("doctor", "--device", "board")
        assert "✗ agent version: the agent of board is of another version" in doctor.out
        assert doctor.code == 5


def test_an_agent_of_another_version_behind_a_tracker(farm: Farm, old_agent: Path) -> None:
    tracker = (sys.executable, "-m", "farm", "tracker", "--port", "0")
    with serving(
        farm.folder,
        *tracker,
        says=r"tracker on [^:]*:(\d+)",
        env={**farm.env, "FARM_TEST": "a server"},
    ) as port:
        words = (
            old_agent,
            "--work-dir",
            farm.folder / "work",
            "--tracker",
            f"{HOST}:{port}",
            "--key",
            "pi",
        )
        with serving(farm.folder, *words, says=r"registered with tracker"):
            configure(farm, f"tracker://{HOST}:{port}/pi")
            shown = assert_failed(deploy(farm), 5, "the agent of board is of another version")
            assert f"farm agent --tracker {HOST}:{port} --key pi" in shown["fix"]


def test_a_board_that_reboots_is_used_again_by_the_next_command(
    farm: Farm, server: SshServer, emulators: None
) -> None:
    running = run_slowly(farm, server)
    server.cut()
    kill_all(running_agents(farm), signal.SIGKILL)
    assert_failed(running.end(), 5, "the SSH connection to .* broke")
    assert_failed(deploy(farm), 5, "board is offline")
    server.start()
    farm.configure(
        f'[devices.board]\nprofile = "rasp3b"\nurl = "{server.url}"\noptions = {{ launcher = '
        f'"qemu-arm" }}\n{DIGITS}{QUICK}'
    )
    assert deploy(farm).code == 0
    assert_nothing_is_left(farm, server)
