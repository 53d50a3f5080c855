"""Run commands of farm as processes that start in a few milliseconds.

Most of the time of a short command goes into imports. A server, one for this process, has imported
what commands import, and nothing else: each command is a fork of it, with its own session, folder,
environment and files, and runs and ends as `python -m farm` does. Only /proc tells them apart: it
shows the server's command line and environment, in which only the mark of the tests' processes is
the command's own. The workers of such a command are forks, too (`forked_workers`).

Tests that watch a command from outside, send it signals or give it a terminal start the program
itself.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import forked_workers
from timeouts import LIMIT_S

_ROOMS = (
    "commands",
    "config",
    "dashboard",
    "data",
    "inputs",
    "lab",
    "lab_client",
    "lab_page",
    "pipeline",
    "rpc",
    "sandbox",
    "store",
    "tracker",
    "transports",
    "views",
)
_READ_AT_START = ("LANG", "LC_", "LD_", "PYTHON", "TZ")  # what a fork would take from the server
_NUMBER_BYTES = 8
_MOST_BYTES = 1 << 17  # of a request
_MARK, NO_MARK = "FARM_TEST", "0" * 32  # as long as a mark
_NETWORK = Path("/proc/thread-self/ns/net")
_NETWORK_OF_SERVER = _NETWORK.readlink()


def can_run(environment: Mapping[str, str]) -> bool:
    """Whether a fork runs as a program would that this thread starts with these variables."""
    ours, theirs = (
        {key: value for key, value in variables.items() if key.startswith(_READ_AT_START)}
        for variables in (os.environ, environment)
    )
    return ours == theirs and _NETWORK.readlink() == _NETWORK_OF_SERVER


def run(
    words: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as `subprocess.run` would with its output captured."""
    given = list(map(str, words))
    variables, place = environment or os.environ, folder or Path.cwd()
    if not can_run(variables):
        command = [sys.executable, "-m", "farm", *given]
        return subprocess.run(
            command, cwd=place, env=dict(variables), capture_output=True, text=True, timeout=LIMIT_S
        )
    with TemporaryFile() as out, TemporaryFile() as err:
        code = run_command(given, place, variables, out, err)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(given, code, out.read().decode(), err.read().decode())


