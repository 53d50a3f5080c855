"""farm provision: a board gets what it needs to be a device, step by step; a service where that is
wanted; and nothing of it stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tvm_programs
from farm_processes import DEVICES, DIGITS, HOST, QUICK, Done, Farm
from farm_processes import server as serving
from ssh_board_checks import assert_failed, assert_nothing_is_left, configure, run_slowly
from ssh_server import SshServer, ssh_server
from systemd_board import SystemdBoard, systemd_board
from timeouts import wait_until

from farm.processes import subprocesses

NAMED = ("--key", "pi", "--board", "pi-07")
IMAGE = Path(__file__).parents[3] / "docs" / "digit.png"
STEPS = [
    *(
        "name",
        "TCP",
        "host key",
        "login",
        "architecture",
        "space",
        "agent binary",
        "agent version",
        "RPC handshake",
        "answer",
    ),
    *("governor", "temperature", "throttling flags", "clock"),
]


def provision(farm: Farm, *options: str) -> Done:
    return farm.run("provision", "--device", "board", "--quiet", *options)


def run_digits(farm: Farm, device: str = "board") -> Done:
    return farm.run("run", "--device", device, "digits", "--input", IMAGE, "--output", "out.npz")


def test_the_journey_of_a_board(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    first = farm.run("provision", "--device", "board")
    assert first.code == 0, first.out
    assert [line.split(":")[0].split(maxsplit=1)[1] for line in first.out.splitlines()] == STEPS
    assert "MB sent" in first.out and "digits is right" in first.out
    again = provision(farm, "--json")
    (board,) = again.json["provisioned"]
    assert [layer["holds"] for layer in board["layers"]] == [True] * len(STEPS)
    assert "it was there already" in again.out
    for done in (
        farm.run("deploy", "--device", "board", "digits"),
        run_digits(farm),
        farm.run("bench", "--device", "board", "digits"),
    ):
        assert done.code == 0, done.err
    assert farm.run("doctor", "--device", "board").code == 0
    assert (
        "digits"
        in subprocess.run(
            [server.kept / "farm-agent", "list"], capture_output=True, text=True, check=True
        ).stdout
    )
    assert farm.run("undeploy", "--device", "board", "digits").code == 0
    assert_nothing_is_left(farm, server)
    said = subprocess.run(
        [server.kept / "farm-agent", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("farm-agent ")
    gone = provision(farm, "--remove")
    assert gone.code == 0 and "✓ agents: 1, removed" in gone.out and "kept files" in gone.out
    assert list(server.data.iterdir()) == []
    assert provision(farm, "--remove").out.strip() == "✓ removal: there is nothing of ours"


def test_the_journey_of_two_arm_boards_at_once(
    farm: Farm, server: SshServer, emulators: None
) -> None:
    kinds = {"pi": ("rasp3b", "qemu-arm"), "rock": ("rk3399", "qemu-aarch64")}
    tables = [
        f'[devices.{name}]\nprofile = "{profile}"\nurl = "{server.url}"\n'
        f'options = {{ launcher = "{launcher}", threads = 1, store = "{server.data}/{name}", '
        f'work_dir = "{server.data}/{name}/work" }}\n'
        for name, (profile, launcher) in kinds.items()
    ]
    farm.configure("".join(tables) + DIGITS + QUICK)
    done = farm.run("provision", "--all", "--quiet")
    assert done.code == 0, done.out
    assert {line.split()[0] for line in done.out.splitlines()} == set(kinds)
    for command in ("deploy", "bench", "doctor"):
        assert farm.run(command, "--all").code == 0
    assert run_digits(farm, "pi").code == run_digits(farm, "rock").code == 0
    farm.assert_nothing_is_left()
    said = subprocess.run(
        [server.data / "pi" / "farm-agent", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert "armv7" in said, "the launcher goes with it"
    (server.data / "rock" / "notes.txt").write_text("somebody's own")
    gone = farm.run("provision", "--all", "--remove", "--quiet")
    assert gone.code == 0, gone.out
    assert "not of ours, and left: notes.txt" in gone.out
    assert [path.name for path in server.data.rglob("*")] == ["rock", "notes.txt"]


def test_removal_ends_what_runs_and_says_so(farm: Farm, server: SshServer, emulators: None) -> None:
    running = run_slowly(farm, server)
    gone = provision(farm, "--remove")
    assert (
        "✓ running: agents that ran were ended" in gone.out and "✓ agents: 1, removed" in gone.out
    )
    assert_failed(
        running.end(),
        5,
        "the agent on board ended|the session on board ended|the SSH connection .* broke",
    )
    assert_nothing_is_left(farm, server)
    assert list(server.data.iterdir()) == []


def test_what_is_interrupted_leaves_nothing_half_and_is_continued(
    farm: Farm, server: SshServer
) -> None:
    configure(farm, server.url)
    for step in ("space", "agent binary", "RPC handshake"):
        running = farm.start("provision", "--device", "board")
        while f"✓ {step}" not in running.out.read_text():
            assert running.child.poll() is None
            time.sleep(0.005)
        running.send(signal.SIGINT)
        assert running.end().code == 130
        assert_nothing_is_left(farm, server)
    assert provision(farm).code == 0


def test_an_agent_that_was_changed_is_replaced(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    assert provision(farm).code == 0
    (agent,) = server.agents()
    content = bytearray(agent.read_bytes())
    content[-1] ^= 1
    agent.write_bytes(content)
    assert "MB sent" in provision(farm).out
    assert hashlib.sha256(agent.read_bytes()).hexdigest() == agent.parent.name


def test_agents_of_other_versions_go_if_nobody_has_used_them_for_a_day(
    farm: Farm, server: SshServer, agents: Callable[[str], Path]
) -> None:
    configure(farm, server.url)
    for name in ("old", "young", "running"):
        folder = server.kept / "agents" / name
        folder.mkdir(parents=True)
        shutil.copy(agents("x86_64"), folder / "farm-agent")
        if name != "young":
            os.utime(folder, (time.time() - 200_000,) * 2)
    with subprocesses.background_program(
        [server.kept / "agents/running/farm-agent", "--work-dir", farm.folder / "work"],
        log=farm.folder / "log",
    ):
        assert provision(farm).code == 0
    assert {agent.parent.name for agent in server.agents()} >= {"young", "running"}
    assert not (server.kept / "agents/old").exists()


def test_devices_on_this_machine_are_proved_too(farm: Farm, emulators: None) -> None:
    farm.configure(DEVICES + DIGITS + QUICK)
    done = farm.run("provision", "--device", "host", "--device", "pi3", "--quiet")
    assert done.code == 0, done.out
    for name in ("host", "pi3"):
        assert f"{name}  ✓ answer: digits is right" in done.out
    gone = farm.run("provision", "--device", "pi3", "--remove", "--quiet")
    assert "✓ store" in gone.out
    assert not (farm.cache / "devices" / "pi3").exists()


def test_an_agent_that_somebody_else_starts_is_proved_and_nothing_is_put_there(farm: Farm) -> None:
    words = (sys.executable, "-m", "farm", "agent", "--port", "0")
    with serving(
        farm.folder,
        *words,
        says=r"listening on [^:]*:(\d+)",
        env={**farm.env, "FARM_TEST": "a server"},
    ) as port:
        configure(farm, f"rpc://{HOST}:{port}")
        done = provision(farm)
        assert done.code == 0, done.out
        assert f"farm agent --port {port}" in done.out and "digits is right" in done.out
        assert_failed(provision(farm, "--service"), 2, "only there a service is installed")
        assert_failed(provision(farm, "--remove"), 2, "farm has put nothing on board")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tracker", "127.0.0.1:9190"), "no service is installed"),
        (("--service", "--remove"), "one installs what the other takes away"),
        (("--service", "--tracker", "127.0.0.1:9190"), "clients ask it for a kind of board"),
        (("--service", "--host", "0.0.0.0"), "any code"),
        (("--lab", "lab://farm@lab"), "no service is installed"),
        (("--service", "--board", "pi5-07"), "no lab is named"),
        (("--service", "--lab", "lab://farm@lab", "--key", "pi"), "has a name, of small letters"),
        (("--service", "--lab", "lab://lab", *NAMED, "--port", "1"), "the account of the lab's"),
        (("--service", "--lab", "lab://farm@lab", *NAMED), "has a port of its own"),
    ],
    ids=" ".join,
)
def test_options_that_make_no_sense(farm: Farm, options: tuple[str, ...], words: str) -> None:
    configure(farm, "ssh://pi@pi.invalid")
    done = provision(farm, *options)
    assert done.code == 2
    assert words in done.error["why"]


@pytest.mark.skipif(
    Path("/run/systemd/system").exists(),
    reason="this machine has a systemd, where nothing is to be installed",
)
def test_a_board_without_systemd_is_told_how_else(farm: Farm, server: SshServer) -> None:
    configure(farm, server.url)
    done = provision(farm, "--service", "--tracker", f"{HOST}:9190", "--key", "pi")
    assert done.code == 5
    assert "✗ service: board has no systemd that could start the agent at boot" in done.out
    assert (
        f"FARM_AGENT_KEY=pi {server.kept}/farm-agent --host {HOST} --port 9090 --tracker "
        f"{HOST}:9190"
    ) in done.out


@pytest.fixture
def board(farm: Farm, tmp_path: Path) -> Iterator[SystemdBoard]:
    (tmp_path / "board").mkdir()
    with systemd_board(tmp_path / "board", farm.mark) as board:
        farm.environment = {"HOME": str(board.home), "SSH_AUTH_SOCK": "/nowhere"}
        yield board


@contextlib.contextmanager
def tracker(farm: Farm) -> Iterator[str]:
    words = (
        sys.executable,
        "-m",
        "tvm.exec.rpc_tracker",
        "--host",
        HOST,
        "--port",
        "19190",
        "--port-end",
        "19999",
    )
    env = tvm_programs.environment({**farm.env, "FARM_TEST": "a server"})
    with serving(farm.folder, *words, says=r"bind to [^:]*:(\d+)", env=env) as port:
        yield f"{HOST}:{port}"


def test_a_service_serves_a_tracker_from_boot_on(farm: Farm, board: SystemdBoard) -> None:
    """A system unit of root's, behind its walls."""
    unit, port = "/etc/systemd/system/farm-agent.service", free_port()
    with tracker(farm) as address:
        configure(farm, board.url)
        service = ("--service", "--tracker", address, "--key", "secret-pi", "--port", str(port))
        first = provision(farm, *service)
        assert (
            f"✓ service: system unit farm-agent.service, started; it listens on {HOST}:{port}"
            in first.out
        ), first.out
        assert board.inside("systemd-analyze", "verify", unit) == ""
        assert board.inside("systemctl", "is-enabled", "farm-agent").strip() == "enabled"
        assert (board.kept / "service/key").stat().st_mode & 0o777 == 0o600
        assert "secret-pi" not in board.inside("sh", "-c", "cat /proc/[0-9]*/cmdline"), (
            "where every user of the board could read it"
        )
        started = board.inside("systemctl", "show", "-p", "ExecMainPID", "farm-agent")
        assert "unchanged, it runs already" in provision(farm, *service).out
        assert board.inside("systemctl", "show", "-p", "ExecMainPID", "farm-agent") == started
        configure(farm, f"tracker://{address}/secret-pi")
        assert farm.run("deploy", "--device", "board", "digits").code == 0, (
            "a model is loaded and run behind the walls"
        )
        configure(farm, board.url)
        assert "started" in provision(farm, *service[:-1], str(free_port())).out
        assert board.inside("systemctl", "show", "-p", "ExecMainPID", "farm-agent") != started
    gone = provision(farm, "--remove")
    assert "the unit /etc/systemd/system/farm-agent.service is stopped and gone" in gone.out, (
        gone.out
    )
    assert board.inside("ls", unit) == "" and list(board.data.iterdir()) == []
    assert "farm-agent" not in board.inside("sh", "-c", "cat /proc/[0-9]*/comm")
    assert "there is nothing of ours" in provision(farm, "--remove").out


