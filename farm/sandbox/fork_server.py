"""Run tasks in sandboxed processes, each forked from a process that has only imported modules.

    worker ── control ──> fork server ── fork ──> task, restricted for good
      ^                                             ^
      └── notes, requests, answers, the result ─────┘

Importing TVM and torch takes seconds; forking a process that has imported them takes milliseconds.
The server itself computes nothing: a fork of a process that has computed would lack the threads of
TVM's and torch's pools and wait for them for ever. All three processes are in the process group of
the worker and end with it.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from farm.errors import FarmError, InternalError, ModelError
from farm.processes import subprocesses as process
from farm.processes.garbage import collect_garbage_less_often
from farm.processes.worker_main import Helper, TaskContext, disk_full_error
from farm.sandbox import capabilities, environment, landlock, restricted_pickle, seccomp
from farm.sandbox.policy import WRITABLE_DEVICES, Policy, python_and_package_folders, system_files
from farm.sandbox.raw_system_calls import prctl
from farm.tvm_import_without_torch import hide_torch_from_now_on
from farm.types import Progress

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_MOST_BYTES = 1 << 30  # limit for a result
_MOST_NOTE_BYTES = 16 << 20  # for a progress message, which may have predictions
_MOST_NOTE_TEXT = 2000
_LOG = "output.log"
_MOST_OUTPUT_BYTES = 1 << 20  # of the log that are read
_LEAST_ROOM_BYTES = 64 << 10  # on a disk that is not full
_KILL_FIRST = "1000"  # written to oom_score_adj: kill this process first if memory runs out
_START = (
    "import sys; sys.path[:] = {path!r}; from farm.sandbox import fork_server; fork_server.main()"
)
_OUT_OF_MEMORY = (
    "MemoryError",
    "bad_alloc",
    "not enough memory",
    "Cannot allocate memory",
    "Failed to allocate",
)
_AGAIN = "export the model again, or take another file of it"
_DISTRUST = "do not use this file: it has taken over the process that read it"
_REFUSALS = ("Permission denied", "Operation not permitted", "PermissionError")

_RULE = (
    "a model is imported in a sandbox, where it reads its own files, and reads, writes and starts "
    "nothing else"
)

Task = Callable[..., Any]


class TaskMessageKind(StrEnum):
    """The kinds of messages that a task sends.

    These are notes (progress), requests to its helper, and at last its result or its error.
    """

    NOTE = "note"
    REQUEST = "request"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Request:
    """A task for a sandboxed process.

    `task(context, *arguments)` is a module-level function; `scratch` is the scratch folder of its
    context. `modules` are imported before the process is forked, and stay imported for later tasks.
    `what` describes the task in error messages.
    """

    what: str
    modules: tuple[str, ...]
    policy: Policy
    scratch: Path
    task: Task
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """The server's message that the process of a task, with this id, has started."""

    process: int


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """The server's message that the process of a task has ended; `status` is that of waitpid."""

    status: int


class ForkServerClient:
    """The worker's connection to a fork server.

    A worker has one server, started with its first task.
    """

    def __init__(self, control: Connection) -> None:
        self._control = control

    @classmethod
    def start(cls, modules: Sequence[str], scratch: Path) -> ForkServerClient:
        """Start a server that has imported `modules`.

        The server is forked from this process if this process has computed nothing yet, which is
        assumed if it has not imported TVM. This process then imports the modules, too, for its own
        later use. Otherwise the server is a new Python.
        """
        ours, theirs = Pipe()
        with theirs:
            if "tvm" in sys.modules:
                _start_python(theirs, scratch)
            else:
                _import(modules)
                _start_fork(theirs)
        return cls(ours)

    def run(
        self,
        request: Request,
        note: Callable[[Any], None],
        types: Sequence[type] = (),
        helper: Helper | None = None,
    ) -> Any:
        """Run a task and return its result, which may contain values of `types`.

        `helper` answers the task's requests. Raises the FarmError of the task, and ModelError if
        its process ends without a result.
        """
        ours, theirs = Pipe()
        with ours:
            with theirs:
                self._control.send(request)
                _send_descriptor(self._control, theirs.fileno())
            started: TaskStarted = self._control.recv()
            doing = ""

            def noting(value: Any) -> None:
                nonlocal doing
                if isinstance(value, Progress):  # its text is shown again and again
                    value = replace(value, note=value.note[:_MOST_NOTE_TEXT])
                    doing = value.note
                note(value)

            try:
                result = _listen(ours, noting, types, helper)
            except BaseException:
                self._end(started, 0.0)  # or the next task would be told of the end of this one
                raise
            ours.close()  # so that a task that waits for an answer ends
            ended = self._end(started, process.GRACE_S)
        output = _read(request.scratch / _LOG)
        if result is None:
            if _is_full(request.scratch):  # LLVM ends the process that cannot write
                full = disk_full_error(
                    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(request.scratch))
                )
                assert full
                raise full
            cause = process.last_activity_and_output(doing, output)
            raise _died(request.what, ended.status, cause, request.policy)
        said = process.last_lines(output)
        word, value = result
        if word is TaskMessageKind.DONE:
            return value
        assert isinstance(value, FarmError)
        raise _explained(value, said, request.policy)

    def _end(self, started: TaskStarted, grace_s: float) -> TaskEnded:
        """Return how the process of a task has ended; kill it if it has not in time."""
        if not self._control.poll(grace_s):
            os.kill(started.process, signal.SIGKILL)
        ended: TaskEnded = self._control.recv()
        return ended


