"""A board at the end of a bad line, in a network namespace of its own: slow, lossy, and cut, with
nobody to say so.

No packet comes through a line that is cut, nor a word that it is: both sides have to notice by
themselves.
"""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from farm_processes import Farm, Running
from large_upload_models import arrives, write_heavy_model
from lossy_network import BOARD, Network, inside, lossy_network
from ssh_board_checks import assert_nothing_is_left, configure
from ssh_server import SshServer, ssh_server
from timeouts import patient, wait_until

LATE_S, LOSS = 0.1, 0.05  # each way: 200 ms there and back
LINE = 1_500_000  # bytes per second of the throttled one
NOTICE_S = 45.0  # for a dead line: keepalives go every 5 s, and 20 s without an answer are enough
OPTIONS = f"ListenAddress {BOARD}\nDisableForwarding yes\n"


@pytest.fixture
def network() -> Iterator[Network]:
    with lossy_network() as network:
        yield network


@pytest.fixture
def server(
    farm: Farm, network: Network, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[SshServer]:
    """The board's SSH server. Nobody but it listens in the board's namespace, all the time."""
    (tmp_path / "ssh").mkdir()
    with contextlib.ExitStack() as stack:
        with inside(network.board):
            server = stack.enter_context(
                ssh_server(tmp_path / "ssh", farm.mark, OPTIONS + getattr(request, "param", ""))
            )
        server.known_hosts.write_text(server.known_hosts.read_text().replace("127.0.0.1", BOARD))
        farm.environment = {"HOME": str(server.home), "SSH_AUTH_SOCK": "/nowhere"}
        yield server
        assert network.listeners == {f"127.0.0.1:{server.port}", f"{BOARD}:{server.port}"}


def url(server: SshServer) -> str:
    return f"ssh://{getpass.getuser()}@{BOARD}:{server.port}"


def start(farm: Farm, network: Network, *words: str) -> Running:
    with inside(network.context):
        return farm.start(*words)


def provision(farm: Farm, network: Network) -> None:
    """The agent is on the board: it is large, and not what is tested."""
    assert start(farm, network, "devices", "-v").end().code == 0


def parts(server: SshServer) -> list[Path]:
    return list(server.folder.rglob("*.part"))


def test_a_slow_and_lossy_line_is_good_enough(
    farm: Farm, network: Network, server: SshServer
) -> None:
    configure(farm, url(server))
    provision(farm, network)
    network.be(delay_s=LATE_S, loss=LOSS)
    done = start(farm, network, "deploy", "--device", "board", "digits", "--json").end()
    assert done.code == 0, done.err + done.out
    (run,) = done.json["runs"]
    assert run["samples"]["agreement"]["right"] is True
    assert run["samples"]["uploaded"] > 50_000
    network.be()
    assert_nothing_is_left(farm, server)
    assert parts(server) == []


# An SSH server that is told to look after its clients ends what a dead one has left; else the
# agent's own time does, see below.
@pytest.mark.parametrize(
    "server",
    ["ClientAliveInterval 5\nClientAliveCountMax 4\n"],
    ids=["looks after its clients"],
    indirect=True,
)
def test_an_upload_that_is_cut_goes_on_where_it_was(
    farm: Farm, network: Network, server: SshServer
) -> None:
    size = write_heavy_model(farm.folder / "heavy.onnx")
    configure(farm, url(server))
    assert farm.run("compile", "heavy.onnx").code == 0
    provision(farm, network)
    network.be(bytes_per_s=LINE)
    running = start(farm, network, "deploy", "--device", "board", "heavy.onnx", "--json")
    arrives(server.folder, size // 3)
    network.be(bytes_per_s=LINE, delay_s=LATE_S, loss=LOSS)
    arrived = arrives(server.folder, arrives(server.folder, 1) + 200_000)
    network.be(cut=True)
    running.says("the SSH connection to .* broke; trying again in 1 s", NOTICE_S)
    network.be(delay_s=LATE_S)
    done = running.end()
    assert done.code == 0, done.err + done.out
    uploaded = done.json["runs"][0]["samples"]["uploaded"]
    assert size <= uploaded < 2 * size
    assert uploaded < size + (size - arrived), "it began anew"
    network.be()
    assert_nothing_is_left(farm, server)
    assert parts(server) == []


def test_a_run_that_is_cut_fails_and_ends_on_both_sides(
    farm: Farm, network: Network, server: SshServer, emulators: None
) -> None:
    options = f'launcher = "qemu-arm", threads = 1, deadline_s = {patient(36)}'
    configure(farm, url(server), "rasp3b", options)
    provision(farm, network)
    running = start(farm, network, "deploy", "--device", "board", "slow.onnx", "--json")
    running.says(r"board slow.*: running")
    network.be(delay_s=LATE_S, loss=LOSS)
    agents = wait_until(lambda: farm.processes_like(r"^\S*qemu-arm .*farm-agent"), "the agent")
    for pid in agents:  # other tests need the time more than a run that is cut
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, pid, 19)
    network.be(cut=True)
    done = running.end()
    failure = done.json["runs"][0]["failure"]
    assert (done.code, failure["kind"]) == (5, "LinkError"), done.err
    network.be()
    wait_until(
        lambda: not farm.processes_like("farm-agent"),
        "the end of the agent by its own time",
        patient(NOTICE_S),
    )
    assert_nothing_is_left(farm, server)
