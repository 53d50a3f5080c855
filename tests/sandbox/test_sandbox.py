"""A sandboxed process does its work, and nothing else, whatever it tries."""

from __future__ import annotations

import contextlib
import copyreg
import enum
import os
import pickle
import re
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hostile_tasks as tasks
import numpy as np
import pytest
from timeouts import LIMIT_S, wait_until

from farm import sandbox
from farm.errors import DeadlineError, FarmError, ModelError
from farm.processes.deadline import Deadline
from farm.processes.workers import MessageKind, WorkerPool
from farm.sandbox import capabilities, denied_system_calls, landlock, restricted_pickle, seccomp
from farm.sandbox.policy import Policy
from farm.types import Progress, Stage, Verdict

needs_sandbox = pytest.mark.skipif(
    not sandbox.sandbox_support().complete, reason=sandbox.sandbox_support().missing or "never"
)
_MEMORY = 2 << 30
_FILE = 1 << 20

Attempt = Callable[..., Any]


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """Do a task in a sandbox that may read and write one folder."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(
        task: Callable[..., Any],
        *arguments: Any,
        read: tuple[Path, ...] = (),
        types: tuple[type, ...] = (),
    ) -> Any:
        policy = Policy(read, (scratch,), _MEMORY, _FILE)
        return sandbox.run_sandboxed(
            policy, scratch, task, *arguments, types=types, note=run.notes.append, what="trying"
        )

    run.notes = []  # type: ignore[attr-defined]
    return run


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user's, that no policy names."""
    path = tmp_path / ".ssh" / "known_hosts"
    path.parent.mkdir()
    path.write_text("secret")
    return path


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server.getsockname()[1]
        with pytest.raises(BlockingIOError):  # nobody has come
            server.accept()


@needs_sandbox
def test_a_task_notes_writes_and_answers(attempt: Attempt, tmp_path: Path) -> None:
    given = attempt(tasks.answer)
    assert (given["folder"], given["set"]) == (tmp_path / "scratch", {1})
    np.testing.assert_array_equal(given["array"], np.arange(3, dtype="float32"))
    assert attempt.notes == ["on the way"]  # type: ignore[attr-defined]
    assert (tmp_path / "scratch" / "file").read_text() == "x"


@needs_sandbox
def test_a_task_makes_and_removes_folders_of_its_own(attempt: Attempt, tmp_path: Path) -> None:
    before = sorted((tmp_path / "scratch").iterdir())
    assert attempt(tasks.use_folder) == "moved"
    assert sorted(set((tmp_path / "scratch").iterdir()) - set(before)) == [
        tmp_path / "scratch" / "output.log"
    ]


def test_a_policy_of_this_machine_leaves_some_of_its_memory_and_of_its_fullest_disk(
    tmp_path: Path,
) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    places = [place for place in (tmp_path, Path("/dev/shm")) if place.is_dir()]
    both = Policy.of_this_machine((), tuple(places))
    assert 0 < both.memory_bytes <= 0.9 * total
    alone = [Policy.of_this_machine((), (place,)).file_bytes for place in places]
    assert both.file_bytes == pytest.approx(min(alone), rel=0.05)  # others write meanwhile
    free = [shutil.disk_usage(place).free for place in places]
    assert alone == pytest.approx([0.9 * one for one in free], rel=0.05)
    assert Policy.of_this_machine((tmp_path,), ()).file_bytes == 0


@needs_sandbox
def test_a_file_that_the_policy_names_can_be_read_and_not_written(
    attempt: Attempt, secret: Path
) -> None:
    assert attempt(tasks.read, secret, read=(secret,)) == "secret"
    with pytest.raises(ModelError, match="PermissionError"):
        attempt(tasks.write, secret, read=(secret,))


@needs_sandbox
@pytest.mark.parametrize(
    "task",
    [
        tasks.read,
        tasks.write,
        tasks.append,
        tasks.truncate,
        tasks.change_mode,
        tasks.touch,
        tasks.remove,
        tasks.link,
    ],
)
def test_a_file_of_the_user_is_neither_read_nor_changed(
    attempt: Attempt, secret: Path, task: Callable[..., Any]
) -> None:
    before = secret.stat()
    with pytest.raises(ModelError) as raised:
        attempt(task, secret)
    error = raised.value
    assert error.what.startswith("trying: PermissionError")
    assert "sandbox" in error.why
    assert "--trust" in error.fix
    assert secret.read_text() == "secret"
    assert (secret.stat().st_mode, secret.stat().st_mtime_ns) == (
        before.st_mode,
        before.st_mtime_ns,
    )


