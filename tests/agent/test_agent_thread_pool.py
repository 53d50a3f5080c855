"""The agent's thread pool: tasks that are computed once each, by whichever thread is free."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_processes import Agent, begin_client, children_of, client
from timeouts import LIMIT_S, wait_until

from farm.agent.recipe import zig_flags
from farm.agent.zig_cache import zig_environment
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.store import user_cache_dir

Start = Callable[..., Agent]
SOURCE = Path(__file__).with_name("thread_pool_tasks.c")
INCLUDES = [("apache-tvm", "tvm/include"), ("apache-tvm-ffi", "tvm_ffi/include")]
SEIZE, INTERRUPT, DETACH, WAIT_FOR_ALL = 0x4206, 0x4207, 17, 0x40000000
pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="this machine has one core"
)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Architecture -> the library of thread_pool_tasks.c."""
    folder = tmp_path_factory.mktemp("tasks")

    def library(arch: str) -> str:
        path = folder / f"{arch}.so"
        if not path.exists():
            includes = [
                f"-I{importlib.metadata.distribution(name).locate_file(place)}"
                for name, place in INCLUDES
            ]
            command = [sys.executable, "-m", "ziglang", "cc", *zig_flags(arch), *includes]
            options = ["-shared", "-nostdlib", "-fno-sanitize=undefined", "-Wl,--hash-style=gnu"]
            subprocesses.run_program(
                [*command, *options, str(SOURCE), "-o", str(path)],
                deadline=Deadline(LIMIT_S),
                what="compiling a test's tasks",
                env=zig_environment(user_cache_dir() / "zig"),
            )
        return str(path)

    return library


@contextmanager
def stopped(thread: int) -> Iterator[None]:
    """Stop one thread of another process, as the scheduler does while others use its core."""
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    if trace(SEIZE, thread, None, None):
        pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
    assert trace(INTERRUPT, thread, None, None) == 0
    os.waitpid(thread, WAIT_FOR_ALL)
    try:
        yield
    finally:
        if trace(DETACH, thread, None, None):  # the process has ended
            os.waitpid(thread, WAIT_FOR_ALL)


def results_with_two_threads(agent: Agent, library: str, *calls: list[Any]) -> list[Any]:
    """What functions of the library return, or their errors as text: [name, arguments...]."""
    results: list[Any] = client(
        "call_library", port=agent.port, threads=2, library=library, calls=list(calls)
    )
    return results


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "armv7"])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [("uncounted", [500, 0]), ("uncounted", [50, 20_000]), ("wrong_after_barriers", [20])],
)
def test_each_task_is_computed_once(
    arch: str,
    function: str,
    arguments: list[int],
    start: Start,
    tasks: Callable[[str], str],
) -> None:
    assert results_with_two_threads(start(arch), tasks(arch), [function, *arguments]) == [0]


def test_threads_that_have_slept_compute_again(start: Start, tasks: Callable[[str], str]) -> None:
    calls: list[list[Any]] = [["uncounted", 20, 0], ["sleep", 0.1]] * 5
    assert results_with_two_threads(start(), tasks("x86_64"), *calls) == [0, None] * 5


def test_a_thread_without_a_core_does_not_hold_up_the_others(
    start: Start, tasks: Callable[[str], str], tmp_path: Path
) -> None:
    agent, ready, go = start(), tmp_path / "ready", tmp_path / "go"
    calls: list[list[Any]] = [
        ["uncounted", 1, 0],
        ["wait", str(ready), str(go)],
        ["uncounted", 100, 100],
    ]
    results = begin_client(
        "call_library", port=agent.port, threads=2, library=tasks("x86_64"), calls=calls
    )
    wait_until(ready.exists, "the pool has its threads")
    (session,) = children_of(agent.child.pid)
    threads = sorted(int(path.name) for path in Path(f"/proc/{session}/task").iterdir())
    (worker,) = (thread for thread in threads if thread != session)
    with stopped(worker):
        go.touch()
        assert results.result(LIMIT_S) == [0, None, 0]


@pytest.mark.parametrize("task", [0, 1])
def test_an_error_of_one_task_is_that_of_the_launch(
    task: int, start: Start, tasks: Callable[[str], str]
) -> None:
    error, after = results_with_two_threads(
        start(), tasks("x86_64"), ["fail", task], ["uncounted", 10, 0]
    )
    assert f"Task {task} error: no such weight" in error
    assert after == 0


def test_a_launch_within_a_task_is_computed_by_its_thread(
    start: Start, tasks: Callable[[str], str]
) -> None:
    counted, error = results_with_two_threads(
        start(), tasks("x86_64"), ["counted_within", 2], ["counted_within", 3]
    )
    assert counted == 2
    assert "more tasks than threads" in error
