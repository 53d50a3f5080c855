"""Scripts for boards, run by this machine's sh: folders with odd names stay names."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from timeouts import LIMIT_S, patient, wait_until

from farm.config import load_fleet
from farm.config.locate import SHIPPED
from farm.processes.deadline import Deadline
from farm.transports import board_scripts
from farm.transports.ssh import install_and_removal_scripts
from farm.transports.ssh.board import SshBoard
from farm.types import Device

ODD = [
    "a b",
    "b$(touch PWNED)",
    "b`touch PWNED`",
    'b"; touch PWNED; "',
    "b'; touch PWNED; '",
    "b\\",
    "$HOME",
]
PROGRAM = b'#!/bin/sh\nprintf \'%s\\n\' "$0" "$@"\n'


def run_script(home: Path, script: str, *words: str, given: bytes = b"") -> str:
    """Run a script as a board's shell would; what it printed."""
    command = ["sh", "-c", board_scripts.HEAD + script, "farm", *words]
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, input=given, capture_output=True, cwd=home, env=env, check=True)
    return done.stdout.decode()


def wrapper(store: str, base: Path) -> str:
    """The wrapper that farm writes for a board whose option `store` is this."""
    options = {"store": store}
    device = Device("pi", load_fleet(SHIPPED).profiles["x86"], "ssh://pi@pi", options=options)
    digest = sha256(PROGRAM).hexdigest()
    seen = {"base": str(base), "store": str(base), "work": str(base / "work")}
    seen["agent"] = f"{base}/agents/{digest}/farm-agent"
    return SshBoard(device, Deadline(1), None)._wrapper(seen)


def processes_of(mark: str) -> list[str]:
    """The commands of the processes that have this mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"FARM_TEST={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [command for command in found if command]  # a zombie has none


@pytest.fixture(params=["sh", "bash", "mksh"])
def shell(request: pytest.FixtureRequest) -> str:
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


def start(shell: str, home: Path, program: str, seconds: int, mark: str) -> subprocess.Popen[bytes]:
    """Start an agent, which is this script, as a session does."""
    agent = home / "agent"
    agent.write_text(f"#!/bin/sh\n{program}\n")
    agent.chmod(0o700)
    script = board_scripts.HEAD + board_scripts.START
    command = [
        shell,
        "-c",
        script,
        "farm",
        str(home / "base"),
        "",
        "wrapper",
        str(seconds),
        str(agent),
    ]
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "FARM_TEST": mark}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, cwd=home
    )


def test_an_agent_that_ends_at_once_leaves_no_process_of_its_time_limit(
    tmp_path: Path, shell: str
) -> None:
    """Not even where the sleep has been forked and has not begun."""
    mark = f"at once, {tmp_path}"
    for _ in range(15):
        folders = [tmp_path / str(number) for number in range(20)]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        running = [start(shell, folder, "exit 7", 30, mark) for folder in folders]
        assert [child.wait() for child in running] == [7] * len(running)
    wait_until(lambda: not processes_of(mark), f"the end of {processes_of(mark)}", patient(5))


def test_an_agent_ends_after_its_time_limit(tmp_path: Path, shell: str) -> None:
    mark = f"too long, {tmp_path}"
    assert start(shell, tmp_path, "exec sleep 100", 1, mark).wait(LIMIT_S) == 128 + signal.SIGTERM
    wait_until(lambda: not processes_of(mark), f"the end of {processes_of(mark)}", patient(5))


@pytest.mark.parametrize("name", ODD)
def test_an_agent_is_put_and_started_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    base, digest = tmp_path / name, sha256(PROGRAM).hexdigest()
    script = board_scripts.PUT
    said = run_script(tmp_path, script, name, "", str(len(PROGRAM)), digest, given=PROGRAM)
    agent = base / "agents" / digest / "farm-agent"
    assert f"farm:placed={base}/agents/{digest}/.part-" in said
    assert agent.read_bytes() == PROGRAM
    assert [path.name for path in agent.parent.iterdir()] == ["farm-agent"]
    run_script(tmp_path, board_scripts.WRAP, name, "", wrapper(name, base))
    shown = subprocess.run([base / "farm-agent", "list"], capture_output=True, cwd=tmp_path)
    assert shown.stdout.decode().splitlines() == [str(agent), "list", "--store", str(base)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [name], "nothing was run"


def test_a_folder_beside_farms_whose_name_begins_alike_is_another(tmp_path: Path) -> None:
    base, store, disk = tmp_path / "farm", tmp_path / "farm-store", tmp_path / "disk"
    agent = base / "agents" / "d" / "farm-agent"
    (disk / "agents" / "d").mkdir(parents=True)
    base.symlink_to(disk)
    agent.write_bytes(PROGRAM)
    agent.chmod(0o700)
    device = Device("pi", load_fleet(SHIPPED).profiles["x86"], "ssh://pi@pi")
    seen = {"base": str(base), "store": str(store), "agent": str(agent)}
    script = SshBoard(device, Deadline(1), None)._wrapper(seen)
    run_script(tmp_path, board_scripts.WRAP, str(base), "", script)
    shown = subprocess.run([base / "farm-agent", "list"], capture_output=True, cwd=tmp_path)
    placed = str(disk / "agents" / "d" / "farm-agent")
    assert shown.stdout.decode().splitlines() == [placed, "list", "--store", str(store)]


@pytest.mark.parametrize("script", [board_scripts.PUT, install_and_removal_scripts.INSTALL])
def test_no_trap_runs_what_a_path_says(script: str) -> None:
    lines = [line.strip() for line in script.splitlines()]
    traps = [line for line in lines if line.startswith("trap") and "$part" in line]
    assert traps and all(r"\$part" in line for line in traps)


# What the script asks a systemd of; it takes note of every word that it, or ps, could have seen.
SYSTEMCTL = """#!/bin/sh
cat /proc/[0-9]*/cmdline | tr "\\000" " " >>"$HOME/seen"
echo "$*" >>"$HOME/asked"
case "$*" in
  *restart*) echo 9090 >"$HOME/b/service/port"; touch "$HOME/runs";;
  *is-active*) test -e "$HOME/runs" || exit 3;;
