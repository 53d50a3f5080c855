"""TVM's own clients of a tracker, each a function to be run as a program: PORT NAME. Prints
JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

import numpy as np
import tvm
from tvm import rpc, te
from tvm.rpc import base
from tvm.rpc.tracker import Tracker  # noqa: F401  (as TVM's own programs import it)

from farm.compiler.codegen.link import fcompile_for_profile
from farm.types import Profile

HOST, KEY = "127.0.0.1", "x86"


def sessions(port: int) -> Any:
    """A session by `request`, one by `request_and_run`."""
    tracker = rpc.connect_tracker(HOST, port)

    def total(session: Any) -> float:
        return float(
            tvm.runtime.tensor(np.arange(6, dtype="float32"), session.cpu(0)).numpy().sum()
        )

    first = total(tracker.request(KEY, session_timeout=60))
    return [first, tracker.request_and_run(KEY, total, session_timeout=60), tracker.text_summary()]


def runner(port: int) -> Any:
    """Three candidates through MetaSchedule's RPCRunner."""
    from tvm.s_tir import meta_schedule as ms

    count = 1 << 10
    data = te.placeholder((count,), name="data")
    more = te.create_prim_func([data, te.compute((count,), lambda i: data[i] + 1.0)]).with_attr(
        "global_symbol", "main"
    )
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "more.so")  # noqa: PTH118
        tvm.compile(more, target="llvm").export_library(
            library, fcompile=fcompile_for_profile(Profile("here", {"kind": "llvm"}, ""))
        )
        config = ms.runner.RPCConfig(HOST, port, KEY, session_timeout_sec=100)
        assert config.count_num_servers() == 1
        running = ms.runner.RPCRunner(
            config, ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=1)
        )
        shape = ms.arg_info.TensorInfo("float32", [count])
        results = [
            one.result()
            for one in running.run(
                [ms.runner.RunnerInput(library, "cpu", [shape, shape]) for _ in range(3)]
            )
        ]
    return [str(result.error_msg or "") for result in results]


def latency(port: int) -> Any:
    """Milliseconds of a request that can be served at once: on an open connection, and on its own;
    the least of twenty.
    """

    def ask(sock: Any, value: Any) -> Any:
        base.sendjson(sock, value)
        return base.recvjson(sock)

    def connected() -> Any:
        tracker = rpc.connect_tracker(HOST, port)
        return tracker, tracker._sock

    _board, board = connected()
    assert (
        ask(board, [base.TrackerCode.UPDATE_INFO, {"key": "server:fake", "addr": [None, 1]}]) == 0
    )
    kept = connected()
    found: dict[str, list[float]] = {"open": [], "anew": []}
    for how in [*found] * 20:
        assert ask(board, [base.TrackerCode.PUT, "fake", (1, base.random_key("fake")), None]) == 0
        begin = time.perf_counter()
        client = kept if how == "open" else connected()
        assert ask(client[1], [base.TrackerCode.REQUEST, "fake", "", 1])[0] == 0
        found[how].append((time.perf_counter() - begin) * 1e3)
    return {how: min(times) for how, times in found.items()}


def unknown(port: int) -> Any:
    """What a client hears that asks for a key which no board has."""
    try:
        rpc.connect_tracker(HOST, port).request("x68", session_timeout=60)
    except RuntimeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[2]](int(sys.argv[1]))))
