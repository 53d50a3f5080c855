"""Slots: real processes that work, fail, die, hang, and are paused; and threads."""

from __future__ import annotations

import faulthandler
import logging
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
from timeouts import LIMIT_S, wait_until

from farm.errors import BuildError, DeadlineError, FarmError, InternalError
from farm.processes import at_exit
from farm.processes.cancellation import Cancellation, Cancelled, register_wait_breaker
from farm.processes.workers import Message, MessageKind, TaskContext, WorkerPool, thread_map
from farm.prompts import Question, terminal
from farm.types import Progress, Stage


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WorkerPool]:
    with WorkerPool(tmp_path / "scratch") as pool:
        yield pool


def finish(pool: WorkerPool, *slots: str) -> dict[str, Message]:
    """The last message of each slot."""
    ends: dict[str, Message] = {}

    def all_ended() -> bool:
        ends.update(
            {
                message.slot: message
                for message in pool.messages(0.1)
                if message.kind is not MessageKind.NOTE
            }
        )
        return set(slots) <= set(ends)

    wait_until(all_ended, f"the end of {slots}")
    return ends


def begin(pool: WorkerPool, *slots: str) -> None:
    """Have the processes of slots there: a deadline is not to be about their start."""
    for slot in slots:
        pool.assign(slot, process_id, deadline_s=LIMIT_S, task="beginning")
    finish(pool, *slots)


def add(_: TaskContext, a: int, b: int) -> int:
    return a + b


def process_id(_: TaskContext) -> int:
    return os.getpid()


def fail(_: TaskContext) -> None:
    raise BuildError("what", "why", "fix")


def blunder(_: TaskContext) -> None:
    raise KeyError("a bug")


def die(_: TaskContext) -> None:
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def die_in_tvm(context: TaskContext) -> None:
    import tvm_ffi  # noqa: F401  it prints the stack of a segmentation fault

    context.note(Progress(Stage.IMPORTING, "checking the import on this machine"))
    die(context)


def die_with_a_stack_of_python(context: TaskContext) -> None:
    faulthandler.enable()
    context.note(Progress(Stage.IMPORTING, "checking the import on this machine"))
    die(context)


def hang(context: TaskContext, note: Path) -> None:
    note.write_text(f"{os.getpid()}")
    (context.scratch / "left").write_text("x")
    time.sleep(600)


def spawn_and_hang(_: TaskContext, note: Path) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(600)
    note.write_text(f"{os.getpid()} {child}")
    time.sleep(600)


def count_up(_: TaskContext, note: Path, enough: Path) -> None:
    """Notes moments until a file is there."""
    with note.open("w") as file:
        while not enough.exists():
            file.write(f"{time.monotonic()}\n")
            file.flush()
            time.sleep(0.005)


def quiet_span(context: TaskContext, seconds: float) -> tuple[float, float]:
    with context.quiet():
        begin = time.monotonic()
        time.sleep(seconds)
        return begin, time.monotonic()


def notes(context: TaskContext) -> None:
    for number in range(3):
        context.note(number)


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def assert_gone(*processes: str | int) -> None:
    wait_until(
        lambda: not any(alive(int(process)) for process in processes), f"the end of {processes}"
    )


def read_when_there(path: Path) -> str:
    return str(wait_until(lambda: path.exists() and path.read_text(), f"something in {path}"))


def test_a_task_returns_its_value_and_the_lane_is_used_again(pool: WorkerPool) -> None:
    pool.assign("a", process_id, deadline_s=LIMIT_S, task="first")
    first = finish(pool, "a")["a"]
    pool.assign("a", process_id, deadline_s=LIMIT_S, task="second")
    assert finish(pool, "a")["a"] == first
    assert first.value != os.getpid()


