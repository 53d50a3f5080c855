"""What a sandboxed task asks of its helper, which has the rights that it lacks; what it notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hostile_tasks as tasks
import pytest

from farm import sandbox
from farm.errors import BuildError, ModelError
from farm.processes.workers import TaskContext
from farm.sandbox.policy import Policy

pytestmark = pytest.mark.skipif(
    not sandbox.sandbox_support().complete, reason=sandbox.sandbox_support().missing or "never"
)


@pytest.fixture
def asked() -> list[Any]:
    return []


def run(task: Any, scratch: Path, asked: list[Any], *, helped: bool = True) -> Any:
    def helper(request: Any) -> Any:
        asked.append(request)
        if request == "refuse":
            raise BuildError("there is no such library", "by intent")
        if request == "fail":
            raise FileExistsError("by intent")
        return Path("library.so")

    policy = Policy((), (scratch,), 2 << 30, 1 << 20)
    return sandbox.run_sandboxed(
        policy, scratch, task, note=print, helper=helper if helped else None, what="trying"
    )


def test_a_task_gets_the_answers_and_the_errors_of_its_helper(
    tmp_path: Path, asked: list[Any]
) -> None:
    answers = run(tasks.ask_twice, tmp_path, asked)
    assert answers == [Path("library.so"), "there is no such library"]
    assert asked == [("a.o", "b.o"), "refuse"]


def test_a_task_that_is_not_sandboxed_asks_the_same_helper(tmp_path: Path) -> None:
    context = TaskContext(tmp_path)
    assert context.with_helper(lambda request: [request]).ask_helper(1) == [1]
    with pytest.raises(AssertionError):  # the context itself has got none
        context.ask_helper(1)


def test_a_request_that_is_no_plain_value_does_not_reach_the_helper(
    tmp_path: Path, asked: list[Any]
) -> None:
    with pytest.raises(ModelError, match="sent what is no answer"):
        run(tasks.ask_to_call, tmp_path, asked)
    assert asked == []


def test_a_request_where_there_is_no_helper_ends_the_task(tmp_path: Path, asked: list[Any]) -> None:
    with pytest.raises(ModelError, match="its process ended"):
        run(tasks.ask_twice, tmp_path, asked, helped=False)


def test_a_task_that_ends_before_it_is_answered_is_one_error(
    tmp_path: Path, asked: list[Any]
) -> None:
    with pytest.raises(ModelError):
        run(tasks.ask_and_end, tmp_path, asked)


def test_a_helper_that_fails_ends_its_task_and_no_later_one(
    tmp_path: Path, asked: list[Any]
) -> None:
    with pytest.raises(FileExistsError, match="by intent"):
        run(tasks.ask_and_stay, tmp_path, asked)
    assert run(tasks.ask_twice, tmp_path, []) == [Path("library.so"), "there is no such library"]
    assert not Path(f"/proc/{asked[0]}").exists()


def test_a_note_is_cut_where_it_is_too_long_to_be_shown(tmp_path: Path) -> None:
    policy, told = Policy((), (tmp_path,), 2 << 30, 1 << 20), list[Any]()
    sandbox.run_sandboxed(
        policy, tmp_path, tasks.note_at_length, 100_000, note=told.append, what="trying"
    )
    assert [len(one.note) for one in told] == [2000]
    with pytest.raises(ModelError, match="its process ended"):
        sandbox.run_sandboxed(
            policy, tmp_path, tasks.note_at_length, 17 << 20, note=told.append, what="trying"
        )
    assert len(told) == 1