def _listen(
    connection: Connection,
    note: Callable[[Any], None],
    types: Sequence[type],
    helper: Helper | None,
) -> tuple[TaskMessageKind, Any] | None:
    """Return the result or the error that a task sends.

    Calls `note` with its progress messages, and answers its requests by `helper`. Returns None if
    the task ends without a result, or sends a message of an invalid form.
    """
    while True:
        try:
            content = connection.recv_bytes(_MOST_BYTES)
            word, value = restricted_pickle.loads(content, (TaskMessageKind, *types))
        except (EOFError, OSError):
            return None
        except Exception as error:  # reading hostile bytes may raise any exception
            what = "a model's process sent what is no answer"
            return TaskMessageKind.FAILED, ModelError(
                what, f"{type(error).__name__}: {error}"[:600], _DISTRUST
            )
        if word is TaskMessageKind.NOTE and len(content) <= _MOST_NOTE_BYTES:
            note(value)
        elif word is TaskMessageKind.REQUEST and helper:
            try:
                answer: Any = helper(value)
            except FarmError as error:
                answer = error
            with contextlib.suppress(OSError):  # the task has ended, which the next message tells
                connection.send(answer)
        elif word is TaskMessageKind.DONE or (
            word is TaskMessageKind.FAILED and isinstance(value, FarmError)
        ):
            return word, value
        else:
            return None


def _died(what: str, status: int, cause: str, policy: Policy) -> FarmError:
    how = process.describe_exit_status(os.waitstatus_to_exitcode(status))
    error = ModelError(f"{what}: its process ended with {how}", cause, _AGAIN)
    return _explained(error, cause, policy)


def _explained(error: FarmError, said: str, policy: Policy) -> FarmError:
    """Return the error, with the rule of the sandbox that caused it, if its text shows one."""
    text = f"{error.what} {error.why} {said if not error.why else ''}"
    if any(sign in text for sign in _OUT_OF_MEMORY):
        allowed = (
            f"a model's process may allocate {policy.memory_bytes / 1e9:.1f} GB on this machine"
        )
        why = f"{error.why}; {allowed}" if error.why else allowed
        return ModelError(
            error.what,
            why,
            "use a machine with more memory, or a smaller model; --trust lifts the bound",
        )
    if any(sign in text for sign in _REFUSALS):
        why = f"{error.why}; {_RULE}" if error.why else _RULE
        return type(error)(
            error.what,
            why,
            "where you trust whoever made the model as you trust a program: --trust",
        )
    return error