def test_lanes_work_at_the_same_time(pool: WorkerPool, tmp_path: Path) -> None:
    pool.assign("a", hang, tmp_path / "a", deadline_s=LIMIT_S, task="a")
    pool.assign("b", add, 1, 2, deadline_s=LIMIT_S, task="b")
    assert finish(pool, "b")["b"].value == 3
    assert not pool.idle("a")
    assert pool.idle("b")


def test_notes_arrive_in_order_before_the_end(pool: WorkerPool) -> None:
    pool.assign("a", notes, deadline_s=LIMIT_S, task="a")
    heard: list[Message] = []
    while not heard or heard[-1].kind is MessageKind.NOTE:
        heard += pool.messages(1)
    assert [message.value for message in heard] == [0, 1, 2, None]


def test_an_error_arrives_as_it_was_raised(pool: WorkerPool) -> None:
    pool.assign("a", fail, deadline_s=LIMIT_S, task="a")
    message = finish(pool, "a")["a"]
    assert message.kind is MessageKind.FAILED
    assert isinstance(message.value, BuildError)
    assert message.value.parts() == ("what", "why", "fix")


def test_a_task_that_the_worker_cannot_import_is_an_error_not_a_silence(pool: WorkerPool) -> None:
    def local(_: TaskContext) -> None: ...

    with pytest.raises((AttributeError, PicklingError)):
        pool.assign("a", local, deadline_s=LIMIT_S, task="a")


def test_an_unexpected_exception_is_an_internal_error_with_its_traceback(pool: WorkerPool) -> None:
    pool.assign("a", blunder, deadline_s=LIMIT_S, task="a")
    error = finish(pool, "a")["a"].value
    assert isinstance(error, InternalError)
    assert "a bug" in error.what
    assert "in blunder" in error.why


def test_a_worker_that_crashes_says_how_and_the_lane_gets_another(pool: WorkerPool) -> None:
    pool.assign("a", die, deadline_s=LIMIT_S, task="compiling x")
    error = finish(pool, "a")["a"].value
    assert isinstance(error, FarmError)
    assert "compiling x" in error.what
    assert f"signal {signal.SIGSEGV.value}" in error.what
    assert "last words" in error.why
    pool.assign("a", add, 1, 1, deadline_s=LIMIT_S, task="again")
    assert finish(pool, "a")["a"].value == 2


@pytest.mark.parametrize("crash", [die_in_tvm, die_with_a_stack_of_python])
def test_a_crash_is_an_error_that_names_the_step_and_shows_no_stack(
    pool: WorkerPool, crash: Callable[[TaskContext], None]
) -> None:
    pool.assign("a", crash, deadline_s=LIMIT_S, task="importing x")
    error = finish(pool, "a")["a"].value
    assert error.what == "importing x: its process ended with signal 11 (Segmentation fault)"
    assert error.why == "it was checking the import on this machine\nlast words"


def test_a_task_past_its_deadline_is_ended_with_all_it_started(
    pool: WorkerPool, tmp_path: Path
) -> None:
    begin(pool, "a")
    pool.assign("a", spawn_and_hang, tmp_path / "pids", deadline_s=3, task="x on pi3")
    pool.assign("b", add, 1, 2, deadline_s=LIMIT_S, task="b")
    ends = finish(pool, "a", "b")
    assert isinstance(ends["a"].value, DeadlineError)
    assert "x on pi3" in ends["a"].value.what
    assert ends["b"].value == 3
    assert_gone(*read_when_there(tmp_path / "pids").split())


def test_a_frozen_worker_is_ended_at_its_deadline(pool: WorkerPool, tmp_path: Path) -> None:
    begin(pool, "a")
    pool.assign("a", hang, tmp_path / "pid", deadline_s=3, task="a")
    process = int(read_when_there(tmp_path / "pid"))
    os.kill(process, signal.SIGSTOP)
    assert isinstance(finish(pool, "a")["a"].value, DeadlineError)
    assert_gone(process)


