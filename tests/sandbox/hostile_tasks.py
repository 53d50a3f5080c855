"""What a model that has taken over its process might try, as tasks."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from farm.processes.workers import TaskContext
from farm.types import Progress, Stage

_PTRACE_ATTACH = 16


def answer(context: TaskContext) -> dict[str, Any]:
    import numpy as np

    context.note("on the way")
    (context.scratch / "file").write_text("x")
    return {"folder": context.scratch, "array": np.arange(3, dtype="float32"), "set": {1}}


def read(_: TaskContext, path: Path) -> str:
    return path.read_text()


def write(_: TaskContext, path: Path) -> None:
    path.write_text("overwritten")


def append(_: TaskContext, path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


def truncate(_: TaskContext, path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))


def change_mode(_: TaskContext, path: Path) -> None:
    path.chmod(0o777)


def touch(_: TaskContext, path: Path) -> None:
    os.utime(path, (0, 0))


def remove(_: TaskContext, path: Path) -> None:
    path.unlink()


def link(context: TaskContext, path: Path) -> None:
    (context.scratch / "link").symlink_to(path)


def hard_link(context: TaskContext, path: Path) -> None:
    (context.scratch / "link").hardlink_to(path)


def connect(_: TaskContext, port: int) -> None:
    socket.create_connection(("127.0.0.1", port), 5).close()


def connect_by_name(_: TaskContext, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))


def start_program(_: TaskContext) -> str:
    return subprocess.check_output(["/bin/echo", "started"], text=True)


def become_program(_: TaskContext) -> None:
    os.execv("/bin/true", ["true"])


def fork(_: TaskContext) -> int:
    return os.fork()


def leave_group(_: TaskContext) -> None:
    os.setsid()


def kill(_: TaskContext, process: int) -> None:
    os.kill(process, signal.SIGTERM)


def kill_group(_: TaskContext) -> None:
    os.killpg(os.getpgrp(), signal.SIGTERM)


def environment_of(_: TaskContext, process: int) -> bytes:
    return Path(f"/proc/{process}/environ").read_bytes()


def environment_of_parent(context: TaskContext) -> bytes:
    return environment_of(context, os.getppid())


def environment(_: TaskContext) -> tuple[dict[str, str], str, str]:
    """The variables as Python, the kernel and the C library have them."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    seen = libc.getenv(b"AWS_SECRET_ACCESS_KEY") or b""
    return dict(os.environ), Path("/proc/self/environ").read_text(), seen.decode()


def places_in_memory(_: TaskContext, backwards: bytes) -> int:
    """How often the bytes, which are passed backwards so as not to find them here, are in
    memory.
    """
    wanted, found = bytearray(reversed(backwards)), 0
    with Path("/proc/self/mem").open("rb", 0) as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            first, behind = (int(end, 16) for end in place.split("-"))
            if rights.startswith("rw") and "[v" not in line:
                memory.seek(first)
                found += memory.read(behind - first).count(wanted)
    return found - 1  # `wanted` itself


def task_of_worker(context: TaskContext, folder: Path, task: Any, *arguments: Any) -> Any:
    """For a worker: do a task in a sandbox."""
    from farm import sandbox
    from farm.sandbox.policy import Policy

    policy = Policy((), (folder,), 1 << 32, 1 << 30)
    modules = ("farm.compiler.lower",)
    return sandbox.run_sandboxed(
        policy, folder, task, *arguments, modules=modules, note=context.note, what="trying"
    )


def trace(_: TaskContext, process: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_PTRACE_ATTACH, process, None, None):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def allocate(_: TaskContext, nbytes: int) -> int:
    return len(bytearray(nbytes))


def fill_disk(context: TaskContext, nbytes: int) -> None:
    with (context.scratch / "large").open("wb") as file:
        file.truncate(nbytes)


def crash(_: TaskContext) -> None:
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def crash_in_tvm(context: TaskContext) -> None:
    import tvm_ffi  # noqa: F401  it prints the stack of a segmentation fault

    context.note(Progress(Stage.IMPORTING, "checking the import on this machine"))
    crash(context)


def say_nothing(_: TaskContext) -> None:
    os._exit(3)


def send_program(_: TaskContext) -> Any:
    return os.system


def hang(_: TaskContext, note: Path) -> None:
    note.write_text(str(os.getpid()))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def hang_in_sandbox(context: TaskContext, folder: Path) -> None:
    """For a worker."""
    from farm import sandbox
    from farm.sandbox.policy import Policy

    policy = Policy((), (folder,), 1 << 32, 1 << 30)
    sandbox.run_sandboxed(
        policy, folder, hang, folder / "process", note=context.note, what="hanging"
    )


def capabilities(_: TaskContext) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("CapPrm:")[2].split()[0], 16)


def make_immutable(context: TaskContext) -> None:
    """Set FS_IMMUTABLE_FL, by ioctl: then nobody removes the file."""
    path = context.scratch / "immutable"
    path.touch()
    with path.open("r+b") as file:
        flags = ctypes.c_long(0x10)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ioctl(file.fileno(), ctypes.c_ulong(0x40086602), ctypes.byref(flags)):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))


def make_set_id(context: TaskContext) -> None:
    os.close(os.open(context.scratch / "set-id", os.O_CREAT | os.O_WRONLY, 0o4755))


def share_memory(_: TaskContext) -> None:
    mmap.mmap(-1, 1 << 32, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)


def make_memory_file(_: TaskContext) -> int:
    return os.memfd_create("memory")


def watch(_: TaskContext) -> int:
    """Watch a folder for what others open there."""
    libc = ctypes.CDLL(None, use_errno=True)
    if (made := libc.inotify_init1(0)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(made)


def pin(_: TaskContext, process: int) -> None:
    os.sched_setaffinity(process, {min(os.sched_getaffinity(0))})


def flood_log(_: TaskContext) -> None:
    """Leave a log as large as a file may be, of holes, and end."""
    os.ftruncate(1, 1 << 35)
    os.lseek(1, 0, os.SEEK_END)
    os.write(1, b"\nlast words")
    os._exit(3)


def ask_twice(context: TaskContext) -> list[Any]:
    from farm.errors import FarmError

    answers = [context.ask_helper(("a.o", "b.o"))]
    try:
        context.ask_helper("refuse")
    except FarmError as error:
        answers.append(error.what)
    return answers


def ask_to_call(context: TaskContext) -> Any:
    return context.ask_helper(os.system)


def ask_and_end(context: TaskContext) -> None:
    from farm.sandbox.fork_server import TaskMessageKind

    context._send(TaskMessageKind.REQUEST, "unheard")  # type: ignore[attr-defined]
    os._exit(3)


def ask_and_stay(context: TaskContext) -> None:
    """Ask what the helper fails at, and do not end with the connection to it."""
    from farm.sandbox.fork_server import TaskMessageKind

    for request in (os.getpid(), "fail"):
        context._send(TaskMessageKind.REQUEST, request)  # type: ignore[attr-defined]
    while True:
        time.sleep(1)


def note_at_length(context: TaskContext, letters: int) -> None:
    from farm.types import Progress, Stage

    context.note(Progress(Stage.IMPORTING, "x" * letters))


def use_folder(context: TaskContext) -> str:
    folder = context.scratch / "folder" / "inner"
    folder.mkdir(parents=True)
    (folder / "file").write_text("moved")
    (folder / "file").rename(folder / "other")
    text = (folder / "other").read_text()
    (folder / "other").write_text("shorter")
    (folder / "other").unlink()
    folder.rmdir()
    folder.parent.rmdir()
    return text
