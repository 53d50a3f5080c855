"""What the tests of boards by SSH share: how a board is described, how a command fails, how one is
kept busy, and what must not be left.
"""

from __future__ import annotations

import re

from farm_processes import DIGITS, QUICK, Done, Farm, Running
from ssh_server import SshServer
from timeouts import patient, wait_until

END_S = 10.0  # for the agent to notice that its client is gone, in the middle of an inference


def configure(farm: Farm, url: str, profile: str = "x86", options: str = "") -> None:
    farm.configure(
        f'[devices.board]\nprofile = "{profile}"\nurl = "{url}"\noptions = {{ {options} '
        f"}}\n{DIGITS}{QUICK}"
    )


def assert_nothing_is_left(farm: Farm, server: SshServer) -> None:
    """On neither side: no process, no session's folder, no half agent, no connection."""
    farm.assert_nothing_is_left(END_S)
    wait_until(
        lambda: not list(server.kept.glob("work/farm-session-*")),
        "the end of the session's folder",
        patient(END_S),
    )
    assert list(server.kept.rglob(".part-*")) == []
    wait_until(lambda: not server.connections(), "the end of the connections", patient(END_S))


def assert_failed(done: Done, code: int, words: str) -> dict[str, str]:
    assert done.code == code, done.err
    assert re.search(words, done.error["error"]), done.err
    assert done.error["why"] and done.error["fix"], done.err
    return done.error


def run_slowly(farm: Farm, server: SshServer, options: str = "") -> Running:
    """A job that keeps the board busy for half a minute, in the middle of its inference."""
    configure(
        farm, server.url, "rasp3b", ", ".join(filter(None, ['launcher = "qemu-arm"', options]))
    )
    running = farm.start("deploy", "--device", "board", "slow.onnx")
    running.says("board slow: running")
    wait_until(lambda: len(running_agents(farm)) == 2, "the agent and its session")
    return running


def running_agents(farm: Farm) -> list[int]:
    return farm.processes_like(r"^\S*qemu-arm .*farm-agent")
