"""What the tests of Android boards share: how one is described, how a command fails, and what must
not be left.
"""

from __future__ import annotations

import re

from android_board import AndroidBoard
from farm_processes import DIGITS, QUICK, Done, Farm, Running
from timeouts import patient, wait_until

END_S = 10.0  # for the agent to notice that its client is gone, in the middle of an inference


def configure(farm: Farm, url: str, profile: str = "x86", options: str = "") -> None:
    farm.configure(
        f'[devices.board]\nprofile = "{profile}"\nurl = "{url}"\noptions = {{ {options} '
        f"}}\n{DIGITS}{QUICK}"
    )


def deploy(farm: Farm) -> Done:
    return farm.run("deploy", "--device", "board", "digits")


def assert_failed(done: Done, code: int, words: str) -> dict[str, str]:
    assert done.code == code, done.err
    assert re.search(words, done.error["error"]), done.err
    assert done.error["why"] and done.error["fix"], done.err
    return done.error


def board_processes(farm: Farm) -> dict[int, str]:
    """What runs on the board, and of farm, without the stand-in itself."""
    return {pid: line for pid, line in farm.processes().items() if "adbd_stand_in.py" not in line}


def assert_nothing_is_left(farm: Farm, board: AndroidBoard) -> None:
    """On neither side: no process, no session's folder, no half agent, no port forwarded; the
    server is as it was.
    """
    wait_until(
        lambda: not board_processes(farm), f"the end of {board_processes(farm)}", patient(END_S)
    )
    wait_until(
        lambda: not list(board.kept.glob("work/farm-session-*")),
        "the end of the session's folder",
        patient(END_S),
    )
    assert list(board.kept.rglob(".part-*")) == []
    assert farm.scratch() == [] and farm.halves() == []
    if board.server.is_up():
        assert board.server.adb("forward", "--list").stdout.strip() == b""


def run_slowly(farm: Farm, board: AndroidBoard, options: str = "") -> Running:
    """A job that keeps the board busy for half a minute, in the middle of its inference."""
    configure(
        farm, board.url, "rasp3b", ", ".join(filter(None, ['launcher = "qemu-arm"', options]))
    )
    running = farm.start("deploy", "--device", "board", "slow.onnx")
    running.says("board slow: running")
    wait_until(
        lambda: len(farm.processes_like(r"^\S*qemu-arm .*farm-agent")) == 2,
        "the agent and its session",
    )
    return running
