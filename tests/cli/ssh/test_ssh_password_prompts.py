"""Passwords and passphrases as people give them: typed on the terminal, once, and kept nowhere."""

from __future__ import annotations

import re
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from farm_processes import DIGITS, HIDE_CURSOR, QUICK, SHOW_CURSOR, Farm, Terminal
from ssh_board_checks import assert_failed, assert_nothing_is_left, configure
from ssh_password_server import PASSWORD, PASSWORDS, QUESTIONS, password_server
from ssh_server import SshServer
from timeouts import patient, wait_until

ASKED = r"password of \S+: "


@pytest.fixture
def locked(request: pytest.FixtureRequest, farm: Farm, tmp_path: Path) -> Iterator[SshServer]:
    """A server that lets in who knows the password."""
    with password_server(
        tmp_path / "ssh", farm.mark, getattr(request, "param", PASSWORDS)
    ) as server:
        farm.environment = {"HOME": str(server.home), "SSH_AUTH_SOCK": "/nowhere"}
        configure(farm, server.url)
        yield server


both = pytest.mark.parametrize(
    "locked", [PASSWORDS, QUESTIONS], ids=["password", "keyboard-interactive"], indirect=True
)


def deploy(farm: Farm) -> Terminal:
    return farm.start_on_terminal("deploy", "--device", "board", "digits")


def answer(terminal: Terminal, text: str, asked: str = ASKED, times: int = 1) -> None:
    """Type a line once the question has come for the so manieth time."""
    terminal.says(rf"(?s)({asked}.*){{{times}}}")
    terminal.type(f"{text}\n")


def echoes(terminal: Terminal) -> bool:
    return bool(termios.tcgetattr(terminal._descriptor)[3] & termios.ECHO)


def assert_not_in_files(secret: str, *folders: Path) -> None:
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert files
    assert [file for file in files if secret.encode() in file.read_bytes()] == []


@both
def test_a_password_is_asked_for_once_and_kept_nowhere(farm: Farm, locked: SshServer) -> None:
    devices = [
        f'[devices.board{number}]\nprofile = "x86"\nurl = "{locked.url}"\n' for number in (1, 2)
    ]
    farm.configure("".join(devices) + DIGITS + QUICK)
    terminal = farm.start_on_terminal("bench", "--all", "digits")
    answer(terminal, PASSWORD)
    wait_until(
        lambda: farm.processes_like("farm-agent --stdio") or terminal.child.poll() is not None,
        "an agent",
    )
    seen = [f"/proc/{pid}/{file}" for pid in farm.processes() for file in ("cmdline", "environ")]
    assert [file for file in seen if PASSWORD.encode() in content_if_there(Path(file))] == []
    done = terminal.end()
    assert done.code == 0, done.err
    assert len(re.findall(ASKED, done.err)) == 1
    assert_not_in_files(PASSWORD, farm.folder, farm.cache, farm.data)
    assert_nothing_is_left(farm, locked)


def content_if_there(file: Path) -> bytes:
    """The content of a file of a process, which may have ended meanwhile."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


def test_the_dashboard_makes_room_for_the_question_and_goes_on(
    farm: Farm, locked: SshServer
) -> None:
    terminal = deploy(farm)
    terminal.says(ASKED)
    assert not echoes(terminal)
    terminal.type(f"{PASSWORD}\n")
    done = terminal.end()
    assert done.code == 0, done.err
    before, after = re.split(ASKED, done.err)
    assert before.rindex(SHOW_CURSOR) > before.rindex(HIDE_CURSOR)
    assert "board" in after.partition(HIDE_CURSOR)[2]
    assert re.search(r"\x1b\[\d*A", after.partition("board")[0]) is None, (
        "what stands above the question is not overwritten"
    )


@both
def test_a_wrong_password_may_be_corrected(farm: Farm, locked: SshServer) -> None:
    terminal = deploy(farm)
    answer(terminal, "wrong")
    answer(terminal, PASSWORD, times=2)
    done = terminal.end()
    assert done.code == 0, done.err
    assert "refused, once more" in done.err


@both
def test_three_wrong_passwords_are_enough(farm: Farm, locked: SshServer) -> None:
    terminal = deploy(farm)
    for times in (1, 2, 3):
        answer(terminal, f"wrong {times}", times=times)
    done = terminal.end()
    assert (done.code, "refuses the password" in done.err) == (5, True)
    assert len(re.findall(ASKED, done.err)) == 3
    assert "wrong 1" not in done.err
    assert_nothing_is_left(farm, locked)


def test_ctrl_c_at_the_question_ends_the_command(farm: Farm, locked: SshServer) -> None:
    terminal = deploy(farm)
    terminal.says(ASKED)
    assert not echoes(terminal)
    terminal.type("half of a pass\x03")
    assert terminal.end().code == 130
    assert echoes(terminal)
    assert "half" not in terminal.said
    assert_nothing_is_left(farm, locked)


def test_no_answer_is_an_answer(farm: Farm, locked: SshServer) -> None:
    terminal = deploy(farm)
    answer(terminal, "")
    done = terminal.end()
    assert (done.code, "does not accept keys" in done.err) == (5, True)
    assert len(re.findall(ASKED, done.err)) == 1


@both
def test_without_a_terminal_nothing_is_asked(farm: Farm, locked: SshServer) -> None:
    done = farm.run("deploy", "--device", "board", "digits")
    assert "terminal" in assert_failed(done, 5, "does not accept keys")["fix"]
    assert "password of" not in done.err


def test_the_time_of_the_question_is_not_the_jobs(farm: Farm, locked: SshServer) -> None:
    deadline_s = patient(12)
    configure(farm, locked.url, options=f"deadline_s = {deadline_s}")
    terminal = deploy(farm)
    terminal.says(ASKED)
    time.sleep(deadline_s + 1)  # the user thinks longer than the job may take
    terminal.type(f"{PASSWORD}\n")
    assert terminal.end().code == 0


def test_a_server_that_does_not_wait_for_the_answer_is_asked_again(
    farm: Farm, locked: SshServer
) -> None:
    locked.configure(f"LoginGraceTime {patient(2):.0f}")
    terminal = deploy(farm)
    terminal.says(ASKED)
    wait_until(lambda: not locked.connections(), "the end of the server's patience")
    terminal.type(f"{PASSWORD}\n")
    done = terminal.end()
    assert done.code == 0, done.err
    assert len(re.findall(ASKED, done.err)) == 1


def test_every_command_asks(farm: Farm, locked: SshServer) -> None:
    for arguments in (
        ["provision", "--device", "board"],
        ["devices", "-v"],
        ["doctor", "--device", "board"],
    ):
        terminal = farm.start_on_terminal(*arguments)
        answer(terminal, PASSWORD)
        done = terminal.end()
        assert done.code == 0, done.err
        assert len(re.findall(ASKED, done.err)) == 1


def test_a_passphrase_is_asked_for(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-N", "open it", "-f", server.home / ".ssh/id_ed25519"],
        check=True,
    )
    terminal = deploy(farm)
    answer(terminal, "wrong", "passphrase of the key .*: ")
    answer(terminal, "open it", "passphrase of the key .*: ", times=2)
    done = terminal.end()
    assert done.code == 0, done.err
    assert_not_in_files("open it", farm.folder, farm.data)
    terminal = deploy(farm)
    terminal.says("passphrase of the key")
    terminal.send(signal.SIGTERM)
    assert terminal.end().code == 143
    assert echoes(terminal)
