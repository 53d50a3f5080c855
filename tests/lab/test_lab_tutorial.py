"""The tutorial of a lab, from its first command to its last, on machines of their own: a server, a
desk, and a board with systemd that reaches the server by its tunnel only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tvm_programs
from lab_tutorial_hosts import Host, host
from network_namespaces import machines
from ssh_server import keygen
from systemd_board import SystemdBoard, systemd_board
from timeouts import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "lab.md"
CACHE = os.environ.get("FARM_CACHE") or str(Path.home() / ".cache" / "farm")  # has the agent
ROOT, LAB, MINE = "the lab's server, as root", "the lab's server, as farm", "your machine"
ALICE = "alice's machine"
# Commands of root's that would change this machine, and what they do in their place
STAND_INS = """
useradd() { echo "$@" >>{folder}/useradd; }
su() { echo "$@" >>{folder}/su; }
systemctl() { echo "$@" >>{folder}/systemctl; }
"""
VARIABLES = "TVM_TRACKER_HOST=127.0.0.1 TVM_TRACKER_PORT=9190 TVM_TRACKER_KEY=x86"
TUNE = """
import os
from tvm import rpc
tracker = rpc.connect_tracker(os.environ["TVM_TRACKER_HOST"], int(os.environ["TVM_TRACKER_PORT"]))
session = tracker.request(os.environ["TVM_TRACKER_KEY"], session_timeout=60)
print("a session with", session.cpu(0))
"""


@dataclass(frozen=True)
class Block:
    """A block of the page: its language, what its first comment says, and its text."""

    language: str
    comment: str
    text: str


def blocks() -> Iterator[Block]:
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        comment, _, rest = text.partition("\n")
        assert comment.startswith("# "), f"a block does not say where it belongs: {text}"
        yield Block(language, comment.removeprefix("# ").removeprefix("on ").strip(), rest)


class Journey:
    """Does what the page says, block after block."""

    def __init__(self, server: Host, desk: Host, board: SystemdBoard) -> None:
        self.server, self.desk, self.board = server, desk, board
        self.done: list[str] = []
        self.unit = ""

    def do(self, block: Block) -> None:
        text = block.text.replace("rasp4-64", "x86")  # what the board is here
        match block.language, block.comment:
            case "sh", comment if comment == ROOT:
                self._as_root(text)
            case "ini", _:
                self.unit = text
            case "toml", "lab.toml":
                self._with_settings(text)
            case "toml", "devices.toml":
                self.desk.write("devices.toml", text)
            case "sh", comment:
                place = self.server if comment == LAB else self.desk
                assert comment in (LAB, MINE, ALICE, "in the pipeline"), comment
                for line in text.splitlines():
                    self._run(place, line.partition("  #")[0].strip())

    def _as_root(self, text: str) -> None:
        folder = self.server.folder
        (folder / "systemctl").write_text("")
        stand_ins = STAND_INS.replace("{folder}", str(folder))
        self.server.run(stand_ins + text)
        self.done += text.splitlines()
        for words in (folder / "systemctl").read_text().splitlines():
            if words == "reload ssh":
                self.server.run("kill -HUP $(cat /run/farm-sshd.pid)")
            else:
                assert words == "enable --now farm-lab"
                self._serve(self._started_by(self.unit))

    def _started_by(self, unit: str) -> str:
        [command] = re.findall(r"^ExecStart=(.*)$", unit, re.M)
        return command

    def _serve(self, command: str) -> None:
        child = self.server.begin(command)
        wait_until(lambda: "page on " in self.server.said(child), "the lab's server")
        self.serving = child

    def _with_settings(self, text: str) -> None:
        """As the page says below: another ExecStart, and a restart."""
        hook = self.server.folder / "power-cycle"
        hook.write_text("#!/bin/sh\n")
        hook.chmod(0o755)
        self.server.write("lab.toml", text.replace("/usr/local/bin/power-cycle", str(hook)))
        [command] = re.findall(r"`ExecStart=([^`]*--config[^`]*)`", PAGE.read_text())
        self.serving.terminate()
        self.serving.wait()
        self._serve(command)
        self._wait_until_good()

    def _wait_until_good(self) -> None:
        def good() -> bool:
            boards = json.loads(self.server.run("farm lab boards --json"))["boards"]
            [board] = [one for one in boards if one["name"] == "pi4-01"]
            return (board["health"], board["use"]) == ("good", "free")

        wait_until(good, "the board's check")

    def _boards(self) -> str:
        return self.server.run("farm lab boards")

    def _run(self, place: Host, line: str) -> None:
        if line.startswith("python3 -m tvm.exec.rpc_server"):
            place.begin(line)
            wait_until(lambda: "x86@" in self._boards(), "TVM's server registers")
        elif line.startswith("farm lab proxy"):
            child = place.begin(line)
            wait_until(lambda: "TVM_TRACKER_PORT=9190" in place.said(child), "the proxy")
            place.run(f"{VARIABLES} python3 tune.py")
            child.send_signal(signal.SIGINT)
            child.wait()
        else:
            said = place.run(line)
            if line.startswith("farm provision"):
                self._let_in(said)
            if line == 'farm lab return pi4-01 --because "new fan"':
                self._wait_until_good()
        self.done.append(line)

    def _let_in(self, said: str) -> None:
        """The last line of what provision says, at the lab."""
        [command] = re.findall(r"echo '.*' \| farm lab user add .*", said)
        self.server.run(command)
        wait_until(lambda: "pi4-01" in self._boards(), "the board is there by its tunnel")


@pytest.fixture
def journey(tmp_path: Path) -> Iterator[Journey]:
    with contextlib.ExitStack() as stack:
        lab, desk, board = stack.enter_context(machines(3))
        hosts = (
            f"127.0.0.1 localhost\n{lab.address} lab.example.org\n"
            f"{board.address} raspberrypi.local\n"
        )
        (tmp_path / "board").mkdir()
        (tmp_path / "board" / "hosts").write_text(hosts)
        mark = uuid.uuid4().hex
        # Not by `ip netns exec`, which hides the control groups
        network = ("nsenter", f"--net=/run/netns/{board.namespace}")
        pi = stack.enter_context(systemd_board(tmp_path / "board", mark, network, board.address))
        keep = {**_path_without_torch(), "FARM_CACHE": CACHE, "FARM_TEST": mark}
        server = stack.enter_context(host(lab, "farm", tmp_path / "server", hosts, **keep))
        alice = stack.enter_context(host(desk, "alice", tmp_path / "desk", hosts, **keep))
        server.serve_ssh()
        _keys(server, alice, pi, tmp_path)
        alice.write("tune.py", TUNE)
        yield Journey(server, alice, pi)


def _path_without_torch() -> dict[str, str]:
    """For TVM's programs, which the tutorial starts. No command of it needs torch."""
    return {"PYTHONPATH": tvm_programs.environment()["PYTHONPATH"]}