esac
"""


def install(home: Path, how: str, key: str) -> str:
    """Run the script that installs a service; the key that the board has then."""
    (home / "bin").mkdir(exist_ok=True)
    (home / "bin" / "systemctl").write_text(SYSTEMCTL)
    (home / "bin" / "systemctl").chmod(0o755)
    agent = home / "b" / "agents" / "d" / "farm-agent"
    agent.parent.mkdir(parents=True, exist_ok=True)
    agent.write_bytes(PROGRAM)
    script = install_and_removal_scripts.INSTALL.replace("/etc/systemd/system", f"{home}/units")
    command = ["sh", "-c", board_scripts.HEAD + script, "farm", "b", "", "d", "unit", how, ""]
    env = {"HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
    given = f"FARM_AGENT_KEY={key}\n".encode()
    done = subprocess.run(command, input=given, capture_output=True, cwd=home, env=env, check=True)
    assert b"farm:listens=9090" in done.stdout, done
    kept = home / "b" / "service" / "key"
    assert kept.stat().st_mode & 0o777 == 0o600
    return kept.read_text().removeprefix("FARM_AGENT_KEY=").strip()


def test_the_key_of_a_service_is_on_no_command_line_of_the_board(tmp_path: Path) -> None:
    assert install(tmp_path, "given", "s3cret-key") == "s3cret-key"
    seen = (tmp_path / "seen").read_text()
    assert "systemctl" in seen and "s3cret-key" not in seen


def test_a_service_is_restarted_if_anything_changed_or_if_it_has_stopped(tmp_path: Path) -> None:
    def restarts() -> int:
        return (tmp_path / "asked").read_text().count("restart")

    install(tmp_path, "given", "key")
    assert restarts() == 1
    install(tmp_path, "given", "key")
    assert restarts() == 1
    (tmp_path / "runs").unlink()
    install(tmp_path, "given", "key")
    assert restarts() == 2
    install(tmp_path, "given", "other")
    assert restarts() == 3


def test_a_board_makes_a_key_for_its_service_once(tmp_path: Path) -> None:
    made = install(tmp_path, "random", "")
    assert re.fullmatch("[0-9a-f]{48}", made)
    assert install(tmp_path, "random", "") == made
    assert install(tmp_path, "given", "") == "", "as --no-key wants it"
    assert install(tmp_path, "random", "") != made
