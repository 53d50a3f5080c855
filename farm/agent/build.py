"""Provide the agent's executable for an architecture: prebuilt, cached, or built now.

    ensure("aarch64", cache, note, deadline) -> Path

`cache` holds agents/<digest>/farm-agent, whole or absent, and zig/, the compiler's own cache. In
zig/farm-objects/<digest>.o is the object of TVM's runtime, which changes with TVM only and takes
most of the time to compile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from farm.agent.recipe import (
    AGENTS,
    ARCHITECTURES,
    HERE,
    CompilerCall,
    compile_steps,
    executable_build_inputs_digest,
)
from farm.agent.zig_cache import zig_environment
from farm.errors import BuildError, DeadlineError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline

if TYPE_CHECKING:
    from subprocess import Popen

__all__ = [
    "AGENTS",
    "ARCHITECTURES",
    "compile_agent",
    "ensure_executable",
    "executable_build_inputs_digest",
    "find_existing_executable",
    "place_in_package",
]

Note = Callable[[str, "float | None"], None]

PREBUILT = HERE / "prebuilt"
_NOTE_EVERY_S = 1.0
_POLL_S = 0.05


def ensure_executable(arch: str, cache: Path, note: Note, deadline: Deadline) -> Path:
    """Return the agent's executable for an architecture; build it if necessary.

    While it is built, `note(text, fraction done or None)` is called about every second. Raises
    BuildError for an unknown architecture or if the compiler fails, DeadlineError if it takes too
    long.
    """
    if found := find_existing_executable(arch, cache):
        return found
    wanted = executable_build_inputs_digest(arch)
    executable = cache / "agents" / wanted / "farm-agent"
    if prebuilt := _prebuilt(arch, wanted):  # the package was unpacked without file modes
        return _copy(prebuilt, executable)
    executable.parent.mkdir(parents=True, exist_ok=True)
    with _alone(executable.with_name("lock"), arch, note, deadline):
        if not executable.exists():
            with tempfile.TemporaryDirectory(prefix="farm-agent-") as scratch:
                _copy(compile_agent(arch, Path(scratch), cache / "zig", note, deadline), executable)
    return executable


def find_existing_executable(arch: str, cache: Path) -> Path | None:
    """Return the agent's executable for an architecture if it need not be built, else None.

    Raises BuildError for an unknown architecture.
    """
    wanted = executable_build_inputs_digest(arch)
    executable = cache / "agents" / wanted / "farm-agent"
    prebuilt = _prebuilt(arch, wanted)
    if prebuilt and os.access(prebuilt, os.X_OK):
        return prebuilt
    return executable if executable.exists() else None


def compile_agent(
    arch: str, scratch: Path, zig_cache: Path, note: Note, deadline: Deadline
) -> Path:
    """Compile the agent in an empty folder, and return the executable.

    `zig_cache` keeps the C and C++ libraries for the next build. The errors are those of
    `ensure_executable`.
    """
    together, link, executable = compile_steps(arch, scratch)
    work = _Work(arch, scratch, zig_cache, note, deadline)
    work.run([step for step in together if not work.has_kept(step)])
    work.run([link])
    return executable


def place_in_package(arch: str, executable: Path) -> Path:
    """Copy an executable into the package, so that an installed farm need not compile it."""
    target = PREBUILT / f"farm-agent-{arch}"
    recorded = target.with_name(f"{target.name}.digest")
    recorded.unlink(missing_ok=True)
    _copy(executable, target)
    recorded.write_text(f"{executable_build_inputs_digest(arch)}\n")
    return target


@dataclass
class _Work:
    """A build in progress. `done` is the finished share of its time, from 0 to 1."""

    arch: str
    scratch: Path
    zig_cache: Path
    note: Note
    deadline: Deadline
    done: float = 0.0
    started: float = field(default_factory=time.monotonic)
    noted: float = 0.0

    def run(self, todo: Sequence[CompilerCall]) -> None:
        """Run compiler calls, as many at once as there are CPU cores."""
        waiting = list(todo)
        running: list[tuple[CompilerCall, Popen[bytes]]] = []
        env = {
            **zig_environment(self.zig_cache),
            "ZIG_LOCAL_CACHE_DIR": str(self.scratch / "zig"),
        }
        try:
            while waiting or running:
                while waiting and len(running) < (os.cpu_count() or 1):
                    step = waiting.pop(0)
                    running.append(
                        (
                            step,
                            subprocesses.start_program(step.command, log=self._log(step), env=env),
                        )
                    )
                for step, child in [item for item in running if item[1].poll() is not None]:
                    running.remove((step, child))
                    self._finish(step, child)
                self._tell([step.name for step, _ in running])
                time.sleep(_POLL_S)
        finally:
            for _, child in running:
                _end(child)

    def has_kept(self, step: CompilerCall) -> bool:
        """Copy a step's output from the cache; return whether an earlier build has made it."""
        if step.output is None or not (kept := self._kept(step)).exists():
            return False
        shutil.copyfile(kept, step.output)
        self.done += step.share
        return True

    def _kept(self, step: CompilerCall) -> Path:
        return self.zig_cache / "farm-objects" / f"{step.digest}.o"

    def _log(self, step: CompilerCall) -> Path:
        return self.scratch / f"{step.name}.log"

    def _finish(self, step: CompilerCall, child: Popen[bytes]) -> None:
        if child.returncode:
            why = (
                subprocesses.last_lines(self._log(step).read_text(errors="replace"))
                or f"exit code {child.returncode}"
            )
            fix = (
                f"see that the disk has room, then: rm -r {shlex.quote(str(self.zig_cache))}; "
                "pip install --force-reinstall ziglang apache-tvm apache-tvm-ffi"
            )
            raise BuildError(f"compiling the agent for {self.arch} failed ({step.name})", why, fix)
        if step.output is not None:
            _copy(step.output, self._kept(step))
        self.done += step.share

    def _tell(self, running: Sequence[str]) -> None:
        now = time.monotonic()
        if running and now - self.noted >= _NOTE_EVERY_S:
            self.noted = now
            self.note(
                (
                    f"compiling the {self.arch} agent: {', '.join(running)} "
                    f"({now - self.started:.0f} s)"
                ),
                min(self.done, 1.0),
            )
        if self.deadline.expired:
            raise DeadlineError(
                f"compiling the agent for {self.arch}: no end after {self.deadline.seconds:.0f} s",
                (
                    "the first build for an architecture compiles the C++ library too, which "
                    "takes minutes on a slow or busy machine"
                ),
                f"build it ahead: tools/build-agents {self.arch}",
            )


