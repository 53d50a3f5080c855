"""What strangers and broken clients do to the agent: nothing that others notice. The inputs in
hostile/ are those of tools/fuzz.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_models import SmallModel
from agent_processes import Agent, children_of, client, start_client
from timeouts import wait_until

from farm.processes import subprocesses

Start = Callable[..., Agent]
Models = Callable[[str], SmallModel]
HERE = Path(__file__).parent
HOSTILE, ATTACKERS = HERE / "hostile", HERE / "agent_attackers.py"
MAGIC = 0xFF271
GREETING = struct.pack("<ii", MAGIC, len(b"client:board")) + b"client:board"
GARBAGE, IDLE = 200, 50
WAIT_S = 60
MEGABYTE = 1 << 20


def inputs(target: str) -> list[Path]:
    found = sorted((HOSTILE / target).iterdir())
    assert found
    return found


@contextlib.contextmanager
def connected(agent: Agent) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", agent.port), timeout=WAIT_S) as connection:
        yield connection


def say_all(connection: socket.socket, words: bytes) -> None:
    """Says it, and reads until the agent has hung up. It may do so before all is said."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass


def memory_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def bytes_read(pid: int) -> int:
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@contextlib.contextmanager
def under_attack(agent: Agent, garbage: int = GARBAGE, idle: int = IDLE) -> Iterator[None]:
    ready = agent.folder / "attacked"
    command = [sys.executable, ATTACKERS, str(agent.port), ready, str(garbage), str(idle)]
    with subprocesses.background_program(command, log=agent.folder / "attack.log") as attackers:
        wait_until(
            lambda: ready.exists() or attackers.poll() is not None, "the crowd is there", WAIT_S
        )
        yield
        assert attackers.poll() is None, "the crowd has stayed"


def test_greetings_that_were_fuzzed_leave_the_agent_as_it_was(start: Start) -> None:
    agent = start()
    for path in inputs("handshake"):
        with connected(agent) as connection:
            say_all(connection, path.read_bytes()[1:])  # the first byte is for tools/fuzz
    assert client("list_files", port=agent.port) == ""
    assert "died" not in agent.log


def test_packets_that_were_fuzzed_end_their_session_and_in_good_order(start: Start) -> None:
    agent = start()
    for path in inputs("rpc"):
        with connected(agent) as connection:
            say_all(connection, GREETING + path.read_bytes()[1:])
    assert client("list_files", port=agent.port) == ""
    wait_until(
        lambda: agent.log.count("is over") == len(inputs("rpc")) + 1,
        "all sessions are over",
        WAIT_S,
    )
    assert "died" not in agent.log


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_libraries_that_were_fuzzed_are_refused_or_loaded_and_their_session_lives(
    arch: str, start: Start
) -> None:
    agent = start(arch)
    paths = inputs("elf")
    errors = client("load_errors", port=agent.port, paths=[str(path) for path in paths])
    loaded = {path.name for path, error in zip(paths, errors, strict=True) if not error}
    assert {"x86_64": "whole-x86_64", "armv7": "whole-arm"}[arch] in loaded
    assert all("cannot load library" in error for error in errors if error)
    assert "died" not in agent.log


def packet(code: int, body: bytes) -> bytes:
    return struct.pack("<Qi", 4 + len(body), code) + body


