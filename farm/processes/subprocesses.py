"""Run programs on this machine: to their end, or for the duration of a block.

Only this module uses subprocess. A program leads a process group of its own or joins that of the
`WorkerPool` worker that starts it: in both cases it can be ended together with its children.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from farm.errors import BuildError, DeadlineError, UsageError
from farm.processes.cancellation import register_wait_breaker
from farm.processes.deadline import Deadline
from farm.processes.output_end import OutputEnd

GRACE_S = 2.0
_ENDED = ("Z", "X")  # states of processes that have ended
# The first words of the stacks that TVM and Python print when a process crashes.
_STACKS = ("!!!!!!! Segfault encountered", "Fatal Python error:")
# Input: lines "+group" and "-group". The end of the input means that the writing process has ended.
_REAPER = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


def run_program(
    command: Sequence[str | Path],
    *,
    deadline: Deadline,
    what: str,
    fix: str = "",
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> str:
    """Run a program to its end and return its output on both streams.

    Raises BuildError if it is missing or fails (with its last output), DeadlineError if it takes
    too long.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=deadline.remaining,
            env={**os.environ, **(env or {})},
            pass_fds=tuple(pass_fds),
            text=True,
            errors="replace",
        )
    except FileNotFoundError as exc:
        raise BuildError(
            f"{what}: {words[0]} is not installed",
            str(exc),
            fix or f"install {words[0]} or name another tool",
        ) from exc
    except subprocess.TimeoutExpired as exc:
        raise DeadlineError(
            f"{what}: no end after {deadline.seconds:.0f} s", " ".join(words)[:500], fix
        ) from exc
    if done.returncode:
        raise BuildError(
            f"{what} failed with exit code {done.returncode}",
            last_lines(done.stdout) or " ".join(words)[:500],
            fix,
        )
    return done.stdout


def last_lines(text: str, count: int = 8, width: int = 400) -> str:
    """Return the end of a program's output, limited in lines and width."""
    return "\n".join(line[:width] for line in text.strip().splitlines()[-count:])


def describe_exit_status(status: int | None) -> str:
    """Return an exit status, negative for a signal, as in "signal 11 (Segmentation fault)"."""
    if status is None or status >= 0:
        return f"exit code {status}"
    return f"signal {-status} ({signal.strsignal(-status)})"


def last_activity_and_output(doing: str, output: str) -> str:
    """Return what a process did when it ended, as it last noted, and the last lines it printed.

    The stack that TVM or Python prints in a crash is left out: it shows the interpreter.
    """
    for heading in _STACKS:
        output = output.partition(heading)[0]
    return "\n".join(filter(None, (doing and f"it was {doing}", last_lines(output))))