def _end(child: Popen[bytes]) -> None:
    """End a compiler call with its child processes.

    zig runs clang in processes of their own, which would continue alone.
    """
    for pid in _descendants(child.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocesses.end_program(child)


def _descendants(pid: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, file.read_text().split()):
                found += [child, *_descendants(child)]
    return found


@contextlib.contextmanager
def _alone(lock: Path, arch: str, note: Note, deadline: Deadline) -> Iterator[None]:
    """Hold a lock, so that two processes that need the same agent do not both compile it."""
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                note(f"another process compiles the {arch} agent", None)
            if deadline.expired:
                raise DeadlineError(
                    (
                        f"the agent for {arch}: another process compiles it, for more than "
                        f"{deadline.seconds:.0f} s"
                    ),
                    str(lock),
                )
            time.sleep(min(_NOTE_EVERY_S, deadline.remaining))
        yield


def _prebuilt(arch: str, wanted: str) -> Path | None:
    path = PREBUILT / f"farm-agent-{arch}"
    recorded = path.with_name(f"{path.name}.digest")
    if path.exists() and recorded.exists() and recorded.read_text().strip() == wanted:
        return path
    return None


def _copy(executable: Path, target: Path) -> Path:
    """Copy an executable to its place atomically, and return the place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        shutil.copyfile(executable, part)
        part.chmod(0o755)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target