def run_command(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> int:
    """Run a command to its end; its exit code, negative for a signal."""
    command = start_command(words, folder, environment, stdout, stderr)
    try:
        return command.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(command.pid, signal.SIGKILL)
        command.wait()
        raise


def start_command(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> Started:
    """Start a command."""
    request = [list(words), str(folder), dict(environment)]
    return Started(_server(), request, [stdout.fileno(), stderr.fileno()])


class Started:
    """A forked process that runs, with what `subprocess.Popen` has for it."""

    def __init__(self, server: socket.socket, request: Any, descriptors: Sequence[int]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            content = json.dumps(request).encode()
            assert len(content) <= _MOST_BYTES
            socket.send_fds(server, [content], [theirs.fileno(), *descriptors])
        self.returncode: int | None = None
        self.pid = self._answer(LIMIT_S)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(self._answer(timeout))
            self._socket.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _answer(self, timeout: float | None) -> int:
        """The next number that the server sends: the process, then its status."""
        if not select.select([self._socket], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("farm", timeout or 0)
        content = self._socket.recv(_NUMBER_BYTES)
        assert content, "the server has ended"
        return int.from_bytes(content)


@functools.cache
def _server() -> socket.socket:
    """The server's socket. A request is one message. It ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        child = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, _MARK: NO_MARK},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    atexit.register(child.wait)
    atexit.register(ours.close)  # before that: the last is called first
    return ours


def _import_rooms() -> None:
    importlib.import_module("farm.__main__")  # the first to register what is called at the end
    for room in _ROOMS:
        package = importlib.import_module(f"farm.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    foreign = {"tvm", "torch", "onnx", "onnxruntime"} & sys.modules.keys()
    assert not foreign, f"a command would import {foreign} as it starts"


def _serve(requests: socket.socket, prepare: Callable[[], None]) -> tuple[Any, list[int]] | None:
    """Fork for each request. Gives it, with its descriptors, in the fork, and None at the end.

    `prepare` is called before the first fork.
    """
    running: dict[int, tuple[int, int]] = {}  # by pidfd: process and where its status goes
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    prepared = False
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor in running:
                child, answer = running.pop(descriptor)
                _, status = os.waitpid(child, 0)
                with suppress(BrokenPipeError):
                    os.write(answer, status.to_bytes(_NUMBER_BYTES))
                waiting.unregister(descriptor)
                os.close(answer)
                os.close(descriptor)
                continue
            request, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
            if not request:
                return None
            if not prepared:
                prepare()
                prepared = True
            child = os.fork()
            if child == 0:
                return json.loads(request), descriptors[1:]
            for other in descriptors[1:]:
                os.close(other)
            with suppress(BrokenPipeError):
                os.write(descriptors[0], child.to_bytes(_NUMBER_BYTES))
            pidfd = os.pidfd_open(child)
            running[pidfd] = child, descriptors[0]
            waiting.register(pidfd, select.POLLIN)


def _become(
    files: Mapping[int, int], folder: str, environment: Mapping[str, str], kept: tuple[int, ...]
) -> None:
    """Make a fork a process of its own, with these files by number, and those that are kept."""
    _take_files(files, kept)
    os.setsid()
    _take_place(folder, environment)
    if len(mark := environment.get(_MARK, "").encode()) == len(NO_MARK):
        begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
        block = ctypes.string_at(begin, end - begin)  # what /proc shows as the environment
        place = begin + block.index(f"{_MARK}={NO_MARK}".encode()) + len(f"{_MARK}=")
        ctypes.memmove(place, mark, len(mark))


def _take_files(files: Mapping[int, int], kept: tuple[int, ...]) -> None:
    above = {
        number: fcntl.fcntl(file, fcntl.F_DUPFD, max(files) + 1) for number, file in files.items()
    }
    for number, file in above.items():
        os.dup2(file, number)
    for other in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if other > 0 and other not in (*files, *kept):
            with suppress(OSError):  # that of the folder itself is closed
                os.close(other)


def _take_place(folder: str, environment: Mapping[str, str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


def start_workers_as_forks(server: socket.socket) -> None:
    """Have this process start its workers as forks of their server."""
    from farm.processes import subprocesses

    start_program = subprocesses.start_program

    def start(command: Sequence[str | Path], **options: Any) -> Any:
        given = {**os.environ, **(options.get("env") or {})}
        if not forked_workers.is_start_of_worker(command) or not forked_workers.can_fork(given):
            return start_program(command, **options)
        (connection,) = options["pass_fds"]
        request = [list(map(str, command)), str(Path.cwd()), given, connection]
        with options["log"].open("ab") as log:
            return Started(server, request, [log.fileno(), connection])

    subprocesses.start_program = start


def _serve_workers(requests: socket.socket) -> None:
    if served := _serve(requests, forked_workers.import_for_workers):
        (command, folder, environment, connection), (log, given) = served
        _become({1: log, 2: log, connection: given}, folder, environment, ())
        _keep_fork_for_sandboxes()
        _run_python(command)


def _run_python(command: Sequence[str]) -> None:
    """Do what Python does by a command with `-c`."""
    sys.argv = [command[1], *command[3:]]
    exec(command[2], {"__name__": "__main__"})


def _keep_fork_for_sandboxes() -> None:
    """Keep a fork of this worker, in its group, for the first fork server that it starts as a
    program. The fork ends with this worker.
    """
    from farm.processes import subprocesses

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        code = 1
        try:
            _become_fork_server(theirs)
            code = 0
        except Exception:
            traceback.print_exc()
        finally:  # never on into the code of the worker
            os._exit(code)
    theirs.close()
    start_program = subprocesses.start_program

    def start(command: Sequence[str | Path], **options: Any) -> Any:
        is_server = forked_workers.is_start_of_fork_server(command)
        is_used = ours.fileno() < 0
        if not is_server or is_used or not forked_workers.can_fork(os.environ):
            return start_program(command, **options)
        (connection,) = options["pass_fds"]
        request = [list(map(str, command)), str(Path.cwd()), dict(os.environ), connection]
        with ours, options["log"].open("ab") as log:
            socket.send_fds(ours, [json.dumps(request).encode()], [log.fileno(), connection])
        return None  # as nobody asks for the process

    subprocesses.start_program = start


def _become_fork_server(requests: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as its worker, from which a program has it
    _take_files({}, (1, 2, requests.fileno()))
    request, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
    if request:
        command, folder, environment, connection = json.loads(request)
        log, given = descriptors
        _take_files({1: log, 2: log, connection: given}, ())
        _take_place(folder, environment)
        _run_python(command)


def fork_worker_server(*closed: socket.socket) -> socket.socket:
    """Fork the server of workers, without these sockets; its socket. It ends with its last user."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        for other in (ours, *closed):
            other.close()
        _serve_workers(theirs)
        sys.exit()
    theirs.close()
    return ours


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    workers = fork_worker_server(requests)
    _import_rooms()
    if served := _serve(requests, gc.freeze):  # a fork copies the pages that a collection writes to
        (words, folder, environment), (out, err) = served
        requests.detach()
        _become({1: out, 2: err}, folder, environment, (workers.fileno(),))
        start_workers_as_forks(workers)
        from farm import __main__ as farm

        sys.path[0] = folder  # as with `python -m`
        sys.argv = [farm.__file__, *words]
        farm.main()


if __name__ == "__main__":
    main()