def test_leaving_ends_every_worker_and_removes_its_scratch(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), WorkerPool(tmp_path / "scratch") as pool:
        pool.assign("a", spawn_and_hang, tmp_path / "pids", deadline_s=LIMIT_S, task="a")
        pool.assign("b", hang, tmp_path / "pid", deadline_s=LIMIT_S, task="b")
        processes = [*read_when_there(tmp_path / "pids").split(), read_when_there(tmp_path / "pid")]
        raise KeyboardInterrupt
    assert_gone(*processes)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = os.fork()
    if parent == 0:
        with WorkerPool(tmp_path / "scratch") as pool:
            pool.assign("a", hang, tmp_path / "pid", deadline_s=LIMIT_S, task="a")
            time.sleep(600)
    try:
        process = int(read_when_there(tmp_path / "pid"))
    finally:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
    assert_gone(process)


def test_quiet_pauses_the_other_lanes_on_this_machine_and_no_remote_one(
    pool: WorkerPool, tmp_path: Path
) -> None:
    for slot, here in (("here", True), ("remote", False)):
        pool.assign(
            slot,
            count_up,
            tmp_path / slot,
            tmp_path / "enough",
            deadline_s=LIMIT_S,
            task=slot,
            here=here,
        )
        read_when_there(tmp_path / slot)
    pool.assign("quiet", quiet_span, 0.8, deadline_s=LIMIT_S, task="quiet")
    first, last = finish(pool, "quiet")["quiet"].value
    (tmp_path / "enough").touch()
    finish(pool, "here", "remote")
    moments = {
        slot: [float(line) for line in (tmp_path / slot).read_text().splitlines()]
        for slot in ("here", "remote")
    }
    told = {
        slot: [moment for moment in those if first < moment < last]
        for slot, those in moments.items()
    }
    assert told["here"] == [] and told["remote"] != []


def test_quiet_is_given_to_one_lane_at_a_time_and_all_finish(pool: WorkerPool) -> None:
    for slot in "abc":
        pool.assign(slot, quiet_span, 0.3, deadline_s=LIMIT_S, task=slot)
    spans = sorted(message.value for message in finish(pool, "a", "b", "c").values())
    assert all(earlier[1] <= later[0] for earlier, later in zip(spans, spans[1:], strict=False))


def test_time_in_which_a_lane_was_paused_does_not_count_against_its_deadline(
    pool: WorkerPool, tmp_path: Path
) -> None:
    begin(pool, "here", "quiet")
    pool.assign("here", count_up, tmp_path / "here", tmp_path / "enough", deadline_s=4, task="here")
    read_when_there(tmp_path / "here")
    pool.assign("quiet", quiet_span, 5.0, deadline_s=LIMIT_S, task="quiet")
    assert finish(pool, "quiet")["quiet"].kind is MessageKind.DONE
    (tmp_path / "enough").touch()
    assert finish(pool, "here")["here"].kind is MessageKind.DONE


def test_a_lane_that_dies_in_its_quiet_does_not_leave_the_others_paused(
    pool: WorkerPool, tmp_path: Path
) -> None:
    pool.assign(
        "here", count_up, tmp_path / "here", tmp_path / "enough", deadline_s=LIMIT_S, task="here"
    )
    read_when_there(tmp_path / "here")
    pool.assign("quiet", die_in_quiet, deadline_s=LIMIT_S, task="quiet")
    assert finish(pool, "quiet")["quiet"].kind is MessageKind.FAILED
    (tmp_path / "enough").touch()
    assert finish(pool, "here")["here"].kind is MessageKind.DONE


def die_in_quiet(context: TaskContext) -> None:
    with context.quiet():
        os.kill(os.getpid(), signal.SIGKILL)


def quiet_until(context: TaskContext, begun: Path, enough: Path) -> None:
    with context.quiet():
        begun.touch()
        while not enough.exists():
            time.sleep(0.005)


