"""TVM's own Python client drives the agent: here, under qemu, through TVM's own tracker, over a
pipe.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_models import SmallModel
from agent_processes import Agent, children_of, client, start_client
from timeouts import LIMIT_S, patient, wait_until

from farm import __version__
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.transports.agent.version import PROTOCOL

Start = Callable[..., Agent]
Models = Callable[[str], SmallModel]
RPC_MAGIC = 0xFF271


def files(model: SmallModel) -> dict[str, str]:
    return {name: str(path) for name, path in dataclasses.asdict(model).items()}


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "armv7"])
def test_a_model_gives_the_numbers_of_numpy(arch: str, start: Start, models: Models) -> None:
    agent = start(arch)
    seen = client("everything", port=agent.port, **files(models(arch)))
    assert seen["max_abs"] < 1e-6
    assert len(seen["samples"]) == 5 and all(sample > 0 for sample in seen["samples"])
    assert seen["listed"] == "folder,model.so,parameters"
    assert (seen["downloaded"], seen["listed_after_remove"]) == ("hello", "")
    wait_until(lambda: not agent.session_folders, "the work directory is gone")


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "armv7"])
def test_facts_are_those_of_the_device_and_the_same_by_rpc_and_on_the_command_line(
    arch: str, start: Start
) -> None:
    agent = start(arch)
    import json

    (by_rpc,) = client("call_all", port=agent.port, calls=[["farm.agent.facts"]])
    printed = subprocesses.run_program(
        [*agent.command, "--facts"], deadline=Deadline(LIMIT_S), what="--facts"
    )
    facts = json.loads(by_rpc)
    assert facts.keys() == json.loads(printed).keys()
    assert (
        facts["machine"] == arch and facts["agent"] == __version__ and facts["protocol"] == PROTOCOL
    )
    assert abs(facts["time_s"] - time.time()) < 60
    assert facts["tvm"].startswith("0.27") and facts["kernel"] == os.uname().release
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert facts["memory_total_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (
        facts["cpu"] is None or arch == "x86_64"
    )  # under qemu, the machine below is not the device


def test_an_inference_has_a_thread_for_each_core_unless_told_otherwise(start: Start) -> None:
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {
        path.read_text() if (path := Path(siblings.format(cpu))).exists() else cpu
        for cpu in os.sched_getaffinity(0)
    }
    agents = [start(), start("x86_64", "--threads", "1")]
    threads = [
        client("call_all", port=agent.port, calls=[["runtime.NumThreads"]]) for agent in agents
    ]
    assert threads == [[len(cores)], [1]]


def test_the_key_can_come_by_the_environment_where_other_users_do_not_see_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_AGENT_KEY", "board")
    agent = start(key=None)
    assert "key" in client("connect_error", port=agent.port, key="wrong")
    assert client("list_files", port=agent.port) == ""
    assert "board" not in Path(f"/proc/{agent.child.pid}/cmdline").read_text()


@pytest.mark.parametrize("by", ["file", "standard input"])
def test_the_key_can_come_in_a_file_or_on_standard_input(
    agents: Callable[[str], Path], start: Start, tmp_path: Path, by: str
) -> None:
    file = tmp_path / "key"
    file.write_text("board\nnot this\n")
    file.chmod(0o600)
    if by == "file":
        agent = start("x86_64", "--key-file", str(file), key=None)
        assert "board" not in Path(f"/proc/{agent.child.pid}/cmdline").read_text()
        assert "key" in client("connect_error", port=agent.port, key="wrong")
        assert client("list_files", port=agent.port) == ""
        assert "no key" not in agent.log
        return
    command = [
        agents("x86_64"),
        "--work-dir",
        tmp_path / "work",
        "--port-file",
        tmp_path / "port",
        "--key-file",
        "-",
    ]
    with (
        file.open() as given,
        subprocess.Popen(command, stdin=given, stderr=subprocess.DEVNULL) as child,
    ):
        wait_until((tmp_path / "port").exists, "the agent")
        assert client("list_files", port=int((tmp_path / "port").read_text())) == ""
        child.terminate()


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("board\n", 0o640, "other users may use"),
        ("board\n", 0o604, "other users may use"),
        ("\n", 0o600, "there is no key"),
        ("", 0o600, "there is no key"),
        ("two words\n", 0o600, "without spaces"),
        (None, 0, "cannot read the key file"),
    ],
)
def test_a_key_file_that_is_none_is_refused(
    agents: Callable[[str], Path], tmp_path: Path, text: str | None, mode: int, words: str
) -> None:
    file = tmp_path / "key"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    done = subprocess.run(
        [agents("x86_64"), "--work-dir", tmp_path, "--key-file", file],
        capture_output=True,
        text=True,
    )
    assert done.returncode in (1, 2)
    assert words in done.stderr


def test_an_agent_without_a_key_says_who_may_run_code(start: Start) -> None:
    for key, warned in ((None, True), ("board", False)):
        agent = start(key=key)
        assert agent.port
        assert ("no key: every user who reaches the port may run code" in agent.log) == warned


def test_a_client_with_another_key_is_refused_and_the_next_is_served(start: Start) -> None:
    agent = start()
    assert "key" in client("connect_error", port=agent.port, key="wrong")
    assert client("list_files", port=agent.port) == ""


def test_fifty_idle_and_garbage_connections_do_not_keep_a_client_out(start: Start) -> None:
    agent = start()
    address = ("127.0.0.1", agent.port)
    idle = [socket.create_connection(address) for _ in range(50)]
    garbage = [
        b"GET / HTTP/1.0\r\n\r\n",
        struct.pack("<ii", RPC_MAGIC, 0),
        struct.pack("<ii", RPC_MAGIC, -1),
        b"\x00",
    ]
    garbage += [
        struct.pack("<ii", RPC_MAGIC, 2**31 - 1),
        struct.pack("<ii", RPC_MAGIC, 100) + b"client:",
        os.urandom(4096),
    ]
    for words in garbage * 7:
        idle.append(socket.create_connection(address))
        idle[-1].sendall(words)
    with socket.create_connection(address, timeout=5) as real:
        real.sendall(struct.pack("<ii", RPC_MAGIC, len(b"client:board")) + b"client:board")
        assert struct.unpack("<i", real.recv(4)) == (RPC_MAGIC,)
    idle[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        idle[0].recv(1)  # the idle ones were still there: nobody had to be given up first
    for connection in idle:
        connection.close()
    assert client("list_files", port=agent.port) == ""


def test_an_idle_connection_is_closed_after_ten_seconds(start: Start) -> None:
    agent = start()
    with socket.create_connection(("127.0.0.1", agent.port), timeout=patient(15)) as connection:
        assert connection.recv(1) == b""


def test_a_second_client_is_served_when_the_first_is_done(start: Start) -> None:
    agent = start()
    with start_client("outlive", agent, session_s=3) as first:
        wait_until(lambda: agent.session_folders, "the first session")
        assert client("list_files", port=agent.port) == ""
    assert first.returncode is not None
    assert agent.log.index("its time was up") < agent.log.rindex("begins")


def test_a_session_ends_when_its_time_is_up_and_the_client_is_told(start: Start) -> None:
    agent = start()
    error = client("outlive", port=agent.port, session_s=1)
    assert error.startswith("RPCSessionTimeoutError") and "session_timeout" in error
    wait_until(lambda: not agent.session_folders, "the work directory is gone")
    assert client("list_files", port=agent.port) == ""


def test_time_in_which_the_agent_is_paused_does_not_count_for_the_session(
    start: Start, tmp_path: Path
) -> None:
    agent = start()
    started = tmp_path / "started"
    with start_client("outlive", agent, session_s=4, kept_s=6, started=str(started)) as staying:
        wait_until(started.exists, "the session")
        group = [agent.child.pid, *children_of(agent.child.pid)]
        for pid in group:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4.5)
        for pid in group:
            os.kill(pid, signal.SIGCONT)
        assert staying.wait(LIMIT_S) == 0
    assert (agent.folder / "client.log").read_text().splitlines()[-1] == '""', (
        "the call after the pause was answered"
    )


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_a_client_that_vanishes_in_the_middle_of_a_call_frees_the_device(
    arch: str, start: Start, models: Models, tmp_path: Path
) -> None:
    agent = start(arch)
    started = tmp_path / "started"
    model = models(arch)
    with start_client(
        "compute_for_ever", agent, library=str(model.library), x=str(model.x), started=str(started)
    ) as vanishing:
        wait_until(started.exists, "the call")
        time.sleep(0.5)
        (session,) = children_of(agent.child.pid)
        vanishing.send_signal(signal.SIGKILL)
        wait_until(
            lambda: not Path(f"/proc/{session}").exists(), "the session has ended", patient(5)
        )
    wait_until(lambda: not agent.session_folders, "the work directory is gone")
    assert client("list_files", port=agent.port) == ""


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_agent_with_its_session_and_leaves_nothing(
    arch: str, number: signal.Signals, start: Start
) -> None:
    agent = start(arch)
    with start_client("outlive", agent, session_s=60):
        (session,) = wait_until(lambda: children_of(agent.child.pid), "the session")
        agent.child.send_signal(number)
        assert agent.child.wait(patient(5)) == 0
        assert not Path(f"/proc/{session}").exists()
    assert not agent.session_folders and not (agent.folder / "port").exists()


def test_what_a_killed_agent_left_is_swept_by_the_next(start: Start) -> None:
    agent = start()
    with start_client("outlive", agent, session_s=60):
        wait_until(lambda: agent.session_folders, "the session")
        agent.child.kill()
        agent.child.wait()
    (left,) = agent.session_folders
    reused = left.with_name(f"farm-session-{os.getpid()}-other")
    reused.mkdir()
    mine = left.with_name("farm-session-1-mine")
    mine.mkdir()
    held = os.open(mine, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert start("x86_64", "--work-dir", str(left.parent)).port
    os.close(held)
    assert not left.exists() and mine.exists()
    assert not reused.exists(), (
        "a process that happens to have the number of one long gone keeps nothing"
    )


def test_an_agent_told_so_ends_with_its_parent(
    agents: Callable[[str], Path], tmp_path: Path
) -> None:
    port, pid_file = tmp_path / "port", tmp_path / "pid"
    command = (
        f'"{agents("x86_64")}" --exit-with-parent --port-file "{port}" --work-dir '
        f'"{tmp_path}/work" & echo $! > "{pid_file}"; wait'
    )
    shell = subprocesses.start_program(["/bin/sh", "-c", command], log=tmp_path / "log")
    wait_until(
        lambda: port.exists() and pid_file.exists() and pid_file.read_text().endswith("\n"),
        "the agent",
    )
    shell.kill()
    shell.wait()
    pid = int(pid_file.read_text())
    wait_until(
        lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(),
        "the agent ends",
    )


def test_a_session_on_standard_streams_needs_no_port(
    agents: Callable[[str], Path], models: Models, tmp_path: Path
) -> None:
    program = tmp_path / "agent-on-a-pipe"
    # No exec: TVM's client kills its child at the end, and over SSH that is not the agent either.
    program.write_text(
        f'#!/bin/sh\n"{agents("x86_64")}" --stdio --work-dir "{tmp_path}/work" <&"$1" >&"$2"\n'
    )
    program.chmod(0o755)
    assert client("through_pipe", program=str(program), **files(models("x86_64"))) < 1e-6
    wait_until(
        lambda: not list((tmp_path / "work").glob("farm-session-*")), "the work directory is gone"
    )


def test_an_address_open_to_the_network_must_be_asked_for(
    agents: Callable[[str], Path], tmp_path: Path
) -> None:
    agent = subprocesses.start_program(
        [agents("x86_64"), "--host", "0.0.0.0"], log=tmp_path / "log"
    )
    assert agent.wait(LIMIT_S) == 1
    assert "--open-to-network" in (tmp_path / "log").read_text()
