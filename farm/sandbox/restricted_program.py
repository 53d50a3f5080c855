"""Start a program of this machine that reads what a sandboxed process has left.

The program may read and write the named files only, open no socket, and start no other program. A
small Python gives up the rights, and becomes the program; it imports nothing of farm, which would
take longer than the program itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.sandbox import capabilities, landlock, seccomp
from farm.sandbox.policy import WRITABLE_DEVICES

_START = """
import ctypes, os, resource, sys
system = ctypes.CDLL(None, use_errno=True)
ruleset, code = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
call, get, put, version, kept, memory, size = map(int, sys.argv[3].split(","))
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.c_char_p))
def do(result):
    if result < 0:
        sys.exit("the sandbox: " + os.strerror(ctypes.get_errno()))
do(system.prctl(38, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))
do(system.syscall(ctypes.c_long(446), ctypes.c_int(ruleset), ctypes.c_uint32(0)))
os.close(ruleset)
whose, held = (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * 6)()
do(system.syscall(ctypes.c_long(get), whose, held))
held[:] = [held[1] & kept, held[1] & kept, 0, 0, 0, 0]
do(system.syscall(ctypes.c_long(put), whose, held))
for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, memory), (resource.RLIMIT_FSIZE, size)):
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
do(system.syscall(ctypes.c_long(call), ctypes.c_uint(1), ctypes.c_uint(0), ctypes.byref(Program(len(code) // 8, code))))
os.execve(sys.argv[4], sys.argv[4:], {})
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class RestrictedCommand:
    """A command that runs a program with few rights; it must be started with the descriptor."""

    command: tuple[str, ...]
    descriptor: int


@contextlib.contextmanager
def restricted_command(
    command: Sequence[str | Path],
    read: Sequence[Path],
    write: Sequence[Path],
    *,
    memory_bytes: int,
    file_bytes: int,
) -> Iterator[RestrictedCommand]:
    """Yield a command that runs `command`, a program by its path, with these files only.

    The program gets no environment. `memory_bytes` limits its allocations, `file_bytes` each file
    that it writes: what it reads may say that it is to be unpacked to a thousand times its size.
    The kernel must have what `sandbox.sandbox_support` reports. Raises OSError if it refuses.
    """
    machine = seccomp.host_architecture()
    assert machine is not None, "asked for without a sandbox"
    program = Path(command[0])
    ruleset = landlock.create_ruleset(
        read, (*write, *WRITABLE_DEVICES), landlock.abi_version(), execute=(program,)
    )
    try:
        code = seccomp.pack_filter(seccomp.assemble_filter(machine, None))
        calls = machine.seccomp, machine.number("capget"), machine.number("capset")
        limits = memory_bytes, file_bytes
        numbers = (*calls, capabilities.VERSION, capabilities.KEPT, *limits)
        start = (
            sys.executable,
            "-I",
            "-S",
            "-c",
            _START,
            str(ruleset),
            code.hex(),
            ",".join(map(str, numbers)),
        )
        yield RestrictedCommand((*start, *map(str, command)), ruleset)
    finally:
        os.close(ruleset)