def _read(path: Path) -> str:
    """Return the end of what a task has printed, which may be all of its disk space."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_OUTPUT_BYTES))
            return file.read(_MOST_OUTPUT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)


def _start_python(control: Connection, scratch: Path) -> None:
    path = [entry for entry in sys.path if entry]
    command = [sys.executable, "-c", _START.format(path=path), str(control.fileno())]
    process.start_program(command, log=scratch / "fork-server.log", pass_fds=[control.fileno()])


def _start_fork(control: Connection) -> None:
    parent = os.getpid()
    gc.freeze()
    if _fork() == 0:
        _close_all_but(control.fileno())
        _end_with(parent)
        _serve(control)
        os._exit(0)


def main() -> None:
    """Run a server in a new Python; its argument is the descriptor of its connection."""
    collect_garbage_less_often()
    hide_torch_from_now_on()
    _serve(Connection(int(sys.argv[1])))


def _serve(control: Connection) -> None:
    """Fork a process for each request, one after the other, until the worker has ended."""
    environment.reduce_environment()
    while True:
        try:
            request: Request = control.recv()
        except EOFError:
            return
        descriptor = _receive_descriptor(control)
        _import(request.modules)
        python_and_package_folders()
        server = os.getpid()
        if not (child := _fork()):
            _close_all_but(descriptor)
            _end_with(server)
            status = 1
            try:
                _do(request, Connection(descriptor))
                status = 0
            finally:  # never on into the code of the worker
                os._exit(status)
        os.close(descriptor)
        control.send(TaskStarted(child))
        control.send(TaskEnded(os.waitpid(child, 0)[1]))


def _do(request: Request, connection: Connection) -> None:
    """Restrict this process, run the task, and send its result or its error."""

    def send(word: TaskMessageKind, value: object) -> None:
        connection.send_bytes(restricted_pickle.dumps((word, value)))

    try:
        _redirect(request.scratch)
        _restrict(request.policy)
        context = _SandboxedTaskContext(request.scratch, send, connection.recv)
        send(TaskMessageKind.DONE, request.task(context, *request.arguments))
    except FarmError as error:
        send(TaskMessageKind.FAILED, error)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the log is on the disk that may be full
            traceback.print_exc()
        refused = isinstance(error, (PermissionError, MemoryError))
        what = f"{request.what}: {type(error).__name__}: {error}"[:600]
        unexpected = ModelError(what) if refused else InternalError(what, traceback.format_exc())
        send(TaskMessageKind.FAILED, disk_full_error(error) or unexpected)


class _SandboxedTaskContext(TaskContext):
    """The context of a task in the sandbox: scratch folder, progress messages, and its helper.

    It can neither prompt the user nor pause the other workers.
    """

    def __init__(
        self,
        scratch: Path,
        send: Callable[[TaskMessageKind, object], None],
        receive: Callable[[], Any],
    ) -> None:
        super().__init__(scratch)
        self._send, self._receive = send, receive

    def note(self, value: object) -> None:
        """Send a progress message to the worker."""
        self._send(TaskMessageKind.NOTE, value)

    def ask_helper(self, request: object) -> Any:
        """Send a request to the worker, and return the answer of the helper there."""
        self._send(TaskMessageKind.REQUEST, request)
        answer = self._receive()
        if isinstance(answer, FarmError):
            raise answer
        return answer


def _is_full(folder: Path) -> bool:
    there = os.statvfs(folder)
    return there.f_bavail * there.f_frsize < _LEAST_ROOM_BYTES


def _redirect(scratch: Path) -> None:
    """Redirect output to a file that the worker reads if the process dies.

    Temporary files go to the same folder.
    """
    log = os.open(scratch / _LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # The parent's streams may write to a descriptor that is closed here
    for name in ("stdout", "stderr"):
        setattr(sys, name, os.fdopen(1, "w", buffering=1, errors="replace", closefd=False))
    # It may write to a descriptor that is closed here or belongs to another file now
    faulthandler.disable()
    os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = None


def _restrict(policy: Policy) -> None:
    """Give up, for good, all rights that a policy does not grant.

    Raises OSError if the kernel does not support it.
    """
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise InternalError(
            "a sandboxed process has threads before it is restricted",
            "Landlock restricts one thread",
        )
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_KILL_FIRST)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, policy.memory_bytes),
        (resource.RLIMIT_FSIZE, policy.file_bytes),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    capabilities.drop_unneeded_capabilities()
    read = (*system_files(), *python_and_package_folders(), *policy.read)
    landlock.restrict_thread(read, (*policy.write, *WRITABLE_DEVICES), landlock.abi_version())
    seccomp.install_filter()


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads in a forking process. The only ones here are OpenBLAS's, which it
        # ends before a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _end_with(parent: int) -> None:
    """Arrange to be killed when the parent ends."""
    prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _close_all_but(descriptor: int) -> None:
    for other in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if other > 2 and other != descriptor:
            # The descriptor that listed the folder is closed already
            with contextlib.suppress(OSError):
                os.close(other)


def _send_descriptor(connection: Connection, descriptor: int) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as control:
        socket.send_fds(control, [b"d"], [descriptor])


def _receive_descriptor(connection: Connection) -> int:
    with socket.socket(fileno=os.dup(connection.fileno())) as control:
        descriptors = socket.recv_fds(control, 1, 1)[1]
    return descriptors[0]
