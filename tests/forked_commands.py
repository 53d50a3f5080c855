"""Run commands of farm as processes that start in a few milliseconds.

Most of the time of a short command goes into imports. A server, one for this process, has imported
what commands import, and nothing else: each command is a fork of it, with its own session, folder,
environment and files, and runs and ends as `python -m farm` does. Only /proc tells them apart: it
shows the server's command line and environment.

Tests that watch a command from outside, send it signals or give it a terminal start the program
itself.
"""

from __future__ import annotations

import atexit
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
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

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
_LENGTH_BYTES = 8
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
    command = Started(words, folder, environment, stdout, stderr)
    try:
        return command.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(command.pid, signal.SIGKILL)
        command.wait()
        raise


class Started:
    """A command that runs, with what `subprocess.Popen` has for it."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> None:
        server, turn = _server()
        self._socket, theirs = socket.socketpair()
        request = json.dumps([list(words), str(folder), dict(environment)]).encode()
        with theirs, turn:
            descriptors = [stdout.fileno(), stderr.fileno(), theirs.fileno()]
            socket.send_fds(server, [len(request).to_bytes(_LENGTH_BYTES)], descriptors)
            server.sendall(request)
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
        content = self._socket.recv(_LENGTH_BYTES)
        assert content, "the server of commands has ended"
        return int.from_bytes(content)


@functools.cache
def _server() -> tuple[socket.socket, threading.Lock]:
    """The server's socket, and the lock of those that write to it. It ends with this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    atexit.register(child.wait)
    atexit.register(ours.close)  # before that: the last is called first
    return ours, threading.Lock()


def _import_rooms() -> None:
    importlib.import_module("farm.__main__")  # the first to register what is called at the end
    for room in _ROOMS:
        package = importlib.import_module(f"farm.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    foreign = {"tvm", "torch", "onnx", "onnxruntime"} & sys.modules.keys()
    assert not foreign, f"a command would import {foreign} as it starts"


def _serve(requests: socket.socket) -> list[str] | None:
    """Fork for each request. Gives the words of the command in the fork, None at the end."""
    running: dict[int, tuple[int, int]] = {}  # by pidfd: process and where its status goes
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor in running:
                child, answer = running.pop(descriptor)
                _, status = os.waitpid(child, 0)
                with suppress(BrokenPipeError):
                    os.write(answer, status.to_bytes(_LENGTH_BYTES))
                waiting.unregister(descriptor)
                os.close(answer)
                os.close(descriptor)
                continue
            length, descriptors, _, _ = socket.recv_fds(requests, _LENGTH_BYTES, 3)
            if not length:
                return None
            with requests.makefile("rb", buffering=0) as content:
                request = b""
                while len(request) < int.from_bytes(length):
                    request += content.read(int.from_bytes(length) - len(request)) or b""
            out, err, answer = descriptors
            child = os.fork()
            if child == 0:
                os.dup2(out, 1)
                os.dup2(err, 2)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                words, folder, environment = json.loads(request)
                os.setsid()
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                sys.path[0] = folder  # as with `python -m`
                return words
            os.close(out)
            os.close(err)
            os.write(answer, child.to_bytes(_LENGTH_BYTES))
            pidfd = os.pidfd_open(child)
            running[pidfd] = child, answer
            waiting.register(pidfd, select.POLLIN)


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    _import_rooms()
    gc.freeze()  # a fork copies the pages that a collection writes to
    words = _serve(requests)
    if words is None:
        return
    requests.detach()
    from farm import __main__ as farm

    sys.argv = [farm.__file__, *words]
    farm.main()


if __name__ == "__main__":
    main()
