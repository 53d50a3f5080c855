"""Devices by network: servers that are not there, say nothing or say nonsense; TVM's own server and
tracker; and ours.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
from collections.abc import Callable, Iterator

import pytest
import tvm_programs
from accepting import accepting
from farm_processes import HOST, Done, Farm, server
from rpc_servers import configure, farm_agent, farm_tracker, tvm_server, tvm_tracker


def deploy(farm: Farm, url: str, *options: str, own: str = "") -> Done:
    configure(farm, url, options=own)
    done = farm.run("deploy", "--device", "board", "digits", *options)
    farm.assert_nothing_is_left()
    return done


def test_an_address_where_nobody_listens(farm: Farm) -> None:
    port = free_port()
    done = deploy(farm, f"rpc://{HOST}:{port}")
    assert done.code == 5
    assert "board is offline" in done.error["error"]
    assert f"{HOST}:{port}" in done.error["why"] and "refused" in done.error["why"]
    assert f"farm agent --port {port}" in done.error["fix"]
    benched = farm.run("bench", "--device", "board", "digits")
    assert "0 new, " in benched.out and "slowest device" not in benched.out


def test_a_host_without_an_address(farm: Farm) -> None:
    done = deploy(farm, "rpc://no-such-host.invalid:9090")
    assert done.code == 5
    assert "no-such-host.invalid" in done.error["why"]


def test_a_server_that_never_speaks_is_given_up_at_the_deadline_asked_for_whatever_the_devices_own_is(  # noqa: E501
    farm: Farm,
) -> None:
    with peer(lambda connection: connection.recv(1)) as port:
        done = deploy(farm, f"rpc://{HOST}:{port}", "--deadline", "4", own="deadline_s = 900")
    assert done.code == 6
    assert "digits on board" in done.error["error"] and "4 s" in done.error["error"]


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\xff" * 4096])
def test_a_server_that_speaks_something_else(farm: Farm, said: bytes) -> None:
    with peer(
        lambda connection: (
            connection.recv(8),
            connection.sendall(said),
            connection.shutdown(socket.SHUT_WR),
        )
    ) as port:
        done = deploy(farm, f"rpc://{HOST}:{port}", "--deadline", "100")
    assert done.code == 5
    assert f"{HOST}:{port}" in done.error["error"] + done.error["why"]
    assert "url" in done.error["fix"], done.error


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_tracker_that_is_none(farm: Farm, said: bytes) -> None:
    with peer(
        lambda connection: (
            connection.recv(4),
            connection.sendall(said),
            connection.shutdown(socket.SHUT_WR),
        )
    ) as port:
        done = deploy(farm, f"tracker://{HOST}:{port}/board", "--deadline", "100")
    assert done.code == 5
    assert done.error["error"] == f"what listens at {HOST}:{port} is no TVM tracker"


def test_a_key_that_the_server_does_not_take(farm: Farm) -> None:
    with farm_agent(farm, "--key", "secret") as port:
        done = deploy(farm, f"rpc://{HOST}:{port}")
        assert done.code == 5
        assert "`key` or `key_file`" in done.error["fix"], done.error


def test_the_farm_drives_tvms_own_server(farm: Farm) -> None:
    with tvm_server(farm) as port:
        configure(farm, f"rpc://{HOST}:{port}")
        assert_agrees(farm.run("bench", "--device", "board", "--json"))
    farm.assert_nothing_is_left()


def test_the_farm_drives_tvms_own_server_through_tvms_own_tracker(farm: Farm) -> None:
    with (
        tvm_tracker(farm) as tracker,
        tvm_server(farm, "--tracker", f"{HOST}:{tracker}", "--key", "board"),
    ):
        configure(farm, f"tracker://{HOST}:{tracker}/board")
        for _ in range(2):
            assert_agrees(farm.run("bench", "--device", "board", "--json"))
        assert_no_such_key(farm, tracker)
    farm.assert_nothing_is_left()


def test_the_farm_drives_its_own_agent_through_its_own_tracker(farm: Farm) -> None:
    shutil.rmtree(
        farm.cache / "agent", ignore_errors=True
    )  # what other tests have sent to the agent of this cache
    with (
        farm_tracker(farm) as tracker,
        farm_agent(farm, "--tracker", f"{HOST}:{tracker}", "--key", "board"),
    ):
        configure(farm, f"tracker://{HOST}:{tracker}/board")
        first = farm.run("bench", "--device", "board", "--json")
        assert_agrees(first)
        second = farm.run("bench", "--device", "board", "--json")
        assert_agrees(second)
        assert first.json["runs"][0]["samples"]["uploaded"] > 0
        assert second.json["runs"][0]["samples"]["uploaded"] == 0, "the agent has it already"
        assert_no_such_key(farm, tracker)
    farm.assert_nothing_is_left()


def test_a_device_that_another_has_for_ever_is_given_up_at_the_deadline(farm: Farm) -> None:
    with (
        farm_tracker(farm) as tracker,
        farm_agent(farm, "--tracker", f"{HOST}:{tracker}", "--key", "board"),
        taken(farm, tracker),
    ):
        configure(farm, f"tracker://{HOST}:{tracker}/board")
        done = farm.run("deploy", "--device", "board", "digits", "--deadline", "4")
        assert done.code == 6
        assert "digits on board" in done.error["error"]
    farm.assert_nothing_is_left()


def assert_agrees(done: Done) -> None:
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["samples"]["agreement"]["right"]
    assert run["samples"]["total"] == 20 and run["samples"]["correct"] >= 19
    assert len(run["samples"]["seconds"]) >= 5
    assert run["latency"]["p50_ms"] > 0


def assert_no_such_key(farm: Farm, tracker: int) -> None:
    done = deploy(farm, f"tracker://{HOST}:{tracker}/bord")
    assert done.code == 5
    assert "bord" in done.error["error"] and "board" in done.error["why"]
    assert f"farm agent --tracker {HOST}:{tracker} --key bord" in done.error["fix"]


@contextlib.contextmanager
def taken(farm: Farm, tracker: int) -> Iterator[None]:
    """Somebody has the tracker's device."""
    script = (
        f"session = rpc.connect_tracker('{HOST}', {tracker}).request('board'); print('mine', "
        "flush=True); time.sleep(600)"
    )
    with server(
        farm.folder,
        sys.executable,
        "-c",
        f"import time; from tvm import rpc; {script}",
        says="mine",
        env=tvm_programs.environment(),
    ):
        yield


@contextlib.contextmanager
def peer(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that treats every connection in its own way; gives its port."""
    with (
        socket.create_server((HOST, 0)) as listener,
        contextlib.ExitStack() as open_ones,
        accepting(listener, lambda one: answer(open_ones.enter_context(one))),
    ):
        yield listener.getsockname()[1]


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])
