"""`farm devices -v` of devices at an address: asked by threads of this process, all at once,
without TVM and without waiting long.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import hostile_board
from accepting import accepting
from farm_processes import HOST, Farm, server
from rpc_servers import farm_agent, tvm_server
from timeouts import wait_until

_BOUND_S = 60.0  # the deadlines are 10 s; the rest is for a busy machine


def configure(farm: Farm, **ports: int) -> None:
    tables = [
        f'[devices.{name}]\nprofile = "x86"\nurl = "rpc://{HOST}:{port}"\n'
        for name, port in ports.items()
    ]
    farm.configure("".join(tables))


def facts_of(farm: Farm) -> dict[str, Any]:
    begin = time.monotonic()
    done = farm.run("devices", "-v", "--json")
    assert done.code == 0, done.err
    assert time.monotonic() - begin < _BOUND_S
    farm.assert_nothing_is_left()
    return {device["name"]: device["facts"] for device in done.json["devices"]}


@contextlib.contextmanager
def silent() -> Iterator[tuple[int, list[socket.socket]]]:
    """A server that accepts each connection and says nothing; gives its port, and who has come."""
    with socket.create_server((HOST, 0)) as listener, contextlib.ExitStack() as open_ones:
        come: list[socket.socket] = []

        with accepting(listener, lambda one: come.append(open_ones.enter_context(one))):
            yield listener.getsockname()[1], come


def test_agents_tell_their_facts_and_no_tvm_is_imported(farm: Farm) -> None:
    with farm_agent(farm) as one, farm_agent(farm) as two:
        configure(farm, one=one, two=two)
        found = facts_of(farm)
        farm.environment = {"PYTHONPROFILEIMPORTTIME": "1"}
        done = farm.run("devices", "-v")
    for name in ("one", "two"):
        assert found[name]["tvm"] and int(found[name]["cores"]) > 0
    assert "memory_total_bytes" in done.out
    imported = set(re.findall(r"\| +([\w.]+)$", done.err, re.MULTILINE))
    assert "farm.rpc.session" in imported
    assert imported.isdisjoint({"tvm", "tvm_ffi", "numpy", "torch", "farm.executor"})


def test_each_device_that_fails_has_its_error_and_no_other_waits_for_it(farm: Farm) -> None:
    board = (sys.executable, "-I", "-S", hostile_board.__file__, "silent", farm.folder / "marker")
    with (
        farm_agent(farm) as well,
        farm_agent(farm, "--key", "secret") as locked,
        tvm_server(farm) as tvm,
        silent() as (mute, _),
        server(farm.folder, *board, says=r"port (\d+)") as greets,
    ):
        configure(farm, well=well, locked=locked, tvm=tvm, mute=mute, greets=int(greets))
        found = facts_of(farm)
    assert found["well"]["tvm"]
    assert found["tvm"] == {}
    assert found["mute"] == {"error": "mute accepted the connection but did not greet within 10 s"}
    assert found["greets"] == {
        "error": "greets sent what no agent sends: nothing for 15 s after its greeting"
    }
    assert "no server for locked" in found["locked"]["error"]


def test_ctrl_c_while_a_device_is_silent(farm: Farm) -> None:
    with silent() as (port, come):
        configure(farm, mute=port)
        running = farm.start("devices", "-v")
        wait_until(lambda: len(come) > 1, "the device is asked, after its state")
        running.send(signal.SIGINT)
        done = running.end()
    assert done.code == 130
    assert "Traceback" not in done.err
    farm.assert_nothing_is_left()