INIT, CALL, RETURN, TO_DEVICE, GET_FUNCTION, SET_DEVICE, ALLOCATE, SET_STREAM = (
    2,
    3,
    4,
    7,
    9,
    12,
    13,
    20,
)
TEXT, DEVICE, TENSOR, OBJECT = 8, 6, 7, 64
TENSOR_HEAD = struct.pack("<QiiiBBH", 4096, 1, 0, 1, 2, 32, 1)
REFUSED = {
    "a packet larger than TVM can take": struct.pack("<Q", 1 << 40),
    "a text longer than its packet": packet(
        GET_FUNCTION, struct.pack("<iiQ", 1, TEXT, (1 << 32) + 8)
    ),
    "more arguments than its packet has": packet(CALL, struct.pack("<Qi", 1, 1 << 30)),
    "fewer than no arguments": packet(CALL, struct.pack("<Qi", 1, -1)),
    "a call without its arguments": packet(GET_FUNCTION, struct.pack("<i", 0)),
    "a call of nothing": packet(CALL, struct.pack("<Qi", 0, 0)),
    "an object of a type that nobody knows": packet(
        CALL, struct.pack("<QiiI", 1, 1, OBJECT, 0x6E4E)
    ),
    "an argument of a type that nobody knows": packet(CALL, struct.pack("<Qii", 1, 1, 10)),
    "an answer where a request is due": packet(RETURN, struct.pack("<i", 0)),
    "a request that does not exist": packet(99, struct.pack("<i", 0)),
    "a device of a kind that nobody knows": packet(
        SET_DEVICE, struct.pack("<iiii", 1, DEVICE, -5, 0)
    ),
    "a device of a number that nobody has": packet(
        SET_STREAM, struct.pack("<iiiiiQ", 2, DEVICE, 1, 0x7FFFFFF0, 4, 0)
    ),
    "a tensor larger than any memory": packet(
        TO_DEVICE, TENSOR_HEAD + struct.pack("<qQQ", 1 << 62, 0, 0)
    ),
    "a copy of more than the tensor has": packet(
        TO_DEVICE, TENSOR_HEAD + struct.pack("<qQQ", 1, 0, 4096) + bytes(4096)
    ),
    "bytes behind the end of a packet": packet(
        GET_FUNCTION, struct.pack("<iiQ", 1, TEXT, 1) + b"ab"
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_packet_without_sense_is_refused_before_anything_is_made_of_it(
    what: str, start: Start
) -> None:
    agent = start()
    version = b"0.8.0"
    begin = packet(INIT, struct.pack("<Q", len(version)) + version + struct.pack("<i", 0))
    with connected(agent) as connection:
        say_all(connection, GREETING + begin + REFUSED[what])
    wait_until(lambda: "is over" in agent.log, "the session is over", WAIT_S)
    assert (
        "a packet of the client has no sense" in agent.log
        or "too large for the session" in agent.log
    )
    assert "died" not in agent.log
    assert not agent.session_folders


def test_a_client_that_promises_much_costs_no_more_than_it_sends(start: Start) -> None:
    agent = start()
    with connected(agent) as connection:
        connection.sendall(
            GREETING
            + struct.pack("<Q", (1 << 31) - 1)
            + struct.pack("<iiQ", GET_FUNCTION, 1, TEXT)[:8]
        )
        connection.recv(64)
        (session,) = wait_until(lambda: children_of(agent.child.pid), "the session", WAIT_S)
        connection.sendall(struct.pack("<iQ", TEXT, 1 << 30) + bytes(MEGABYTE))
        wait_until(lambda: bytes_read(session) > MEGABYTE, "the session has read what came", WAIT_S)
        assert memory_bytes(session) < 100 * MEGABYTE
    wait_until(lambda: "is over" in agent.log, "the session is over", WAIT_S)
    assert "died" not in agent.log


def test_a_client_that_gets_the_device_and_says_nothing_loses_it(start: Start) -> None:
    agent = start()
    with connected(agent) as silent:
        silent.sendall(GREETING)
        assert silent.recv(4) == struct.pack("<i", MAGIC)
        assert client("list_files", port=agent.port) == ""
    assert "the client said nothing" in agent.log


def test_clients_that_trickle_their_greeting_keep_nobody_waiting_and_lose_their_place(
    start: Start,
) -> None:
    agent, long = start(), struct.pack("<ii", MAGIC, 1000) + b"client:"
    with contextlib.ExitStack() as crowd:
        tricklers = [crowd.enter_context(connected(agent)) for _ in range(30)]
        for byte in long:
            for trickler in tricklers:
                trickler.sendall(bytes([byte]))
        assert client("list_files", port=agent.port) == ""
        first = tricklers[0]
        first.settimeout(0.5)

        def is_closed() -> bool:
            try:
                first.sendall(b"x")
                return first.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(
            is_closed,
            "the agent closes a connection on which a byte came every half second",
            WAIT_S,
        )


def test_a_crowd_does_not_change_an_answer_and_leaves_no_trace(
    start: Start, models: Models
) -> None:
    model = {name: str(path) for name, path in dataclasses.asdict(models("x86_64")).items()}
    agent = start("x86_64", "--threads", "1")
    port, opened = agent.port, descriptors(agent.child.pid)
    assert client("everything", port=port, **model)["max_abs"] < 1e-6
    wait_until(lambda: not children_of(agent.child.pid), "the first session is over", WAIT_S)
    taken = memory_bytes(agent.child.pid)
    with under_attack(agent):
        assert client("everything", port=port, **model)["max_abs"] < 1e-6
    wait_until(lambda: descriptors(agent.child.pid) == opened, "all descriptors are closed", WAIT_S)
    wait_until(lambda: not children_of(agent.child.pid), "all children are reaped", WAIT_S)
    assert memory_bytes(agent.child.pid) < taken + 4 * MEGABYTE
    assert not agent.session_folders


def test_a_crowd_does_not_end_a_session(start: Start, tmp_path: Path) -> None:
    agent = start()
    started = tmp_path / "started"
    with start_client("outlive", agent, session_s=60, kept_s=3, started=str(started)) as staying:
        wait_until(started.exists, "the session", WAIT_S)
        with under_attack(agent):
            assert staying.wait(WAIT_S) == 0
    assert (agent.folder / "client.log").read_text().splitlines()[-1] == '""', (
        "the call in the crowd was answered"
    )


def test_an_idle_crowd_larger_than_the_agent_holds_locks_nobody_out(start: Start) -> None:
    agent = start()
    with under_attack(agent, garbage=0, idle=400):
        assert client("list_files", port=agent.port) == ""


def test_a_crowd_with_a_wrong_key_fills_no_log(start: Start) -> None:
    agent = start()
    wrong = struct.pack("<ii", MAGIC, len(b"client:wrong")) + b"client:wrong"
    for _ in range(300):
        with connected(agent) as connection:
            say_all(connection, wrong)
    assert 1 <= agent.log.count("another key") < 100
    assert client("list_files", port=agent.port) == ""