def stops(pool: WorkerPool, slot: str) -> bool:
    child = pool._workers[slot].child
    assert child
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_what_comes_in_anothers_quiet_waits_for_its_end_and_a_lane_that_goes_wants_none(
    pool: WorkerPool, tmp_path: Path
) -> None:
    begun, enough = tmp_path / "begun", tmp_path / "enough"
    pool.assign("quiet", quiet_until, begun, enough, deadline_s=LIMIT_S, task="quiet")
    wait_until(lambda: pool.messages(0.05) or begun.exists(), "its quiet")
    pool.assign("late", add, 1, 2, deadline_s=LIMIT_S, task="late")
    wait_until(lambda: stops(pool, "late"), "its pause", LIMIT_S / 10)
    pool.assign("gone", quiet_span, 0.0, deadline_s=LIMIT_S, task="gone", here=False)
    wait_until(lambda: pool.messages(0.05) or pool._wants_quiet == ["gone"], "its wish")
    pool.drop("gone")
    enough.touch()
    ends = finish(pool, "quiet", "late")
    assert (ends["quiet"].kind, ends["late"].value) == (MessageKind.DONE, 3)
    pool.assign("next", quiet_span, 0.0, deadline_s=LIMIT_S, task="next")
    assert finish(pool, "next")["next"].kind is MessageKind.DONE


def warn(_: TaskContext, what: str) -> None:
    logging.getLogger("farm").warning("the bucket is %s", what)


