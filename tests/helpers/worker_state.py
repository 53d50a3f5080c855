"""What a worker process finds as its task begins: started as a program, and as a fork.

python worker_state.py FOLDER MARK  # prints both as JSON
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import forked_commands

from farm.processes.workers import MessageKind, TaskContext, WorkerPool
from farm.sandbox import run_sandboxed
from farm.sandbox.policy import Policy

_LIMITS = 16  # RLIM_NLIMITS of Linux


def state(context: TaskContext) -> dict[str, Any]:
    """The state of this worker, without what differs between any two."""
    own = {str(context.scratch): "SCRATCH", str(os.getpid()): "PID"}

    def named(text: str) -> str:
        for value, name in own.items():
            text = text.replace(value, name)
        return text

    shown = Path("/proc/self/environ").read_bytes().split(b"\0")
    before = {
        "arguments": [named(sys.argv[0]), len(sys.argv), named(sys.argv[2])],
        "path": sys.path,
        "environment": {key: named(value) for key, value in sorted(os.environ.items())},
        "mark": [one.decode() for one in shown if one.startswith(b"FARM_TEST=")],
        "folder": str(Path.cwd()),
        "files": sorted(named(_kind(path)) for path in Path("/proc/self/fd").iterdir()),
        "session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "signals": {
            number.name: str(signal.getsignal(number)).partition(" at ")[0]
            for number in signal.valid_signals()
            if isinstance(number, signal.Signals)
        },
        "limits": [resource.getrlimit(kind) for kind in range(_LIMITS)],
        "nice": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": threading.active_count(),
        "TVM": "tvm" in sys.modules,
        "torch": "torch" in sys.modules,
    }
    sandboxed = run_sandboxed(
        Policy.of_this_machine(read=(), write=(context.scratch,)),
        context.scratch,
        _modules_of_sandbox,
        modules=["farm.compiler.lower"],
        note=lambda _: None,
        what="a test",
    )
    return {
        **before,
        "sandbox": sandboxed,
        "computed": _computed(),
        "TVM later": "tvm" in sys.modules,
    }


def _kind(path: Path) -> str:
    """What an open file is: its name, without the number of a socket."""
    try:
        return str(path.readlink()).partition(":[")[0]
    except OSError:  # that of the folder itself is closed
        return f"/proc/{os.getpid()}/fd"


def _modules_of_sandbox(_: TaskContext) -> list[bool]:
    return ["tvm" in sys.modules, "torch" in sys.modules]


def state_after_computing(context: TaskContext) -> dict[str, Any]:
    """The state of a sandbox of this worker, whose first sandbox comes after TVM."""
    computed = _computed()
    group, *found = run_sandboxed(
        Policy.of_this_machine(read=(), write=(context.scratch,)),
        context.scratch,
        _state_of_sandbox,
        modules=["farm.compiler.lower"],
        note=lambda _: None,
        what="a test",
    )
    return {"computed": computed, "in the group": group == os.getpgid(0), "found": found}


def _state_of_sandbox(_: TaskContext) -> list[Any]:
    return [
        os.getpgid(0),
        sys.path,
        [sys.argv[0], len(sys.argv)],
        {key: value for key, value in sorted(os.environ.items()) if key != "TMPDIR"},
        str(Path.cwd()),
        threading.active_count(),
        str(signal.getsignal(signal.SIGTERM)),
        str(signal.getsignal(signal.SIGINT)),
        "torch" in sys.modules,
        _computed(),
    ]


def _computed() -> list[float]:
    """The sum of two arrays by code that TVM has compiled, with its threads."""
    import numpy as np
    import tvm
    from tvm import te

    a = te.placeholder((4,), name="a")
    function = te.create_prim_func([a, te.compute((4,), lambda i: a[i] + a[i], name="b")])
    x, y = (tvm.runtime.tensor(np.arange(4, dtype="float32")) for _ in range(2))
    tvm.compile(function, target="llvm")(x, y)
    return [float(value) for value in y.numpy()]


def found_in_worker(folder: Path) -> dict[str, Any]:
    import worker_state

    found = {}
    for name, task in {
        "before": worker_state.state,
        "after": worker_state.state_after_computing,
    }.items():
        with WorkerPool(folder) as pool:
            pool.assign("one", task, deadline_s=600, task="state")
            while not (messages := pool.messages(1.0)):
                pass
        (message,) = messages
        assert message.kind is MessageKind.DONE, message.value
        found[name] = message.value
    return found


def main() -> None:
    folder, mark = sys.argv[1:]
    workers = forked_commands.fork_worker_server()
    os.environ["FARM_TEST"] = mark
    program = found_in_worker(Path(folder))
    forked_commands.start_workers_as_forks(workers)
    print(json.dumps([program, found_in_worker(Path(folder))]))


if __name__ == "__main__":
    main()
