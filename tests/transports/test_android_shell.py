"""The scripts for boards, run by Android's shell and file tools, mksh and toybox, say and do the
same as by this machine's.
"""

from __future__ import annotations

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from farm.transports import board_scripts
from farm.transports.adb import android_facts

PROGRAM = b"#!/bin/sh\necho farm-agent 1\n"
DIGEST = sha256(PROGRAM).hexdigest()
# What differs by right: the C library (getconf), and the blocks kept for root, which toybox calls
# free.
DIFFERENT = ("farm:libc=", "farm:free_kib=")


@pytest.fixture
def android_path(tmp_path: Path) -> str:
    """A PATH with toybox's tools before this machine's; Debian's toybox has no dd and no tr."""
    if not (shutil.which("mksh") and shutil.which("toybox")):
        pytest.skip("mksh and toybox are not installed: sudo apt-get install mksh toybox")
    folder = tmp_path / "toybox"
    folder.mkdir()
    for name in subprocess.run(
        ["toybox"], capture_output=True, text=True, check=True
    ).stdout.split():
        (folder / name).symlink_to(shutil.which("toybox") or "")
    return f"{folder}:/usr/bin:/bin"


ANSWERS = {
    "getprop": 'echo "value of $1"',
    "dumpsys": 'echo "  level: 80"; echo "mWakefulness=Awake"; echo "Thermal Status: 0"',
    "settings": "echo 1",
}


@pytest.fixture
def system_path(tmp_path: Path) -> str:
    """A folder with Android's own programs, which say something of the system."""
    folder = tmp_path / "system"
    folder.mkdir()
    for name, line in ANSWERS.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o700)
    return str(folder)


def journey(shell: str, path: str, home: Path) -> list[list[str]]:
    """Look at a board, put an agent there, prove it and start it; what each script printed."""
    home.mkdir()

    def run(script: str, *words: str, given: bytes = b"") -> list[str]:
        command = [shell, "-c", board_scripts.HEAD + script, "farm", "store", "", *words]
        env = {"HOME": str(home), "PATH": path}
        done = subprocess.run(
            command, input=given, capture_output=True, cwd=home, env=env, check=True
        )
        assert done.stderr == b""
        return [
            line.replace(str(home), "HOME")
            for line in done.stdout.decode().splitlines()
            if not line.startswith(DIFFERENT)
        ]

    agent = home / "store" / "agents" / DIGEST / "farm-agent"
    said = [
        run(board_scripts.LOOK, DIGEST),
        run(board_scripts.PUT, str(len(PROGRAM)), DIGEST, given=PROGRAM),
        run(board_scripts.PUT, str(len(PROGRAM) + 1), DIGEST, given=PROGRAM),
        run(board_scripts.LOOK, DIGEST),
        run(board_scripts.PROVE, DIGEST),
        run(board_scripts.IDENTIFY),
        run(board_scripts.START, "#!/bin/sh\n", "30", str(agent)),
        run(android_facts._SCRIPT),
    ]
    assert agent.read_bytes() == PROGRAM
    assert [path.name for path in agent.parent.iterdir()] == ["farm-agent"]
    return said


def test_the_scripts_say_and_do_the_same(
    tmp_path: Path, android_path: str, system_path: str
) -> None:
    android = journey("mksh", f"{system_path}:{android_path}", tmp_path / "android")
    assert android[4] == [f"farm:digest={DIGEST}", "farm:version=farm-agent 1"]
    assert android[6] == ["farm-agent 1"]
    assert android[7][-1] == "farm:thermal=Thermal Status: 0;"
    assert android == journey("sh", f"{system_path}:/usr/bin:/bin", tmp_path / "here")