@needs_sandbox
def test_a_file_of_the_user_gets_no_second_name(attempt: Attempt, secret: Path) -> None:
    with pytest.raises(FarmError, match=r"Invalid cross-device link|PermissionError"):
        attempt(tasks.hard_link, secret)
    assert secret.stat().st_nlink == 1


@needs_sandbox
def test_no_socket_is_opened(attempt: Attempt, listener: int, tmp_path: Path) -> None:
    for task, place in (
        (tasks.connect, listener),
        (tasks.connect_by_name, tmp_path / "scratch" / "socket"),
    ):
        with pytest.raises(ModelError, match="PermissionError"):
            attempt(task, place)


@needs_sandbox
@pytest.mark.parametrize(
    "task",
    [tasks.start_program, tasks.become_program, tasks.fork, tasks.leave_group, tasks.kill_group],
)
def test_no_program_is_started_and_no_group_left_or_ended(
    attempt: Attempt, task: Callable[..., Any]
) -> None:
    with pytest.raises(ModelError, match="PermissionError"):
        attempt(task)


@needs_sandbox
@pytest.mark.parametrize("task", [tasks.kill, tasks.environment_of, tasks.trace])
def test_other_processes_are_out_of_reach(attempt: Attempt, task: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="PermissionError"):
        attempt(task, os.getpid())


_SECRETS = (
    "AWS_SECRET_ACCESS_KEY",
    "FARM_SHARED_CACHE_KEY",
    "GITHUB_TOKEN",
    "PYTHON_INDEX_TOKEN",
    "PYTHON_TOKEN_FILE",
    "TORCH_password",
    "SSH_AUTH_SOCK",
    "PGPASSWORD",
)


def in_worker(folder: Path, task: Callable[..., Any], *arguments: Any) -> Any:
    """What a task in the sandbox of a fresh worker answers; that worker's sandboxes are forks of
    it.
    """
    (folder / "files").mkdir(exist_ok=True)
    with WorkerPool(folder / "pool") as pool:
        pool.assign(
            "a",
            tasks.task_of_worker,
            folder / "files",
            task,
            *arguments,
            deadline_s=LIMIT_S,
            task="trying",
        )
        (message,) = wait_until(lambda: pool.messages(0.1), "the answer")
    if message.kind is not MessageKind.DONE:
        raise message.value
    return message.value


@needs_sandbox
@pytest.mark.parametrize("forked", [True, False])
def test_a_model_sees_the_variables_that_it_needs_and_no_others(
    forked: bool, attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _SECRETS:
        monkeypatch.setenv(name, "planted-secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    if not forked:
        import tvm  # noqa: F401  the server is a new Python where the worker has computed

        monkeypatch.setattr(sandbox, "_servers", [])
    seen, of_kernel, of_library = (
        in_worker(tmp_path, tasks.environment) if forked else attempt(tasks.environment)
    )
    assert (seen["OMP_NUM_THREADS"], seen["PATH"]) == ("3", os.environ["PATH"])
    assert f"PATH={os.environ['PATH']}" in of_kernel.split("\0")  # as of any process
    assert set(seen).isdisjoint(_SECRETS)
    assert "planted-secret" not in repr(seen) + of_kernel + of_library


@needs_sandbox
def test_a_model_does_not_find_a_variable_in_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):  # long ones, as the freed memory of short ones is soon used again
        monkeypatch.setenv(f"AWS_SECRET_ACCESS_KEY_{number}", 17 * "planted in the environment")
    monkeypatch.setenv("OMP_DISPLAY_AFFINITY", "passed in the environment")
    assert in_worker(tmp_path, tasks.places_in_memory, b"passed in the environment"[::-1]) > 0
    assert in_worker(tmp_path, tasks.places_in_memory, b"planted in the environment"[::-1]) == 0


@needs_sandbox
def test_a_model_does_not_read_the_environment_of_the_processes_above_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="PermissionError"):
        in_worker(tmp_path, tasks.environment_of_parent)


@needs_sandbox
def test_memory_and_files_are_bounded(attempt: Attempt) -> None:
    with pytest.raises(ModelError, match="MemoryError") as raised:
        attempt(tasks.allocate, 2 * _MEMORY)
    assert "2.1 GB" in raised.value.why
    with pytest.raises(FarmError, match="File too large"):
        attempt(tasks.fill_disk, 2 * _FILE)


@needs_sandbox
def test_root_is_no_more_than_another_user(attempt: Attempt) -> None:
    """But for what it may read: files of other users' folders, for example."""
    assert attempt(tasks.capabilities) & ~capabilities.KEPT == 0
    with pytest.raises(ModelError, match="PermissionError"):
        attempt(tasks.make_immutable)