def test_a_user_gets_a_unit_of_their_own_and_lingers(farm: Farm, board: SystemdBoard) -> None:
    configure(farm, board.user_url)
    port = free_port()
    done = provision(farm, "--service", "--port", str(port))
    assert "✓ service: user unit farm-agent.service, started" in done.out, done.out
    assert board.inside("ls", "/run/linger").strip() == "farmer"
    assert "unchanged, it runs already" in provision(farm, "--service", "--port", str(port)).out, (
        "it keeps its key"
    )
    on_board = re.findall(r"its key is in (\S+) there", done.out)[0]
    line = board.inside("cat", on_board)
    assert re.fullmatch(r"FARM_AGENT_KEY=[0-9a-f]{48}\n", line)
    assert board.inside("stat", "-c", "%a", on_board).strip() == "600"
    configure(farm, f"rpc://{HOST}:{port}")
    assert "key_file" in farm.run("deploy", "--device", "board", "digits").error["fix"], (
        "nobody gets in without it"
    )
    (farm.folder / "key").touch(0o600)
    (farm.folder / "key").write_text(line)
    configure(farm, f"rpc://{HOST}:{port}", options='key_file = "key"')
    assert farm.run("deploy", "--device", "board", "digits").code == 0
    configure(farm, board.user_url)
    assert "is stopped and gone" in provision(farm, "--remove").out
    assert board.inside("ls", "/run/linger") == "", "as it was before"
    assert list(board.data.iterdir()) == []
    assert "farm-agent" not in board.inside("sh", "-c", "cat /proc/[0-9]*/comm")


