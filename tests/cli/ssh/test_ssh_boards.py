"""Boards by SSH, with a real SSH server: the agent gets there by itself, nothing is trusted
silently, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from farm_processes import Done, Farm
from ssh_board_checks import assert_failed, assert_nothing_is_left, configure
from ssh_server import SshServer, keygen, ssh_server

ARM = [("rasp3b", "qemu-arm"), ("rk3399", "qemu-aarch64")]


@pytest.fixture(autouse=True)
def board(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)


def deploy(farm: Farm) -> Done:
    return farm.run("deploy", "--device", "board", "digits")


def test_a_board_is_benched_and_agrees_with_the_reference(farm: Farm, server: SshServer) -> None:
    done = farm.run("bench", "--device", "board", "digits", "--json")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["verdict"] in ("STABLE", "NOISY")
    assert run["samples"]["agreement"]["right"] is True
    assert run["samples"]["correct"] >= 19
    assert run["samples"]["uploaded"] > 50_000
    assert_nothing_is_left(farm, server)


def test_what_is_on_the_board_is_not_sent_again(farm: Farm, server: SshServer) -> None:
    assert "MB sent" in deploy(farm).out
    (agent,) = server.agents()
    before = agent.stat()
    again = farm.run("deploy", "--device", "board", "digits", "--json")
    assert again.json["runs"][0]["samples"]["uploaded"] == 0
    assert server.agents() == [agent]
    assert (agent.stat().st_ino, agent.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_agent_that_is_not_whole_is_replaced(farm: Farm, server: SshServer) -> None:
    assert deploy(farm).code == 0
    (agent,) = server.agents()
    size = agent.stat().st_size
    os.truncate(agent, 1000)
    assert deploy(farm).code == 0
    assert agent.stat().st_size == size


@pytest.mark.parametrize(("profile", "launcher"), ARM)
def test_arm_boards_get_agents_of_their_own(
    farm: Farm, server: SshServer, emulators: None, profile: str, launcher: str
) -> None:
    configure(farm, server.url, profile, f'launcher = "{launcher}", threads = 1')
    done = deploy(farm)
    assert done.code == 0, done.err
    assert "right" in done.out
    assert farm.run("devices", "-v").code == 0
    assert_nothing_is_left(farm, server)


def test_folders_on_the_board_can_be_chosen(farm: Farm, server: SshServer) -> None:
    configure(
        farm,
        server.url,
        options=f'store = "{server.folder}/a b/store", work_dir = "{server.folder}/a b/work"',
    )
    assert deploy(farm).code == 0
    assert len(list((server.folder / "a b" / "store").glob("agents/*/farm-agent"))) == 1
    assert not server.kept.exists() or not server.agents()
    assert list((server.folder / "a b" / "work").glob("farm-session-*")) == []


def test_a_host_alias_and_its_key_file_are_honoured(farm: Farm, server: SshServer) -> None:
    (server.home / ".ssh/id_ed25519").rename(server.home / "board key")
    config = (
        f"Host lab-board\n HostName 127.0.0.1\n Port {server.port}\n IdentityFile "
        f'"{server.home}/board key"\n'
    )
    (server.home / ".ssh/config").write_text(config)
    configure(farm, "ssh://lab-board")
    assert deploy(farm).code == 0


def test_a_board_behind_a_jump_host_is_reached(
    farm: Farm, server: SshServer, tmp_path: Path
) -> None:
    (tmp_path / "gate").mkdir()
    with ssh_server(tmp_path / "gate", farm.mark, more="") as gate:
        (gate.folder / "authorized_keys").write_text(
            (server.folder / "authorized_keys").read_text()
        )
        server.known_hosts.write_text(server.known_hosts.read_text() + gate.known_hosts.read_text())
        config = (
            f"Host inner\n HostName 127.0.0.1\n Port {server.port}\n ProxyJump "
            f"127.0.0.1:{gate.port}\n"
        )
        (server.home / ".ssh/config").write_text(config)
        configure(farm, "ssh://inner")
        assert deploy(farm).code == 0
        server.trust()  # the board, and no longer the jump host
        assert_failed(deploy(farm), 5, f"host key of board .*:{gate.port}.* is not known")


def test_an_unknown_host_key_is_refused_until_the_command_that_is_shown_accepts_it(
    farm: Farm, server: SshServer
) -> None:
    server.known_hosts.unlink()
    shown = assert_failed(deploy(farm), 5, "host key of board .* is not known")
    fingerprint = subprocess.run(
        ["ssh-keygen", "-lf", server.folder / "host_key.pub"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert fingerprint.split()[1] in shown["why"].replace("\n", "")
    assert not server.known_hosts.exists(), "never added by itself"
    assert not server.kept.exists()
    command = re.search(r"echo .*", shown["fix"].replace("\n", " "))
    assert command
    subprocess.run(["sh", "-c", command[0]], check=True)
    assert deploy(farm).code == 0


def test_a_changed_host_key_is_told_from_an_unknown_one(farm: Farm, server: SshServer) -> None:
    keygen(server.folder / "other")
    server.known_hosts.write_text(
        f"[127.0.0.1]:{server.port} {(server.folder / 'other.pub').read_text()}"
    )
    assert "ssh-keygen" in assert_failed(deploy(farm), 5, "host key of board .* has changed")["fix"]


def test_a_key_of_another_type_counts_as_changed(farm: Farm, server: SshServer) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", server.folder / "other"], check=True
    )
    server.known_hosts.write_text(
        f"[127.0.0.1]:{server.port} {(server.folder / 'other.pub').read_text()}"
    )
    assert_failed(deploy(farm), 5, "host key of board .* has changed")


def test_a_revoked_host_key_is_refused(farm: Farm, server: SshServer) -> None:
    with server.known_hosts.open("a") as file:
        file.write(f"@revoked * {(server.folder / 'host_key.pub').read_text()}")
    assert_failed(deploy(farm), 5, "host key of board .* is revoked")


def test_a_wrong_key_is_refused(farm: Farm, server: SshServer) -> None:
    (server.folder / "authorized_keys").write_text("")
    assert "ssh-copy-id" in assert_failed(deploy(farm), 5, "refuses the login")["fix"]


def test_a_wrong_user_is_refused(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url.replace("://", "://not").replace("@", "-a-user@"))
    assert_failed(deploy(farm), 5, "refuses the login")


def test_a_key_behind_a_passphrase_is_told(farm: Farm, server: SshServer) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-N", "secret", "-f", server.home / ".ssh/id_ed25519"],
        check=True,
    )
    assert "ssh-add" in assert_failed(deploy(farm), 5, "locked by a passphrase")["fix"]


def test_a_refused_port_is_told_at_once(farm: Farm, server: SshServer) -> None:
    server.cut()
    done = farm.run("deploy", "--device", "board", "digits", "--json")
    assert (done.code, done.json["runs"][0]["verdict"]) == (5, "UNAVAILABLE")
    assert f"127.0.0.1:{server.port}: Connection refused" in done.err


@pytest.mark.parametrize(
    ("says", "code", "words"),
    [(b"220 mail\r\n" * 200, 5, "is no SSH server"), (b"", 6, "does not answer")],
)
def test_what_is_no_ssh_server_is_told(
    farm: Farm, server: SshServer, says: bytes, code: int, words: str
) -> None:
    with listener(says) as port:
        configure(farm, f"ssh://127.0.0.1:{port}")
        assert_failed(deploy(farm), code, words)
    farm.assert_nothing_is_left()


@contextlib.contextmanager
def listener(says: bytes) -> Iterator[int]:
    """A server that says something to everybody, and keeps the connections."""
    kept = []

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = sock.accept()
                kept.append(connection)
                connection.sendall(says)

    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=serve, args=(sock,), daemon=True)
        thread.start()
        yield sock.getsockname()[1]
        sock.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in kept:
        connection.close()


def test_a_profile_for_another_architecture_is_refused(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url, "rasp3b")
    shown = assert_failed(deploy(farm), 5, "another kind of board")
    assert os.uname().machine in shown["why"] and "armv7" in shown["why"]
    assert server.agents() == []


def test_an_agent_that_does_not_run_there_is_not_kept(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url, options='launcher = "false"')
    assert_failed(deploy(farm), 5, "cannot run the agent")
    assert server.agents() == []
    assert list(server.kept.rglob(".part-*")) == []


def test_a_place_that_cannot_be_written_is_told(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url, options='store = "/proc/farm"')
    assert "/proc/farm" in assert_failed(deploy(farm), 5, "has no folder for us")["why"]


SLOW_TVM = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "tvm":
            time.sleep(12)  # longer than an agent waits for the first word
sys.meta_path.insert(0, Slow())
"""


def test_a_slow_machine_of_the_user_does_not_keep_the_agent_waiting(
    farm: Farm, server: SshServer
) -> None:
    assert deploy(farm).code == 0
    (farm.folder / "slow").mkdir()
    (farm.folder / "slow" / "sitecustomize.py").write_text(SLOW_TVM)
    paths = [str(farm.folder / "slow"), os.environ.get("PYTHONPATH", "")]
    farm.environment = {**farm.environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = farm.run("deployments", "--device", "board")
    assert done.code == 0, done.err
    assert "digits" in done.out
