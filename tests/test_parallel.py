"""Lanes: real processes that work, fail, die, hang, and are paused; and threads."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import PicklingError

import pytest
from waiting import LIMIT_S, wait_until

from farm.cancellation import Cancelled, breakable
from farm.errors import BuildError, DeadlineError, FarmError, InternalError
from farm.prompts import Question
from farm.types import Progress, Stage
from farm.workers import Crew, Desk, Kind, Message, together


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    with Crew(tmp_path / "scratch") as crew:
        yield crew


def finish(crew: Crew, *lanes: str) -> dict[str, Message]:
    """The last message of each lane."""
    ends: dict[str, Message] = {}

    def all_ended() -> bool:
        ends.update({message.lane: message for message in crew.messages(0.1) if message.kind is not Kind.NOTE})
        return set(lanes) <= set(ends)

    wait_until(all_ended, f"the end of {lanes}")
    return ends


def begin(crew: Crew, *lanes: str) -> None:
    """Have the processes of lanes there: a deadline is not to be about their start."""
    for lane in lanes:
        crew.assign(lane, process_id, deadline_s=LIMIT_S, task="beginning")
    finish(crew, *lanes)


def add(_: Desk, a: int, b: int) -> int:
    return a + b


def process_id(_: Desk) -> int:
    return os.getpid()


def fail(_: Desk) -> None:
    raise BuildError("what", "why", "fix")


def blunder(_: Desk) -> None:
    raise KeyError("a bug")


def die(_: Desk) -> None:
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def die_in_tvm(desk: Desk) -> None:
    import tvm_ffi  # noqa: F401  it prints the stack of a segmentation fault

    desk.note(Progress(Stage.IMPORTING, "checking the import on this machine"))
    die(desk)


def die_with_a_stack_of_python(desk: Desk) -> None:
    faulthandler.enable()
    desk.note(Progress(Stage.IMPORTING, "checking the import on this machine"))
    die(desk)


def hang(desk: Desk, note: Path) -> None:
    note.write_text(f"{os.getpid()}")
    (desk.scratch / "left").write_text("x")
    time.sleep(600)


def spawn_and_hang(_: Desk, note: Path) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(600)
    note.write_text(f"{os.getpid()} {child}")
    time.sleep(600)


def count_up(_: Desk, note: Path, enough: Path) -> None:
    """Notes moments until a file is there."""
    with note.open("w") as file:
        while not enough.exists():
            file.write(f"{time.monotonic()}\n")
            file.flush()
            time.sleep(0.005)


def quiet_span(desk: Desk, seconds: float) -> tuple[float, float]:
    with desk.quiet():
        begin = time.monotonic()
        time.sleep(seconds)
        return begin, time.monotonic()


def notes(desk: Desk) -> None:
    for number in range(3):
        desk.note(number)


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def assert_gone(*processes: str | int) -> None:
    wait_until(lambda: not any(alive(int(process)) for process in processes), f"the end of {processes}")


def read_when_there(path: Path) -> str:
    return str(wait_until(lambda: path.exists() and path.read_text(), f"something in {path}"))


def test_a_task_returns_its_value_and_the_lane_is_used_again(crew: Crew) -> None:
    crew.assign("a", process_id, deadline_s=LIMIT_S, task="first")
    first = finish(crew, "a")["a"]
    crew.assign("a", process_id, deadline_s=LIMIT_S, task="second")
    assert finish(crew, "a")["a"] == first
    assert first.value != os.getpid()


def test_lanes_work_at_the_same_time(crew: Crew, tmp_path: Path) -> None:
    crew.assign("a", hang, tmp_path / "a", deadline_s=LIMIT_S, task="a")
    crew.assign("b", add, 1, 2, deadline_s=LIMIT_S, task="b")
    assert finish(crew, "b")["b"].value == 3
    assert not crew.idle("a")
    assert crew.idle("b")


def test_notes_arrive_in_order_before_the_end(crew: Crew) -> None:
    crew.assign("a", notes, deadline_s=LIMIT_S, task="a")
    heard: list[Message] = []
    while not heard or heard[-1].kind is Kind.NOTE:
        heard += crew.messages(1)
    assert [message.value for message in heard] == [0, 1, 2, None]


def test_an_error_arrives_as_it_was_raised(crew: Crew) -> None:
    crew.assign("a", fail, deadline_s=LIMIT_S, task="a")
    message = finish(crew, "a")["a"]
    assert message.kind is Kind.FAILED
    assert isinstance(message.value, BuildError)
    assert message.value.parts() == ("what", "why", "fix")


def test_a_task_that_the_worker_cannot_import_is_an_error_not_a_silence(crew: Crew) -> None:
    def local(_: Desk) -> None: ...

    with pytest.raises((AttributeError, PicklingError)):
        crew.assign("a", local, deadline_s=LIMIT_S, task="a")


def test_an_unexpected_exception_is_an_internal_error_with_its_traceback(crew: Crew) -> None:
    crew.assign("a", blunder, deadline_s=LIMIT_S, task="a")
    error = finish(crew, "a")["a"].value
    assert isinstance(error, InternalError)
    assert "a bug" in error.what
    assert "in blunder" in error.why


def test_a_worker_that_crashes_says_how_and_the_lane_gets_another(crew: Crew) -> None:
    crew.assign("a", die, deadline_s=LIMIT_S, task="compiling x")
    error = finish(crew, "a")["a"].value
    assert isinstance(error, FarmError)
    assert "compiling x" in error.what
    assert f"signal {signal.SIGSEGV.value}" in error.what
    assert "last words" in error.why
    crew.assign("a", add, 1, 1, deadline_s=LIMIT_S, task="again")
    assert finish(crew, "a")["a"].value == 2


@pytest.mark.parametrize("crash", [die_in_tvm, die_with_a_stack_of_python])
def test_a_crash_is_an_error_that_names_the_step_and_shows_no_stack(crew: Crew, crash: Callable[[Desk], None]) -> None:
    crew.assign("a", crash, deadline_s=LIMIT_S, task="importing x")
    error = finish(crew, "a")["a"].value
    assert error.what == "importing x: its process ended with signal 11 (Segmentation fault)"
    assert error.why == "it was checking the import on this machine\nlast words"


def test_a_task_past_its_deadline_is_ended_with_all_it_started(crew: Crew, tmp_path: Path) -> None:
    begin(crew, "a")
    crew.assign("a", spawn_and_hang, tmp_path / "pids", deadline_s=3, task="x on pi3")
    crew.assign("b", add, 1, 2, deadline_s=LIMIT_S, task="b")
    ends = finish(crew, "a", "b")
    assert isinstance(ends["a"].value, DeadlineError)
    assert "x on pi3" in ends["a"].value.what
    assert ends["b"].value == 3
    assert_gone(*read_when_there(tmp_path / "pids").split())


def test_a_frozen_worker_is_ended_at_its_deadline(crew: Crew, tmp_path: Path) -> None:
    begin(crew, "a")
    crew.assign("a", hang, tmp_path / "pid", deadline_s=3, task="a")
    process = int(read_when_there(tmp_path / "pid"))
    os.kill(process, signal.SIGSTOP)
    assert isinstance(finish(crew, "a")["a"].value, DeadlineError)
    assert_gone(process)


def test_leaving_ends_every_worker_and_removes_its_scratch(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Crew(tmp_path / "scratch") as crew:
        crew.assign("a", spawn_and_hang, tmp_path / "pids", deadline_s=LIMIT_S, task="a")
        crew.assign("b", hang, tmp_path / "pid", deadline_s=LIMIT_S, task="b")
        processes = [*read_when_there(tmp_path / "pids").split(), read_when_there(tmp_path / "pid")]
        raise KeyboardInterrupt
    assert_gone(*processes)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = os.fork()
    if parent == 0:
        with Crew(tmp_path / "scratch") as crew:
            crew.assign("a", hang, tmp_path / "pid", deadline_s=LIMIT_S, task="a")
            time.sleep(600)
    try:
        process = int(read_when_there(tmp_path / "pid"))
    finally:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
    assert_gone(process)


def test_quiet_pauses_the_other_lanes_on_this_machine_and_no_remote_one(crew: Crew, tmp_path: Path) -> None:
    for lane, here in (("here", True), ("remote", False)):
        crew.assign(lane, count_up, tmp_path / lane, tmp_path / "enough", deadline_s=LIMIT_S, task=lane, here=here)
        read_when_there(tmp_path / lane)
    crew.assign("quiet", quiet_span, 0.8, deadline_s=LIMIT_S, task="quiet")
    first, last = finish(crew, "quiet")["quiet"].value
    (tmp_path / "enough").touch()
    finish(crew, "here", "remote")
    moments = {lane: [float(line) for line in (tmp_path / lane).read_text().splitlines()] for lane in ("here", "remote")}
    told = {lane: [moment for moment in those if first < moment < last] for lane, those in moments.items()}
    assert told["here"] == [] and told["remote"] != []


def test_quiet_is_given_to_one_lane_at_a_time_and_all_finish(crew: Crew) -> None:
    for lane in "abc":
        crew.assign(lane, quiet_span, 0.3, deadline_s=LIMIT_S, task=lane)
    spans = sorted(message.value for message in finish(crew, "a", "b", "c").values())
    assert all(earlier[1] <= later[0] for earlier, later in zip(spans, spans[1:], strict=False))


def test_time_in_which_a_lane_was_paused_does_not_count_against_its_deadline(crew: Crew, tmp_path: Path) -> None:
    begin(crew, "here", "quiet")
    crew.assign("here", count_up, tmp_path / "here", tmp_path / "enough", deadline_s=4, task="here")
    read_when_there(tmp_path / "here")
    crew.assign("quiet", quiet_span, 5.0, deadline_s=LIMIT_S, task="quiet")
    assert finish(crew, "quiet")["quiet"].kind is Kind.DONE
    (tmp_path / "enough").touch()
    assert finish(crew, "here")["here"].kind is Kind.DONE


def test_a_lane_that_dies_in_its_quiet_does_not_leave_the_others_paused(crew: Crew, tmp_path: Path) -> None:
    crew.assign("here", count_up, tmp_path / "here", tmp_path / "enough", deadline_s=LIMIT_S, task="here")
    read_when_there(tmp_path / "here")
    crew.assign("quiet", die_in_quiet, deadline_s=LIMIT_S, task="quiet")
    assert finish(crew, "quiet")["quiet"].kind is Kind.FAILED
    (tmp_path / "enough").touch()
    assert finish(crew, "here")["here"].kind is Kind.DONE


def die_in_quiet(desk: Desk) -> None:
    with desk.quiet():
        os.kill(os.getpid(), signal.SIGKILL)


LARGE = bytes(8 << 20)  # far more than a connection's buffer


def size_of(_: Desk, value: bytes) -> int:
    return len(value)


def large(_: Desk) -> bytes:
    return LARGE


def test_a_task_for_a_worker_that_stands_still_keeps_nobody_waiting(crew: Crew) -> None:
    crew.assign("frozen", process_id, deadline_s=LIMIT_S, task="first")
    worker = finish(crew, "frozen")["frozen"].value
    os.kill(worker, signal.SIGSTOP)
    crew.assign("frozen", size_of, LARGE, deadline_s=2, task="second")
    assert isinstance(finish(crew, "frozen")["frozen"].value, DeadlineError)


def test_an_answer_of_a_paused_lane_arrives_after_the_pause_and_blocks_no_one(crew: Crew) -> None:
    crew.assign("quiet", quiet_span, 1.0, deadline_s=LIMIT_S, task="quiet")
    for lane in "abc":  # paused at one point or another of their answers
        crew.assign(lane, large, deadline_s=LIMIT_S, task=lane)
    ends = finish(crew, "quiet", "a", "b", "c")
    assert [ends[lane].value == LARGE for lane in "abc"] == [True] * 3


def test_a_worker_that_has_died_unnoticed_fails_its_next_task_and_nothing_else(crew: Crew) -> None:
    crew.assign("a", process_id, deadline_s=LIMIT_S, task="first")
    worker = finish(crew, "a")["a"].value
    os.kill(worker, signal.SIGKILL)
    crew.assign("a", add, 1, 2, deadline_s=LIMIT_S, task="second")
    message = finish(crew, "a")["a"]
    assert message.value == 3 or "its process ended" in message.value.what
    crew.assign("a", add, 1, 2, deadline_s=LIMIT_S, task="third")
    assert finish(crew, "a")["a"].value == 3


def thread_name(desk: Desk) -> tuple[str, int]:
    desk.note(Progress(Stage.CONNECTING))
    return threading.current_thread().name, os.getpid()


def test_a_lane_that_is_a_thread_works_like_another_in_this_process(crew: Crew) -> None:
    for _ in range(2):
        crew.assign("a", thread_name, deadline_s=LIMIT_S, task="a", thread=True)
        crew.assign("b", blunder, deadline_s=LIMIT_S, task="b", thread=True)
        crew.assign("c", fail, deadline_s=LIMIT_S, task="c", thread=True)
        ends = finish(crew, "a", "b", "c")
        assert ends["a"].value == ("a", os.getpid())
        assert isinstance(ends["b"].value, InternalError) and "in blunder" in ends["b"].value.why
        assert ends["c"].value.parts() == ("what", "why", "fix")


def wait_for_a_word(_: Desk, peer: socket.socket, begun: threading.Event, ended: threading.Event) -> bytes:
    with breakable(lambda: peer.shutdown(socket.SHUT_RDWR)):
        begun.set()
        try:
            return peer.recv(1)
        finally:
            ended.set()


def test_a_thread_past_its_deadline_fails_at_once_its_wait_ends_and_the_lane_goes_on(crew: Crew) -> None:
    ours, theirs = socket.socketpair()
    begun, ended = threading.Event(), threading.Event()
    with ours, theirs:
        crew.assign("a", wait_for_a_word, theirs, begun, ended, deadline_s=0.5, task="x on pi3", thread=True)
        error = finish(crew, "a")["a"].value
        assert isinstance(error, DeadlineError) and "x on pi3" in error.what
        assert ended.wait(LIMIT_S)
        crew.assign("a", add, 1, 2, deadline_s=LIMIT_S, task="again", thread=True)
        assert finish(crew, "a")["a"].value == 3


def test_leaving_ends_the_waits_of_threads(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    begun, ended = threading.Event(), threading.Event()
    with ours, theirs:
        with pytest.raises(KeyboardInterrupt), Crew(tmp_path / "scratch") as crew:
            crew.assign("a", wait_for_a_word, theirs, begun, ended, deadline_s=LIMIT_S, task="a", thread=True)
            assert begun.wait(LIMIT_S)
            raise KeyboardInterrupt
        assert ended.wait(LIMIT_S)
    assert list((tmp_path / "scratch").iterdir()) == []


def wait_twice(_: Desk, begun: threading.Event, going: threading.Event, told: list[str]) -> None:
    begun.set()
    assert going.wait(LIMIT_S)
    try:
        with breakable(lambda: None):
            told.append("it waits")
    except Cancelled:
        told.append("it is cancelled")


def test_a_thread_that_was_given_up_begins_no_further_wait(tmp_path: Path) -> None:
    begun, going, told = threading.Event(), threading.Event(), list[str]()
    with Crew(tmp_path / "scratch") as crew:
        crew.assign("a", wait_twice, begun, going, told, deadline_s=LIMIT_S, task="a", thread=True)
        assert begun.wait(LIMIT_S)
    going.set()
    wait_until(lambda: told, "the thread goes on")
    assert told == ["it is cancelled"]


def full_disk(_: Desk) -> None:
    with Path("/dev/full").open("w") as file:
        file.write("x")


def test_a_disk_that_is_full_is_no_bug(crew: Crew) -> None:
    crew.assign("a", full_disk, deadline_s=LIMIT_S, task="a")
    error = finish(crew, "a")["a"].value
    assert isinstance(error, BuildError)
    assert error.what == "the disk is full"


def test_together_keeps_the_order() -> None:
    assert together(lambda number: number * number, [3, 1, 2]) == [9, 1, 4]


def ask(desk: Desk) -> str | None:
    return desk.ask(Question("your name: "))


def test_where_nobody_can_be_asked_a_lane_goes_on_without_an_answer(crew: Crew) -> None:
    for lane in ("one", "two"):
        crew.assign(lane, ask, deadline_s=LIMIT_S, task="asking")
    ends = finish(crew, "one", "two")
    assert [(end.kind, end.value) for end in ends.values()] == [(Kind.DONE, None)] * 2
