"""TVM's own clients of a lab behind its door: farm lab run and farm lab proxy, from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hostile_board
import pytest
import tvm_programs
import tvm_tracker_clients
from accepting import accepting
from lab_door import Door, Echo, door
from lab_process import Board, speaking
from timeouts import LIMIT_S, wait_until
from tracker_processes import REQUEST, Wire, tvm_server

from farm.errors import LinkError
from farm.lab.relay.sessions import LeasePerSessionSource, LeaseSessionSource, ProxiedBoards
from farm.lab.relay.tracker import RelayTracker
from farm.lab_client.leasing import WantedBoards
from farm.rpc.handshake import MAGIC, MISMATCH, client_greeting
from farm.transports.lab.reach_lab import LocalLab, reach_lab_at_door

WORD = struct.Struct("<i")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A lab behind its door, with TVM's server as its board, and alice's configuration of ssh."""
    with door(tmp_path_factory.mktemp("door")) as one, tvm_server(one.lab.port):
        one.add("alice")
        (one.sshd.home / ".ssh" / "config").write_text(f"IdentityFile {one.key_of('alice')}\n")
        yield one


@pytest.fixture(autouse=True)
def home(served: Door, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Alice, on a machine that has nothing of the lab's but her key."""
    monkeypatch.setenv("HOME", str(served.sshd.home))
    monkeypatch.setenv("FARM_LAB_DOOR", url(served))
    monkeypatch.setenv("FARM_DATA", "/nowhere")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield
    wait_until(lambda: leases(served) == [], "all is given back")


def url(served: Door) -> str:
    return served.sshd.url.replace("ssh", "lab", 1)


def leases(served: Door) -> list[dict[str, Any]]:
    with served.lab.client() as client:
        found: list[dict[str, Any]] = client.ask("leases")["leases"]
        return found


def started(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "farm", "lab", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def proxy(*words: str) -> Iterator[int]:
    """A running proxy: its port."""
    child = started("proxy", "--port", "0", *words)
    try:
        assert child.stdout and child.stderr
        line = child.stdout.readline()
        found = re.search(r"TVM_TRACKER_HOST=127\.0\.0\.1 TVM_TRACKER_PORT=(\d+)", line)
        assert found, line + child.stderr.read()
        yield int(found[1])
    finally:
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=LIMIT_S)[1]
        assert child.returncode == 130 or child.returncode == 0, said


WAYS = ["run", "proxy of a lease", "proxy of the lab"]


@pytest.fixture(params=WAYS)
def through(request: pytest.FixtureRequest, served: Door) -> Iterator[Callable[[str], Any]]:
    """Runs a client of TVM's by its name, and returns what it says."""

    def answer(command: list[str], environment: Mapping[str, str] | None = None) -> Any:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    program = [sys.executable, tvm_tracker_clients.__file__]
    if request.param == "run":
        path = f"PYTHONPATH={tvm_programs.WITHOUT_TORCH}"
        shell = f'{path} exec {" ".join(program)} "$TVM_TRACKER_PORT" "$0"'
        farm = [sys.executable, "-m", "farm", "lab", "run", "x86", "--", "sh", "-c", shell]
        yield lambda name: answer([*farm, name])
        return
    with proxy(*(["x86"] if request.param == "proxy of a lease" else [])) as port:
        yield lambda name: answer([*program, str(port), name], tvm_programs.environment())


def test_tvms_client_gets_sessions_through_the_door(through: Callable[[str], Any]) -> None:
    first, second, text = through("sessions")
    assert first == second == 15.0
    assert "server:x86" in text


@pytest.mark.parametrize("through", ["run", "proxy of the lab"], indirect=True)
def test_metaschedules_runner_measures_through_the_door(through: Callable[[str], Any]) -> None:
    assert through("runner") == ["", "", ""]


def test_a_kind_that_the_lab_has_not_is_told_to_tvms_client(served: Door) -> None:
    with proxy() as port:
        answer = Wire(port).ask([REQUEST, "x68", "", 1])
    assert answer[0] == -1 and "no board is of kind 'x68'" in answer[1] and "x86" in answer[1]


def test_a_client_that_hangs_up_leaves_the_queue(served: Door) -> None:
    with served.lab.client() as other, proxy() as port:
        lease = other.ask("request", kind="x86", for_s=60.0)["lease"]["lease"]
        client = Wire(port)
        client.send([REQUEST, "x86", "", 1])
        wait_until(lambda: len(leases(served)) == 2, "it waits")
        [waiting] = [one for one in leases(served) if one["lease"] != lease]
        assert (waiting["owner"], waiting["class"]) == ("alice", "batch")
        client.socket.close()
        wait_until(lambda: len(leases(served)) == 1, "it has left")
        other.ask("end", lease=lease)


def test_a_proxy_that_ends_gives_back_what_its_clients_have(served: Door) -> None:
    with proxy() as port:
        answer = Wire(port).ask([REQUEST, "x86", "", 1])
        with session(answer) as client:
            assert WORD.unpack(client.recv(4))[0] == MAGIC
            assert len(leases(served)) == 1
    wait_until(lambda: leases(served) == [], "it is given back")


def session(answer: Any) -> socket.socket:
    """A connection for a session, by the answer to a request, with the greeting sent."""
    assert answer[0] == 0, answer
    host, port, key = answer[1]
    client = socket.create_connection((host, port), timeout=LIMIT_S)
    client.sendall(client_greeting(key))
    return client


def test_who_does_not_know_the_key_gets_no_session(served: Door) -> None:
    """Each user of this machine reaches loopback; the key is good once."""
    with proxy() as port:
        answer = Wire(port).ask([REQUEST, "x86", "", 1])
        place = answer[1][:2]
        for greeting in (client_greeting("x86:0.5"), b"GET / HTTP/1.1\r\n\r\n", b"\0" * 8):
            with socket.create_connection(place, timeout=LIMIT_S) as stranger:
                stranger.sendall(greeting)
                heard = b""
                with contextlib.suppress(ConnectionResetError):
                    heard = stranger.recv(4)
                assert heard == (WORD.pack(MISMATCH) if greeting.startswith(b"\x71") else b"")
        with session(answer) as client:
            assert WORD.unpack(client.recv(4))[0] == MAGIC
            with session(answer) as second:
                assert WORD.unpack(second.recv(4))[0] == MISMATCH


def test_a_greeting_that_breaks_off_takes_no_session(served: Door) -> None:
    with proxy() as port:
        answer = Wire(port).ask([REQUEST, "x86", "", 1])
        host, place, key = answer[1]
        for greeting in (client_greeting(key)[:6], client_greeting(f"{key} -timeout=60")[:-1]):
            with socket.create_connection((host, place), timeout=LIMIT_S) as broken:
                broken.sendall(greeting)
                broken.shutdown(socket.SHUT_WR)
                assert broken.recv(4) == b""
        with session(answer) as client:
            assert WORD.unpack(client.recv(4))[0] == MAGIC


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_the_port_of_the_sessions_hangs_up_on_another_user(served: Door) -> None:
    class Nothing:
        def summary(self) -> Any: ...
        def session(self, kind: str) -> Any: ...

    with ProxiedBoards(Nothing(), print) as boards:
        os.seteuid(65534)
        try:
            stranger = socket.create_connection(("127.0.0.1", boards.port), timeout=LIMIT_S)
        finally:
            os.seteuid(0)
        with stranger, contextlib.suppress(ConnectionResetError):
            stranger.sendall(client_greeting("x86:0.5"))
            assert stranger.recv(4) == b""


def test_a_lease_that_is_revoked_ends_the_program_and_its_session(served: Door) -> None:
    running = started("run", "x86", "--heartbeat", "2s", "--", "sleep", "1000")
    wait_until(lambda: [one["state"] for one in leases(served)] == ["active"], "the lease")
    [lease] = leases(served)
    with served.lab.client() as admin:
        admin.ask("end", lease=lease["lease"], why="a new fan")
    said = running.communicate(timeout=LIMIT_S)[1]
    assert running.returncode not in (0, None) and f"lease {lease['lease']} has ended" in said


def test_a_lab_of_many_boards_needs_more_than_one_connection(served: Door) -> None:
    """sshd lets each have ten channels."""
    boards = [Echo(served.lab, "many") for _ in range(12)]
    said: list[str] = []
    with reach_lab_at_door(url(served)) as lab, contextlib.ExitStack() as stack:
        with lab.client() as client:
            lease = client.ask("request", kind="many", for_s=60.0, count=12)["lease"]["lease"]
        sessions = [stack.enter_context(lab.session(lease, 30.0)) for _ in boards]
        assert len({one.board for one in sessions}) == 12
        for one in sessions:
            one.connection.sendall(one.board.encode())
            assert one.connection.recv(100) == one.board.encode()
        assert LeaseSessionSource(lab, lease, "many", 12).summary()["many"].free == 12
        with lab.client() as client:
            client.ask("end", lease=lease)
    assert said == []
    for board in boards:
        board.close()
        board.board.wire.close()


CLIENT = """
import sys
from tvm import rpc
remote = rpc.connect_tracker("127.0.0.1", int(sys.argv[1])).request("evil", session_timeout=60)
print(remote.get_function("runtime.config_threadpool"))
"""


@pytest.mark.parametrize("way", ["door", "socket"])
def test_a_board_runs_no_program_of_its_own_in_tvms_client(
    way: str, served: Door, tmp_path: Path
) -> None:
    """TVM's client carries out what a board asks for: only answers may reach it."""
    marker, said = tmp_path / "ran", list[str]()
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        by_door = way == "door"
        lab = (
            stack.enter_context(reach_lab_at_door(url(served)))
            if by_door
            else LocalLab(served.lab.socket)
        )

        def attack(connection: socket.socket) -> None:
            arguments = (connection, "popen", str(marker))
            threading.Thread(target=hostile_board.serve, args=arguments, daemon=True).start()

        stack.enter_context(accepting(listener, attack))
        board = Board(served.lab.port, "evil", listener.getsockname()[1])
        stack.callback(board.wire.close)
        stack.enter_context(speaking(board))
        source = LeasePerSessionSource(
            lab, lambda kind: WantedBoards(kind, for_s=60.0), lambda _: None
        )
        with ProxiedBoards(source, said.append) as boards, RelayTracker(boards, 0) as relay:
            command = [sys.executable, "-c", CLIENT, str(relay.port)]
            environment = tvm_programs.environment()
            with subprocess.Popen(command, env=environment) as client:  # it asks again and again
                try:
                    wait_until(
                        lambda: said or marker.exists() or client.poll() is not None,
                        "the session's end is said",
                    )
                finally:
                    client.kill()
    assert not marker.exists()
    assert said == [
        f"evil: the board {board.name} sent what no server of TVM's RPC sends: "
        "a request to be carried out on this machine (kInitServer)"
    ]


def test_a_connection_that_was_cut_is_made_again(served: Door) -> None:
    """A laptop changes its network."""
    with reach_lab_at_door(url(served)) as lab:
        with lab.client() as client:
            lease = client.ask("request", kind="x86", for_s=60.0)["lease"]["lease"]
        for pid in served.sshd.connections():
            os.kill(pid, signal.SIGKILL)

        def asked() -> bool:
            with contextlib.suppress(LinkError), lab.client() as client:
                client.ask("end", lease=lease)
                return True
            return False

        wait_until(asked, "another connection")