@needs_sandbox
@pytest.mark.parametrize(
    "task", [tasks.make_set_id, tasks.share_memory, tasks.make_memory_file, tasks.watch]
)
def test_no_rights_memory_or_knowledge_are_had_by_a_back_door(
    attempt: Attempt, task: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="PermissionError"):
        attempt(task)
    assert not (tmp_path / "scratch" / "set-id").exists()


@needs_sandbox
def test_another_process_is_not_pinned_to_a_core(attempt: Attempt) -> None:
    cores = os.sched_getaffinity(0)
    attempt(tasks.pin, os.getpid())
    assert os.sched_getaffinity(0) == cores


@needs_sandbox
def test_only_the_end_of_what_a_task_prints_is_read(tmp_path: Path) -> None:
    policy = Policy((), (tmp_path,), _MEMORY, 1 << 36)
    with (
        memory_bound(1 << 30),
        pytest.raises(ModelError, match="exit code 3") as raised,
    ):
        sandbox.run_sandboxed(policy, tmp_path, tasks.flood_log, note=print, what="trying")
    assert raised.value.why.endswith("last words")


@contextlib.contextmanager
def memory_bound(more: int) -> Iterator[None]:
    """Let this process take no more memory than it has, and a little."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@needs_sandbox
def test_a_process_that_dies_is_one_error_with_its_last_words(attempt: Attempt) -> None:
    with pytest.raises(ModelError, match="trying: its process ended with signal 11") as raised:
        attempt(tasks.crash)
    assert "last words" in raised.value.why
    with pytest.raises(ModelError, match="ended with exit code 3"):
        attempt(tasks.say_nothing)


@needs_sandbox
def test_a_crash_is_an_error_that_names_the_step_and_shows_no_stack(attempt: Attempt) -> None:
    with pytest.raises(ModelError) as raised:
        attempt(tasks.crash_in_tvm)
    assert raised.value.what == "trying: its process ended with signal 11 (Segmentation fault)"
    assert raised.value.why == "it was checking the import on this machine\nlast words"


@needs_sandbox
def test_a_task_that_hangs_ends_at_its_deadline_with_its_process(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with WorkerPool(tmp_path / "pool") as pool:
        pool.assign("a", tasks.hang_in_sandbox, folder, deadline_s=LIMIT_S, task="hanging")
        process = int(
            wait_until(
                lambda: (folder / "process").exists() and (folder / "process").read_text(),
                "the task",
            )
        )
        pool._workers["a"].deadline = Deadline(0)
        messages: list[Any] = []
        wait_until(lambda: messages.extend(pool.messages(0.1)) or messages, "the deadline")
    assert [(message.kind, type(message.value)) for message in messages] == [
        (MessageKind.FAILED, DeadlineError)
    ]
    wait_until(lambda: not Path(f"/proc/{process}").exists(), "the end of the sandboxed process")


@needs_sandbox
def test_a_callable_does_not_pass_out(attempt: Attempt) -> None:
    with pytest.raises(ModelError, match="no answer") as raised:
        attempt(tasks.send_program)
    assert "posix.system" in raised.value.why


class _Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch hostile",))


def named(module: str, name: str) -> bytes:
    """The beginning of a pickle that names something, as `dumps` writes it."""
    texts = (text.encode() for text in (module, name))
    return b"\x80\x04" + b"".join(b"\x8c" + bytes([len(one)]) + one for one in texts) + b"\x93"


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(_Hostile()),
        pickle.dumps(Path.cwd),
        pickle.dumps(np.dtype("float32")),
        b"cfarm.types.fleet_config\nPath\n.",
        b"cfarm.processes.subprocesses\nrun\n(S'id'\ntR.",
        named("farm.types.fleet_config", "Path") + b".",
        named("farm.processes.subprocesses", "run") + b"\x8c\x02id\x85R.",
        restricted_pickle.dumps(restricted_pickle.rebuild_array),
    ],
)  # fmt: skip
def test_hostile_bytes_call_nothing(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content == restricted_pickle.dumps(restricted_pickle.rebuild_array):
        with pytest.raises(pickle.UnpicklingError, match="an array of O"):
            restricted_pickle.rebuild_array("O", (1,), bytes(8))
        return
    with pytest.raises(pickle.UnpicklingError, match="pass out of a sandbox"):
        restricted_pickle.loads(content)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"cfarm.errors\nFarmError\n(dS'exit_code'\nI0\nsb.",
        b"cfarm.errors\nFarmError\n(N(dS'exit_code'\nI0\nstb.",
        named("farm.errors", "FarmError") + b"N}\x8c\x09exit_codeK\x00s\x86b.",
        b"cfarm.sandbox.restricted_pickle\nrebuild_array\n(N(dS'__defaults__'\n(S'f4'\ntstb.",
        pickle.dumps(Path, protocol=2)[:-1] + b"}(X\x01\x00\x00\x00xK\x01ub.",
        b"cfarm.types.fleet_config\nPreprocessSettings\n)R(N(dS'mean'\nI1\nstb.",
    ],
)  # fmt: skip
def test_hostile_bytes_set_no_attributes(content: bytes) -> None:
    from farm.errors import FarmError

    before = vars(FarmError).copy(), restricted_pickle.rebuild_array.__defaults__
    with pytest.raises(pickle.UnpicklingError, match="does not pass out of a sandbox"):
        restricted_pickle.loads(content)
    assert (vars(FarmError), restricted_pickle.rebuild_array.__defaults__) == before


def test_members_of_enumerations_pass_on_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.0 to 3.11.3, as Debian 12 has it, pickles a member as a call of getattr."""

    def of_old(member: enum.Enum, protocol: int) -> tuple[object, ...]:
        return getattr, (member.__class__, member.name)

    monkeypatch.setattr(enum.Enum, "__reduce_ex__", of_old)
    for member in (Verdict.STABLE, Stage.COMPILING):
        assert b"getattr" in pickle.dumps(member)
        assert restricted_pickle.loads(restricted_pickle.dumps((member, {"a": member}))) == (
            member,
            {"a": member},
        )
    with pytest.raises(pickle.UnpicklingError, match=r"builtins.getattr does not pass"):
        restricted_pickle.loads(pickle.dumps(Verdict.STABLE))


