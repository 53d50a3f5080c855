"""A session on a board by SSH that is stopped, killed or cut in the middle of an inference: told,
and nothing left on either side.
"""

from __future__ import annotations

import contextlib
import signal
from functools import partial
from pathlib import Path

from farm_processes import Farm, kill_all
from ssh_board_checks import (
    END_S,
    assert_failed,
    assert_nothing_is_left,
    run_slowly,
    running_agents,
)
from ssh_server import SshServer
from timeouts import LIMIT_S, patient, wait_until

from farm.processes.deadline import Deadline
from farm.rpc.blocking_connection import run_nonsuspending_coroutine
from farm.transports.ssh.channel_connection import ChannelConnection


def test_a_session_opens_no_port_and_shows_no_key(
    farm: Farm, server: SshServer, emulators: None
) -> None:
    running = run_slowly(farm, server)
    assert len(farm.processes()) > 4
    assert listening(list(farm.processes())) == []
    assert [line for line in farm.processes().values() if "--key" in line or "--port" in line] == []
    running.send(signal.SIGINT)
    running.end()
    assert_nothing_is_left(farm, server)


def listening(pids: list[int]) -> list[int]:
    """Those of the processes that listen on a TCP port."""
    tables = "".join(Path(f"/proc/net/{table}").read_text() for table in ("tcp", "tcp6"))
    sockets = {
        f"socket:[{fields[9]}]"
        for line in tables.splitlines()
        if (fields := line.split())[3] == "0A"
    }
    found = []
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in sockets:
                    found.append(pid)
    return found


def test_ctrl_c_takes_the_agent_on_the_board_with_it(
    farm: Farm, server: SshServer, emulators: None
) -> None:
    running = run_slowly(farm, server)
    running.send(signal.SIGINT)
    assert running.end().code == 130
    assert_nothing_is_left(farm, server)


def test_a_farm_that_is_killed_takes_the_agent_on_the_board_with_it(
    farm: Farm, server: SshServer, emulators: None
) -> None:
    running = run_slowly(farm, server)
    running.send(signal.SIGKILL)
    running.end()
    wait_until(lambda: not farm.processes(), f"the end of {farm.processes()}", patient(END_S))
    wait_until(
        lambda: not list(server.kept.glob("work/farm-session-*")),
        "the end of the session's folder",
        patient(END_S),
    )


def test_a_deadline_takes_the_agent_on_the_board_with_it(
    farm: Farm, server: SshServer, emulators: None
) -> None:
    deadline_s = patient(4)
    running = run_slowly(farm, server, f"deadline_s = {deadline_s}")
    assert_failed(running.end(), 6, f"ran out of time|no end after {deadline_s:.0f} s")
    assert_nothing_is_left(farm, server)


def test_a_killed_agent_is_told(farm: Farm, server: SshServer, emulators: None) -> None:
    running = run_slowly(farm, server)
    kill_all(running_agents(farm)[:1], signal.SIGKILL)
    assert_failed(running.end(), 5, "the agent on board ended of signal 9")
    assert_nothing_is_left(farm, server)


def test_a_killed_session_is_told(farm: Farm, server: SshServer, emulators: None) -> None:
    running = run_slowly(farm, server)
    kill_all(running_agents(farm)[1:], signal.SIGKILL)
    assert "died of Killed" in assert_failed(running.end(), 5, "the session on board ended")["why"]
    assert_nothing_is_left(farm, server)


def test_a_cut_connection_is_told(farm: Farm, server: SshServer, emulators: None) -> None:
    running = run_slowly(farm, server)
    server.cut()
    assert_failed(running.end(), 5, "the SSH connection to .* broke")
    assert_nothing_is_left(farm, server)


def test_how_an_agent_ended_is_known_after_its_last_word(server: SshServer) -> None:
    import paramiko

    from farm.transports.ssh.connect import break_connection

    with paramiko.SSHClient() as client:
        client.load_host_keys(str(server.known_hosts))
        client.connect(
            "127.0.0.1",
            server.port,
            key_filename=str(server.home / ".ssh" / "id_ed25519"),
            allow_agent=False,
        )
        channel = client.get_transport().open_session()
        connection = ChannelConnection(channel, partial(break_connection, client))
        channel.exec_command("exec >&- 2>&-; sleep 1; exit 137")
        assert run_nonsuspending_coroutine(connection.receive(Deadline(LIMIT_S))) == b""
        connection.cut()
        assert channel.recv_exit_status() == 137