def start_program(
    command: Sequence[str | Path],
    *,
    log: Path | OutputEnd,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    own_group: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program whose output is appended to a file, or its end kept in memory.

    `own_group` makes it the leader of a new session, and thereby of a new process group.
    """
    with log.collecting() if isinstance(log, OutputEnd) else log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            pass_fds=tuple(pass_fds),
            start_new_session=own_group,
        )


@contextlib.contextmanager
def background_program(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for the duration of the block."""
    child = start_program(command, log=log, env=env, pass_fds=pass_fds)
    try:
        yield child
    finally:
        end_program(child)


@contextlib.contextmanager
def program_over_socketpair(
    command: Sequence[str | Path],
    *,
    stderr: OutputEnd | None,
    both: bool = False,
    grace_s: float = 0.0,
    own_group: bool = False,
) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """Run a program for the duration of the block, with a socket as its standard input and output.

    Yields the other end of the socket, and the process. Another thread that cancels this one ends
    the program (see farm.processes.cancellation).

    The program's stderr goes to `stderr`, if there is one, or to the socket, too, with `both`. At
    the end of the block its input ends; it is given `grace_s` seconds to end by itself. With
    `own_group` it leads a new session, without a terminal, and all that it has started ends too.
    """
    ours, theirs = socket.socketpair()
    with ours, contextlib.ExitStack() as stack:
        with theirs:
            words, stream = [str(word) for word in command], theirs.fileno()
            errors = (
                stack.enter_context(stderr.collecting()) if stderr else stream if both else None
            )
            child = subprocess.Popen(
                words, stdin=stream, stdout=stream, stderr=errors, start_new_session=own_group
            )
        try:
            with register_wait_breaker(
                partial(send_signal, child, signal.SIGTERM, group=own_group)
            ):
                yield ours, child
        finally:
            if grace_s:
                with contextlib.suppress(OSError):
                    ours.shutdown(socket.SHUT_WR)
                wait_for_exit(child, grace_s)
            ours.close()  # its input ends, so it ends
            end_program(child, group=own_group)


def end_program(
    child: subprocess.Popen[bytes], *, group: bool = False, grace_s: float = GRACE_S
) -> None:
    """Ask a program to end, then kill it; with `group`, everything in its process group."""
    send_signal(child, signal.SIGTERM, group=group)
    send_signal(child, signal.SIGCONT, group=group)  # a stopped process cannot handle SIGTERM
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(grace_s)
    if group:
        _wait_for_group(child.pid, grace_s)
    send_signal(child, signal.SIGKILL, group=group)
    child.wait()


def wait_for_exit(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return a program's exit status, negative for a signal; None if it does not end in time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(seconds)
    return None


def _wait_for_group(group: int, seconds: float) -> None:
    """Wait until all processes of a group have ended, at most `seconds`."""
    deadline = Deadline(seconds)
    while not deadline.expired and _is_alive(group):
        time.sleep(0.01)


def _is_alive(group: int) -> bool:
    """Return whether a process of a group has not ended.

    One that has ended and lost its parent stays in the group until init reaps it. In a container,
    that may be seconds, or never.
    """
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    states: list[str] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is gone
            state, _, its_group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group:
                states.append(state)
    return not states or any(state not in _ENDED for state in states)


def send_signal(child: subprocess.Popen[bytes], number: signal.Signals, *, group: bool) -> None:
    """Send a signal to a program, which may have ended already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(child.pid, number)
        elif child.poll() is None:
            child.send_signal(number)


class ProcessGroupWatchdog:
    """Watchdog process that kills all registered process groups when this process ends.

    It does so however this process ends, even by SIGKILL. The kernel's own mechanism
    (PR_SET_PDEATHSIG) reaches children but not their children, and exists only on Linux.
    """

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _REAPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def track(self, child: subprocess.Popen[bytes]) -> None:
        """Register a process that leads a group."""
        self._tell(f"+{child.pid}")

    def untrack(self, child: subprocess.Popen[bytes]) -> None:
        """Unregister a group that has ended, because another may get its number."""
        self._tell(f"-{child.pid}")

    def close(self) -> None:
        """End the watchdog; it kills the groups that are still registered."""
        self._child.communicate()

    def _tell(self, line: str) -> None:
        assert self._child.stdin
        with contextlib.suppress(BrokenPipeError):  # the watchdog was killed
            self._child.stdin.write(f"{line}\n")
            self._child.stdin.flush()


def first_installed_program(*names: str) -> str | None:
    """Return the path of the first program that is installed, or None."""
    return next((path for name in names if (path := shutil.which(name))), None)


def replace_process(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
    """Replace this process with another program; does not return."""
    words = [str(word) for word in command]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(words[0], words, {**os.environ, **(env or {})})


def start_with_inherited_stdio(
    command: Sequence[str], *, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a program that has this one's input and output.

    Raises UsageError if it cannot start.
    """
    try:
        return subprocess.Popen(list(command), env={**os.environ, **env})
    except OSError as exc:
        raise UsageError(
            f"{command[0]} cannot be run", exc.strerror or str(exc), "name a program after --"
        ) from exc


def wait_for_shell_exit_code(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return a program's exit code as shells do, or None if it still runs after some seconds."""
    try:
        status = child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    return status if status >= 0 else 128 - status
