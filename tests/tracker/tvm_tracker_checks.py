"""What TVM's own tests of its tracker do, against the tracker at a port, as programs: PORT NAME.

They follow `test_rpc_tracker_register`, `test_rpc_tracker_request` and `check_server_drop` of
TVM's tests, with TVM's servers and client, which are not changed; the proxy of `check_server_drop`
is left out. A wait is until what is expected is so, in the place of a sleep.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from timeouts import wait_until
from tvm import rpc
from tvm.rpc import base

HOST = "127.0.0.1"
HOLD = """
import sys, time
from tvm import rpc
remote = rpc.connect_tracker("127.0.0.1", int(sys.argv[1])).request("pi", session_timeout=600)
print("has it", flush=True)
time.sleep(600)
"""


def server(port: int, key: str, **more: Any) -> Any:
    """TVM's server, in a process of its own, that offers itself under a key."""
    places = {"port": 29090, "port_end": 29990, **more}
    return rpc.Server(host=HOST, key=key, tracker_addr=(HOST, port), silent=True, **places)


def is_listed(client: Any, key: str, port: int) -> bool:
    found = client.summary()["server_info"]
    return any(
        one["key"] == f"server:{key}" and one["addr"][1] == port and one["addr"][0] in (HOST, None)
        for one in found
    )


def counts(client: Any, key: str) -> tuple[int, int]:
    found = client.summary()["queue_info"].get(key, {"free": 0, "pending": 0})
    return found["free"], found["pending"]


def becomes(client: Any, key: str, wanted: tuple[int, int]) -> None:
    wait_until(lambda: counts(client, key) == wanted, f"{key}: {wanted} free and pending", 60)


def answers(remote: Any) -> None:
    """Let a session compute nothing, and see that it is there."""
    there = tvm.runtime.tensor(np.arange(6, dtype="float32"), remote.cpu(0))
    assert float(there.numpy().sum()) == 15.0


def register(port: int) -> None:
    """Two servers of a key come, serve, are free again, and go one after the other."""
    client = rpc.connect_tracker(HOST, port)
    servers = [server(port, "pi") for _ in range(2)]
    becomes(client, "pi", (2, 0))
    assert all(is_listed(client, "pi", one.port) for one in servers)
    remote = client.request("pi")
    answers(remote)
    assert counts(client, "pi") == (1, 0)
    del remote
    becomes(client, "pi", (2, 0))
    servers[0].terminate()
    becomes(client, "pi", (1, 0))
    assert not is_listed(client, "pi", servers[0].port)
    assert is_listed(client, "pi", servers[1].port)
    servers[1].terminate()
    becomes(client, "pi", (0, 0))
    assert not any(is_listed(client, "pi", one.port) for one in servers)


def request(port: int) -> None:
    """One client has the server, a second waits; each is killed, and leaves nothing behind."""
    client, held = rpc.connect_tracker(HOST, port), server(port, "pi")
    becomes(client, "pi", (1, 0))

    def holder() -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HOLD, str(port)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    first = holder()
    assert first.stdout and first.stdout.readline() == "has it\n"
    second = holder()
    becomes(client, "pi", (0, 1))
    first.kill()
    assert second.stdout and second.stdout.readline() == "has it\n"
    becomes(client, "pi", (0, 0))
    second.kill()
    becomes(client, "pi", (1, 0))
    held.terminate()


def pending(port: int) -> None:
    """A server goes while requests wait for it: they have the next one, the most urgent first."""
    client, only = rpc.connect_tracker(HOST, port), server(port, "pi")
    becomes(client, "pi", (1, 0))
    remote = client.request("pi")
    waiting = {name: rpc.connect_tracker(HOST, port) for name in ("later", "urgent")}
    for name, priority in (("later", 1), ("urgent", 5)):
        before = counts(client, "pi")[1]
        base.sendjson(waiting[name]._sock, [base.TrackerCode.REQUEST, "pi", "", priority])
        becomes(client, "pi", (0, before + 1))
    only.terminate()
    del remote
    wait_until(lambda: not is_listed(client, "pi", only.port), "the server is gone", 60)
    assert counts(client, "pi") == (0, 2)
    following = server(port, "pi")
    code, (_, its_port, match_key) = base.recvjson(waiting["urgent"]._sock)
    assert (code, its_port) == (base.TrackerCode.SUCCESS, following.port)
    assert counts(client, "pi") == (0, 1)
    answers(rpc.connect(HOST, its_port, match_key))
    code, (_, its_port, match_key) = base.recvjson(waiting["later"]._sock)
    assert (code, its_port) == (base.TrackerCode.SUCCESS, following.port)
    answers(rpc.connect(HOST, its_port, match_key))
    following.terminate()


def drop(port: int) -> None:
    """Requests whose boards nobody uses, stale offers, sessions that time out."""
    client = rpc.connect_tracker(HOST, port)
    servers = [server(port, key) for key in ("abc", "xyz", "xyz", "xyz1")]
    for key, free in (("abc", 1), ("xyz", 2), ("xyz1", 1)):
        becomes(client, key, (free, 0))

    def put(value: Any) -> None:
        base.sendjson(client._sock, value)
        base.recvjson(client._sock)

    for key in ("abc", "xyz1"):  # what is answered is not used
        put([base.TrackerCode.REQUEST, key, "", 1])
    for place, match_key in (
        (servers[1].port, "abc"),
        (servers[1].port, "abcxxx"),
        (servers[2].port, "abcxxx11"),
    ):
        put([base.TrackerCode.PUT, "xyz", (place, match_key), None])

    def check_timeout(timeout_s: float, sleep_s: float) -> None:
        def slowly(remote: Any) -> None:
            time.sleep(sleep_s)
            answers(remote)

        with contextlib.suppress(RuntimeError):
            client.request_and_run("xyz", slowly, session_timeout=timeout_s)
        client.text_summary()
        with contextlib.suppress(RuntimeError):
            first = client.request("xyz", priority=0, session_timeout=timeout_s)
            second = client.request("xyz", session_timeout=timeout_s)
            time.sleep(sleep_s)
            answers(first)
            answers(second)
        for key in ("abc", "xyz1"):
            answers(client.request(key))

    check_timeout(0.01, 0.1)
    check_timeout(2, 0)
    for one in servers:
        one.terminate()


if __name__ == "__main__":
    checks: dict[str, Callable[[int], None]] = {
        "register": register,
        "request": request,
        "pending": pending,
        "drop": drop,
    }
    checks[sys.argv[2]](int(sys.argv[1]))
    print(json.dumps("done"))
    sys.stdout.flush()