def test_a_tunnel_to_a_lab_is_a_unit_beside_the_agents(
    farm: Farm, board: SystemdBoard, tmp_path: Path
) -> None:
    """The lab is in the network of the board, so its port is taken, and the tunnel ends at once."""
    configure(farm, board.url)
    (tmp_path / "lab").mkdir()
    with ssh_server(tmp_path / "lab" / "door", farm.mark) as lab:
        url = lab.url.replace("ssh", "lab", 1)
        port = str(free_port())
        options = ("--service", "--lab", url, *NAMED, "--port", port)
        stranger = provision(farm, *options)
        assert_failed(stranger, 5, f"the host key of {url} is not known here")
        assert list(board.data.iterdir()) == [], "before anything is done"
        with (board.home / ".ssh" / "known_hosts").open("a") as known:
            known.write(lab.known_hosts.read_text())
        done = provision(farm, *options)
        assert done.code == 0, done.out
        assert f"tunnel: system unit farm-tunnel.service, to {url}, port {port}" in done.out
        found = re.search(r"echo '(ssh-ed25519 \S+ farm-pi-07)' \| (farm lab user .*)", done.out)
        assert found and found[2] == f"farm lab user add pi-07 --key - --board --port {port}"
        assert board.inside("systemctl", "is-enabled", "farm-tunnel").strip() == "enabled"
        key = board.kept / "service" / "lab_key"
        assert key.stat().st_mode & 0o777 == 0o600
        (lab.folder / "authorized_keys").write_text(f"restrict,port-forwarding {found[1]}\n")
        log = lab.folder / "sshd.log"
        wait_until(lambda: "Accepted publickey" in log.read_text(), "the tunnel comes in")
        assert found[1] in provision(farm, *options).out, "it keeps its key"
    gone = provision(farm, "--remove")
    assert "the tunnel's unit /etc/systemd/system/farm-tunnel.service is stopped" in gone.out
    assert board.inside("ls", "/etc/systemd/system/farm-tunnel.service") == ""
    assert list(board.data.iterdir()) == []


def test_a_service_that_cannot_start_is_told(farm: Farm, board: SystemdBoard) -> None:
    configure(farm, board.url)
    done = provision(farm, "--service", "--port", str(board.port))
    assert done.code == 5
    assert "✗ service: the service does not run on board" in done.out
    assert "Result=exit-code" in done.out and "journalctl -u farm-agent" in done.out


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])