def _keys(server: Host, alice: Host, board: SystemdBoard, folder: Path) -> None:
    """The keys of alice and of the pipeline; she has the key of the board, too."""
    for name in ("alice", "ci"):
        keygen(folder / name)
        server.write(f"{name}.pub", (folder / f"{name}.pub").read_text())
    own = (board.folder / "home" / ".ssh" / "id_ed25519").read_text()
    alice.run("mkdir -m 700 .ssh")
    alice.write(".ssh/alice", (folder / "alice").read_text())
    alice.write(".ssh/board", own)
    alice.write(
        ".ssh/config",
        "Host lab.example.org\n  IdentityFile ~/.ssh/alice\n"
        f"Host raspberrypi.local\n  Port {board.port}\n  IdentityFile ~/.ssh/board\n",
    )
    key = (board.folder / "host_key.pub").read_text()
    alice.write(".ssh/known_hosts", f"[raspberrypi.local]:{board.port} {key}")
    alice.run("chmod 600 .ssh/*")


def test_every_command_of_the_tutorial_does_what_it_says(journey: Journey) -> None:
    for block in blocks():
        if block.comment == MINE:
            refused = journey.desk.run(
                "ssh -o StrictHostKeyChecking=accept-new -i .ssh/alice farm@lab.example.org || true"
            )
            assert "the lab's door does not do that" in refused
        journey.do(block)
    assert sum(line.startswith("farm ") for line in journey.done) >= 15
    events = journey.server.run("farm lab events")
    assert "lease-abandoned" not in events
    listening = journey.server.run("ss -Hltn")
    assert {line.split()[3].rpartition(":")[0] for line in listening.splitlines()} <= {
        "127.0.0.1",
        "0.0.0.0",
        "[::]",
    }
    outside = [line for line in listening.splitlines() if "127.0.0.1" not in line.split()[3]]
    assert all(line.split()[3].endswith(":22") for line in outside), "only sshd"
