"""Run a program on this machine: to its end, or for as long as a block lasts. The only user of subprocess.

A program leads a process group of its own or joins that of the `Crew` worker that starts it: either way it can be ended with its children.
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
from pathlib import Path

from farm.deadline import Deadline
from farm.errors import BuildError, DeadlineError

GRACE_S = 2.0
# Lines "+group" and "-group"; the end of the input is the end of the process that wrote it.
_HEIR = """
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


def run(command: Sequence[str | Path], *, deadline: Deadline, what: str, fix: str = "", env: Mapping[str, str] | None = None) -> str:
    """Run a program to its end and return what it printed on both streams.

    Raises BuildError when it is missing or fails (with the last of what it printed), DeadlineError when it takes too long.
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
            text=True,
            errors="replace",
        )
    except FileNotFoundError as exc:
        raise BuildError(f"{what}: {words[0]} is not installed", str(exc), fix or f"install {words[0]} or name another tool") from exc
    except subprocess.TimeoutExpired as exc:
        raise DeadlineError(f"{what}: no end after {deadline.seconds:.0f} s", " ".join(words)[:500], fix) from exc
    if done.returncode:
        raise BuildError(f"{what} failed with exit code {done.returncode}", last_lines(done.stdout) or " ".join(words)[:500], fix)
    return done.stdout


def last_lines(text: str, count: int = 8, width: int = 400) -> str:
    """The end of a program's output, as much as helps."""
    return "\n".join(line[:width] for line in text.strip().splitlines()[-count:])


def start(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    own_group: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to the end of a file. `own_group` makes it the leader of a session of its own."""
    with log.open("ab") as output:
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
def running(
    command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs for as long as the block does."""
    child = start(command, log=log, env=env, pass_fds=pass_fds)
    try:
        yield child
    finally:
        end(child)


@contextlib.contextmanager
def peer(command: Sequence[str | Path]) -> Iterator[socket.socket]:
    """A program whose standard streams are the other end of a socket, for as long as the block lasts. It complains where we do."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = subprocess.Popen([str(word) for word in command], stdin=theirs.fileno(), stdout=theirs.fileno())
        try:
            yield ours
        finally:
            ours.close()  # which tells it to end
            end(child)


def end(child: subprocess.Popen[bytes], *, group: bool = False, grace_s: float = GRACE_S) -> None:
    """Ask a program to end, then make it; with `group`, everything in its process group."""
    send(child, signal.SIGTERM, group=group)
    send(child, signal.SIGCONT, group=group)  # one that is stopped cannot act on SIGTERM
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(grace_s)
    if group:
        _wait_for_group(child.pid, grace_s)
    send(child, signal.SIGKILL, group=group)
    child.wait()


def _wait_for_group(group: int, seconds: float) -> None:
    deadline = Deadline(seconds)
    while not deadline.expired:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.01)


def send(child: subprocess.Popen[bytes], number: signal.Signals, *, group: bool) -> None:
    """Send a signal to a program that may be gone already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(child.pid, number)
        elif child.poll() is None:
            child.send_signal(number)


class Heir:
    """A process that survives ours for a moment: whichever of the known process groups is left when we end, however we end, it kills.

    The kernel's own means (PR_SET_PDEATHSIG) reaches children, not theirs, and Linux only.
    """

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _HEIR],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def know(self, child: subprocess.Popen[bytes]) -> None:
        """Remember a process that leads a group."""
        self._tell(f"+{child.pid}")

    def forget(self, child: subprocess.Popen[bytes]) -> None:
        """Its group has ended; another may get the number."""
        self._tell(f"-{child.pid}")

    def close(self) -> None:
        """End the heir, and what it still knows."""
        self._child.communicate()

    def _tell(self, line: str) -> None:
        assert self._child.stdin
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            self._child.stdin.write(f"{line}\n")
            self._child.stdin.flush()


def find(*names: str) -> str | None:
    """The first of the programs that is installed."""
    return next((path for name in names if (path := shutil.which(name))), None)


def replace(command: Sequence[str | Path]) -> None:
    """Become another program; does not return."""
    words = [str(word) for word in command]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(words[0], words)