def test_values_pass_as_they_are() -> None:
    values = [
        Progress(Stage.IMPORTING, "x", 0.5),
        ModelError("a", "b", "c"),
        Path("/x"),
        {"a": (1, 2.5, None, frozenset({"y"}))},
        b"z",
    ]
    assert [str(value) for value in restricted_pickle.loads(restricted_pickle.dumps(values))] == [
        str(value) for value in values
    ]
    arrays = [np.float32(1.5), np.ones((2, 3), "float16"), np.array([True]), np.array(1 + 2j)]
    for given, array in zip(
        restricted_pickle.loads(restricted_pickle.dumps(arrays)), arrays, strict=True
    ):
        np.testing.assert_array_equal(given, array)


def test_an_error_passes_where_others_have_changed_how_exceptions_are_pickled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dask does so, for all exceptions that are loaded."""
    monkeypatch.setitem(
        copyreg.dispatch_table, ModelError, lambda error: (eval, (repr(str(error)),))
    )
    given = restricted_pickle.loads(restricted_pickle.dumps(ModelError("a", "b", "c")))
    assert given.parts() == ("a", "b", "c")


def test_each_version_of_landlock_is_asked_for_what_it_knows() -> None:
    access = landlock.Access
    assert landlock.restrictable_rights(1) == access.MAKE_SYM * 2 - 1
    assert landlock.restrictable_rights(2) & ~landlock.restrictable_rights(1) == access.REFER
    assert landlock.restrictable_rights(4) & ~landlock.restrictable_rights(2) == access.TRUNCATE
    assert landlock.restrictable_rights(7) & ~landlock.restrictable_rights(4) == access.IOCTL_DEV
    assert not landlock.WRITE & (
        access.MAKE_SYM | access.MAKE_SOCK | access.MAKE_FIFO | access.EXECUTE | access.REFER
    )


@pytest.mark.parametrize(
    ("machine", "folder"), [("x86_64", "x86-linux-any"), ("aarch64", "aarch64-linux-any")]
)
def test_the_table_of_system_calls_is_that_of_the_headers(machine: str, folder: str) -> None:
    import ziglang

    header = (
        Path(ziglang.__file__).parent / "lib" / "libc" / "include" / folder / "asm" / "unistd_64.h"
    )
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    numbers = {name: int(number) for name, number in found}
    architecture = seccomp.ARCHITECTURES[machine]
    assert numbers["seccomp"] == architecture.seccomp
    assert {name: architecture.number(name) for name in denied_system_calls.NUMBERS} == {
        name: numbers.get(name) for name in denied_system_calls.NUMBERS
    }


ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_ME = 4711


def decided(
    machine: str, number: int, *arguments: int, audit: int | None = None, process: int | None = _ME
) -> int:
    """What a filter returns for a system call, by an interpreter of its few instructions."""
    architecture = seccomp.ARCHITECTURES[machine]
    words = {0: number, 4: architecture.audit if audit is None else audit}
    for place, argument in enumerate((*arguments, 0, 0, 0)):
        words[16 + 8 * place] = argument & 0xFFFFFFFF
    code, place, value = seccomp.assemble_filter(architecture, process), 0, 0
    while True:
        operation, if_true, if_false, constant = code[place]
        place += 1
        if operation == 0x20:
            value = words[constant]
        elif operation == 0x54:
            value &= constant
        elif operation == 0x06:
            return constant
        else:
            true = {0x15: value == constant, 0x25: value > constant, 0x45: bool(value & constant)}[
                operation
            ]
            place += if_true if true else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_decides_by_call_and_argument(machine: str) -> None:
    def call(name: str, *arguments: int) -> int:
        number = seccomp.ARCHITECTURES[machine].number(name)
        assert number is not None
        return decided(machine, number, *arguments)

    for name in (
        "socket",
        "connect",
        "execve",
        "execveat",
        "ptrace",
        "process_vm_writev",
        "bpf",
        "mount",
        "unshare",
        "keyctl",
    ):
        assert call(name) == EPERM, name
    for name in (
        "userfaultfd",
        "open_by_handle_at",
        "io_uring_setup",
        "setsid",
        "fchmodat",
        "truncate",
        "shmget",
        "pidfd_send_signal",
    ):
        assert call(name) == EPERM, name
    assert (call("clone3"), call("openat2")) == (ENOSYS, ENOSYS)
    assert (call("clone", 0x00010F00), call("clone", 17)) == (ALLOW, EPERM)
    assert (
        call("kill", _ME, 6),
        call("kill", 1, 9),
        call("kill", -1 & 0xFFFFFFFFFFFFFFFF, 9),
        call("kill", 0, 9),
    ) == (ALLOW, *[EPERM] * 3)
    assert (call("tgkill", _ME), call("tgkill", 1)) == (ALLOW, EPERM)
    assert (call("prlimit64", 0), call("prlimit64", _ME), call("prlimit64", 1)) == (
        ALLOW,
        ALLOW,
        EPERM,
    )
    assert (call("prctl", 15), call("prctl", 1)) == (
        ALLOW,
        EPERM,
    )  # a name; the signal at the parent's death
    # F_SETFD; F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
    assert [call("fcntl", 3, one) for one in (2, 8, 10, 15, 1024, 1026)] == [ALLOW, *[EPERM] * 5]
    # TCGETS; TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP
    controls = (0x5401, 0x5412, 0x541C, 0x8901, 0x8902)
    assert [call("ioctl", 0, one) for one in controls] == [ALLOW, *[EPERM] * 4]
    assert [call("sched_setaffinity", one) for one in (0, _ME, 1)] == [ALLOW, ALLOW, 0x00050000]
    assert [call("mmap", 0, 0, 0, one) for one in (0x01, 0x22, 0x21)] == [ALLOW, ALLOW, EPERM]
    for mode, decision in ((0o755, ALLOW), (0o2755, EPERM), (0o4755, EPERM)):
        assert call("mkdirat", 3, 0, mode) == call("openat", 3, 0, 0o101, mode) == decision
        if machine == "x86_64":
            assert call("mkdir", 0, mode) == call("creat", 0, mode) == decision
            assert call("open", 0, 0o101, mode) == decision
    assert (
        call("openat", 0, 0, 0o1101),
        call("openat", 0, 0, 0o1000),
        call("openat", 0, 0, 0o1003),
    ) == (ALLOW, EPERM, EPERM)
    assert decided(machine, 0) == ALLOW
    assert decided(machine, denied_system_calls.LAST + 1) == ENOSYS
    assert decided(machine, 0x40000000) == ENOSYS  # of the x32 ABI
    assert decided(machine, 0, audit=0x40000003) == KILL  # 32-bit x86


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_of_a_program_lets_it_start_and_signal_nobody(machine: str) -> None:
    architecture = seccomp.ARCHITECTURES[machine]

    def call(name: str, *arguments: int) -> int:
        number = architecture.number(name)
        assert number is not None
        return decided(machine, number, *arguments, process=None)

    assert call("execve") == ALLOW
    for name in ("socket", "connect", "execveat", "setsid", "ptrace", "unshare", "fchmodat"):
        assert call(name) == EPERM, name
    assert (call("clone", 0x00010F00), call("clone", 17)) == (ALLOW, EPERM)
    assert {call("kill", one, 9) for one in (0, 1, _ME, os.getpid(), -1 & 0xFFFFFFFFFFFFFFFF)} == {
        EPERM
    }
