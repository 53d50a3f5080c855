"""A board behind NAT: in a network of its own, from which only its tunnel leads out."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from accepting import accepting
from lab_door import Door, door
from ssh_server import keygen
from timeouts import LIMIT_S, wait_until

from farm import transports
from farm.errors import DeviceError, UsageError
from farm.processes import subprocesses
from farm.transports.ssh.systemd_tunnel import (
    UNIT,
    LabTunnel,
    known_hosts_lines,
    lab_tunnel_from_options,
    unit_text,
)
from farm.types import Device, Profile

PORT = 20007
CACHE = os.environ.get("FARM_CACHE") or str(Path.home() / ".cache" / "farm")  # has the agent
# Stands for the router: it reaches the lab's sshd by a Unix socket, whatever network it is in
PROXY = (
    "import socket, sys; from farm.lab.door.pump import pump_bytes; "
    "peer = socket.socket(socket.AF_UNIX); peer.connect(sys.argv[1]); pump_bytes(peer)"
)


def may_unshare() -> bool:
    trial = ["unshare", "--net", "ip", "link", "set", "lo", "up"]
    return os.getuid() == 0 and subprocess.run(trial, capture_output=True).returncode == 0


@contextlib.contextmanager
def router(path: Path, port: int) -> Iterator[None]:
    """A Unix socket, each of whose connections goes on to a port of loopback."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def pass_on(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    sink.sendall(data)
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

        def join(near: socket.socket) -> None:
            far = socket.create_connection(("127.0.0.1", port))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pass_on, args=ends, daemon=True).start()

        with accepting(listener, join):
            yield


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    if not may_unshare():
        pytest.skip("a network of its own needs root")
    with door(tmp_path / "door") as one:
        monkeypatch.setenv("HOME", str(one.sshd.home))
        monkeypatch.setenv("FARM_LAB", str(one.lab.socket))
        one.add("pi5-07", "--board", "--port", str(PORT))
        yield one


def test_a_board_behind_nat_is_leased_through_the_tunnel_of_its_unit(
    served: Door, tmp_path: Path
) -> None:
    url = served.sshd.url.replace("ssh", "lab", 1)
    tunnel = LabTunnel(url, "pi5-07", PORT, f"127.0.0.1:{served.lab.port}")
    folder = tmp_path / "service"
    folder.mkdir()
    (folder / "lab_hosts").write_text(known_hosts_lines(tunnel))
    (folder / "lab_key").write_bytes(served.key_of("pi5-07").read_bytes())
    (folder / "lab_key").chmod(0o600)
    unit = unit_text(tunnel, str(folder), is_root=True)
    words = shlex.split(re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)[0])
    path = served.lab.folder / "router"
    proxy = f"{shlex.join([sys.executable, '-c', PROXY, str(path)])}"
    words[-1:-1] = ["-o", f"ProxyCommand={proxy}"]
    agent = [sys.executable, "-m", "farm", "agent", "--port", str(PORT), "--key", "x86"]
    agent += ["--tracker", "127.0.0.1:9190", "--board", "pi5-07"]
    script = f"ip link set lo up; {shlex.join(words)} & exec {shlex.join(agent)}"
    with router(path, served.sshd.port):
        board = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", script],
            env={**served.lab.environment, "FARM_CACHE": CACHE},
            cwd=folder,  # as its unit says
            start_new_session=True,
        )
        try:
            with served.lab.client() as client:
                [found] = wait_until(lambda: client.ask("boards")["boards"], "the board")
                assert (found["name"], found["address"]) == ("pi5-07", f"127.0.0.1:{PORT}")
            device = Device("one", Profile("x86", {"kind": "llvm"}, ""), "lab:board=pi5-07")
            with transports.open(device, None, tmp_path, 60.0) as link:
                assert "tvm" in link.facts() and link.leased["lab_board"] == "pi5-07"
        finally:
            os.killpg(board.pid, signal.SIGKILL)
            board.wait(LIMIT_S)


@pytest.mark.parametrize(
    "lab", ["farm@lab", "ssh://farm@lab", "lab://lab", "lab://farm@lab/pi5", "lab://-x@lab"]
)
def test_a_url_that_is_no_way_to_a_lab_is_refused(lab: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--lab {lab} is no ")):
        lab_tunnel_from_options(lab, "pi5-07", PORT, "")


def test_a_lab_whose_host_key_is_not_known_here_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DeviceError, match="is not known here"):
        known_hosts_lines(lab_tunnel_from_options("lab://farm@lab.invalid", "pi5-07", PORT, ""))


@pytest.mark.parametrize("is_root", [True, False])
def test_systemd_has_nothing_to_say_against_its_unit(tmp_path: Path, is_root: bool) -> None:
    if not subprocesses.first_installed_program("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    folder = tmp_path / "a b$HOME 100%"
    folder.mkdir()
    file = tmp_path / UNIT
    file.write_text(
        unit_text(
            lab_tunnel_from_options("lab://farm@lab:2222", "pi5-07", PORT, ""),
            str(folder),
            is_root=is_root,
        )
    )
    scope = "--system" if is_root else "--user"
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = ["systemd-analyze", "verify", scope, "--man=no", file]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert [line for line in done.stderr.splitlines() if "farm-tunnel" in line] == []


def test_a_board_gets_the_address_that_an_alias_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not this machine's ~/.ssh/config."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(
        "Host lab\n  HostName Lab.example.org\n  Port 2222\n  HostKeyAlias the-lab\n"
    )
    keygen(tmp_path / "key")
    key = (tmp_path / "key.pub").read_text().split()[:2]
    (tmp_path / ".ssh" / "known_hosts").write_text(f"the-lab {' '.join(key)}\n")
    tunnel = lab_tunnel_from_options("lab://farm@lab", "pi5-07", PORT, "")
    assert known_hosts_lines(tunnel) == f"[lab.example.org]:2222 {' '.join(key)}\n"
    assert '"-p" "2222" "-l" "farm" "Lab.example.org"' in unit_text(tunnel, "/x", is_root=True)


def test_a_folder_begins_no_line_of_its_own_in_the_unit() -> None:
    with pytest.raises(DeviceError, match="control character"):
        unit_text(
            lab_tunnel_from_options("lab://farm@lab", "b", PORT, ""),
            "/x\nExecStartPre=x",
            is_root=True,
        )