def test_a_warning_of_several_lanes_is_logged_once(
    pool: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    for slot, what in (("a", "away"), ("b", "away"), ("a", "away"), ("b", "full")):
        pool.assign(slot, warn, what, deadline_s=LIMIT_S, task="warning")
        finish(pool, slot)
    assert caplog.messages == ["the bucket is away", "the bucket is full"]


LARGE = bytes(8 << 20)  # far more than a connection's buffer


def size_of(_: TaskContext, value: bytes) -> int:
    return len(value)


def large(_: TaskContext) -> bytes:
    return LARGE


def test_a_task_for_a_worker_that_stands_still_keeps_nobody_waiting(pool: WorkerPool) -> None:
    pool.assign("frozen", process_id, deadline_s=LIMIT_S, task="first")
    worker = finish(pool, "frozen")["frozen"].value
    os.kill(worker, signal.SIGSTOP)
    pool.assign("frozen", size_of, LARGE, deadline_s=2, task="second")
    assert isinstance(finish(pool, "frozen")["frozen"].value, DeadlineError)


def test_an_answer_of_a_paused_lane_arrives_after_the_pause_and_blocks_no_one(
    pool: WorkerPool,
) -> None:
    pool.assign("quiet", quiet_span, 1.0, deadline_s=LIMIT_S, task="quiet")
    for slot in "abc":  # paused at one point or another of their answers
        pool.assign(slot, large, deadline_s=LIMIT_S, task=slot)
    ends = finish(pool, "quiet", "a", "b", "c")
    assert [ends[slot].value == LARGE for slot in "abc"] == [True] * 3


def tell_at_length(context: TaskContext, enough: Path) -> None:
    while not enough.exists():
        context.note(Progress(Stage.COMPILING, "x" * (4 << 20)))


def test_a_lane_that_is_paused_in_the_middle_of_a_message_blocks_no_one(
    pool: WorkerPool, tmp_path: Path
) -> None:
    begin(pool, "talker", "quiet")
    pool.assign("talker", tell_at_length, tmp_path / "enough", deadline_s=LIMIT_S, task="talking")
    wait_until(lambda: bool(pool.messages(0.1)), "the talker's first message")
    for _ in range(5):
        pool.assign("quiet", quiet_span, 0.3, deadline_s=LIMIT_S, task="quiet")
        assert finish(pool, "quiet")["quiet"].kind is MessageKind.DONE
    (tmp_path / "enough").touch()
    assert finish(pool, "talker")["talker"].kind is MessageKind.DONE


def test_a_worker_that_has_died_unnoticed_fails_its_next_task_and_nothing_else(
    pool: WorkerPool,
) -> None:
    pool.assign("a", process_id, deadline_s=LIMIT_S, task="first")
    worker = finish(pool, "a")["a"].value
    os.kill(worker, signal.SIGKILL)
    pool.assign("a", add, 1, 2, deadline_s=LIMIT_S, task="second")
    message = finish(pool, "a")["a"]
    assert message.value == 3 or "its process ended" in message.value.what
    pool.assign("a", add, 1, 2, deadline_s=LIMIT_S, task="third")
    assert finish(pool, "a")["a"].value == 3


def thread_name(context: TaskContext) -> tuple[str, int]:
    context.note(Progress(Stage.CONNECTING))
    return threading.current_thread().name, os.getpid()


def test_a_lane_that_is_a_thread_works_like_another_in_this_process(pool: WorkerPool) -> None:
    for _ in range(2):
        pool.assign("a", thread_name, deadline_s=LIMIT_S, task="a", thread=True)
        pool.assign("b", blunder, deadline_s=LIMIT_S, task="b", thread=True)
        pool.assign("c", fail, deadline_s=LIMIT_S, task="c", thread=True)
        ends = finish(pool, "a", "b", "c")
        assert ends["a"].value == ("a", os.getpid())
        assert isinstance(ends["b"].value, InternalError) and "in blunder" in ends["b"].value.why
        assert ends["c"].value.parts() == ("what", "why", "fix")


def wait_for_a_word(
    _: TaskContext, peer: socket.socket, begun: threading.Event, ended: threading.Event
) -> bytes:
    with register_wait_breaker(lambda: peer.shutdown(socket.SHUT_RDWR)):
        begun.set()
        try:
            return peer.recv(1)
        finally:
            ended.set()


def test_a_thread_past_its_deadline_fails_at_once_its_wait_ends_and_the_lane_goes_on(
    pool: WorkerPool,
) -> None:
    ours, theirs = socket.socketpair()
    begun, ended = threading.Event(), threading.Event()
    with ours, theirs:
        pool.assign(
            "a", wait_for_a_word, theirs, begun, ended, deadline_s=0.5, task="x on pi3", thread=True
        )
        error = finish(pool, "a")["a"].value
        assert isinstance(error, DeadlineError) and "x on pi3" in error.what
        assert ended.wait(LIMIT_S)
        pool.assign("a", add, 1, 2, deadline_s=LIMIT_S, task="again", thread=True)
        assert finish(pool, "a")["a"].value == 3


def test_leaving_ends_the_waits_of_threads(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    begun, ended = threading.Event(), threading.Event()
    with ours, theirs:
        with pytest.raises(KeyboardInterrupt), WorkerPool(tmp_path / "scratch") as pool:
            pool.assign(
                "a",
                wait_for_a_word,
                theirs,
                begun,
                ended,
                deadline_s=LIMIT_S,
                task="a",
                thread=True,
            )
            assert begun.wait(LIMIT_S)
            raise KeyboardInterrupt
        assert ended.wait(LIMIT_S)
    assert list((tmp_path / "scratch").iterdir()) == []


def wait_twice(
    _: TaskContext, begun: threading.Event, going: threading.Event, told: list[str]
) -> None:
    begun.set()
    assert going.wait(LIMIT_S)
    try:
        with register_wait_breaker(lambda: None):
            told.append("it waits")
    except Cancelled:
        told.append("it is cancelled")


def test_a_thread_that_was_given_up_begins_no_further_wait(tmp_path: Path) -> None:
    begun, going, told = threading.Event(), threading.Event(), list[str]()
    with WorkerPool(tmp_path / "scratch") as pool:
        pool.assign("a", wait_twice, begun, going, told, deadline_s=LIMIT_S, task="a", thread=True)
        assert begun.wait(LIMIT_S)
    going.set()
    wait_until(lambda: told, "the thread goes on")
    assert told == ["it is cancelled"]


def test_all_waits_of_a_thread_are_broken_whatever_one_of_them_says() -> None:
    work, broken = Cancellation(), list[str]()

    def refuse() -> None:
        broken.append("outer")
        raise OSError("it is closed already")

    def wait_within() -> None:
        with register_wait_breaker(lambda: broken.append("inner")):
            work.cancel()

    with work.in_this_thread(), register_wait_breaker(refuse):
        wait_within()
        with pytest.raises(Cancelled):
            wait_within()
    assert sorted(broken) == ["inner", "outer"]
    wait_within()  # nobody cancels this thread any more
    assert sorted(broken) == ["inner", "outer"]


def full_disk(_: TaskContext) -> None:
    with Path("/dev/full").open("w") as file:
        file.write("x")


def test_a_disk_that_is_full_is_no_bug(pool: WorkerPool) -> None:
    pool.assign("a", full_disk, deadline_s=LIMIT_S, task="a")
    error = finish(pool, "a")["a"].value
    assert isinstance(error, BuildError)
    assert error.what == "the disk is full"


def test_together_keeps_the_order() -> None:
    assert thread_map(lambda number: number * number, [3, 1, 2]) == [9, 1, 4]


def ask(context: TaskContext) -> str | None:
    return context.ask(Question("your name: "))


def test_where_nobody_can_be_asked_a_lane_goes_on_without_an_answer(pool: WorkerPool) -> None:
    for slot in ("one", "two"):
        pool.assign(slot, ask, deadline_s=LIMIT_S, task="asking")
    ends = finish(pool, "one", "two")
    assert [(end.kind, end.value) for end in ends.values()] == [(MessageKind.DONE, None)] * 2


def ask_and_go_on(context: TaskContext, going: threading.Event) -> str | None:
    answer = ask(context)
    assert going.wait(LIMIT_S)
    return answer


def test_time_in_which_the_user_is_asked_does_not_count_against_a_deadline(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, later, asked, answers = threading.Event(), [0.0], list[str](), list[tuple[str, str]]()
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + later[0])
    monkeypatch.setattr(terminal, "put", lambda slot, _: asked.append(slot))
    monkeypatch.setattr(terminal, "answers", lambda: [answers.pop()] if answers else [])
    pool.assign("a", ask_and_go_on, going, deadline_s=LIMIT_S, task="asking", thread=True)
    wait_until(lambda: pool.messages(0.01) or asked, "it asks")
    later[0] = 10.0 * LIMIT_S
    assert pool.messages(0.15) == []
    answers.append(("a", "ann"))
    assert pool.messages(0.15) == []
    going.set()
    assert finish(pool, "a")["a"].value == "ann"


def write_at_the_end(_: TaskContext, file: Path) -> None:
    def write(word: str) -> None:
        with file.open("a") as opened:
            opened.write(word)

    at_exit.register(lambda: write("what was taken first"))
    at_exit.register(lambda: write("last and "))


def write_at_the_end_and_hang(context: TaskContext, file: Path) -> None:
    write_at_the_end(context, file)
    context.note("hanging")
    time.sleep(LIMIT_S)


def test_what_a_worker_holds_elsewhere_is_given_back_when_it_ends(tmp_path: Path) -> None:
    idle, busy = tmp_path / "idle", tmp_path / "busy"
    with WorkerPool(tmp_path / "scratch") as pool:
        pool.assign("idle", write_at_the_end, idle, deadline_s=LIMIT_S, task="t")
        finish(pool, "idle")
        pool.assign("busy", write_at_the_end_and_hang, busy, deadline_s=LIMIT_S, task="t")
        wait_until(lambda: pool.messages(0.1), "its note")
        assert not idle.exists() and not busy.exists()
    for file in (idle, busy):
        assert file.read_text() == "last and what was taken first"
