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

from farm.sandbox import landlock, seccomp
from farm.sandbox.policy import WRITABLE_DEVICES

_START = """
import ctypes, os, sys
system = ctypes.CDLL(None, use_errno=True)
ruleset, call, code = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.c_char_p))
def do(result):
    if result < 0:
        sys.exit("the sandbox: " + os.strerror(ctypes.get_errno()))
do(system.prctl(38, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))
do(system.syscall(ctypes.c_long(446), ctypes.c_int(ruleset), ctypes.c_uint32(0)))
os.close(ruleset)
do(system.syscall(ctypes.c_long(call), ctypes.c_uint(1), ctypes.c_uint(0), ctypes.byref(Program(len(code) // 8, code))))
os.execve(sys.argv[4], sys.argv[4:], {})
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Restricted:
    """A command that runs a program with few rights; it must be started with the descriptor."""

    command: tuple[str, ...]
    descriptor: int


@contextlib.contextmanager
def restricted(
    command: Sequence[str | Path], read: Sequence[Path], write: Sequence[Path]
) -> Iterator[Restricted]:
    """Yield a command that runs `command`, a program by its path, with these files only.

    The program gets no environment. The kernel must have what `sandbox.support` reports. Raises
    OSError if it refuses.
    """
    machine = seccomp.architecture()
    assert machine is not None, "asked for without a sandbox"
    program = Path(command[0])
    ruleset = landlock.ruleset(
        read, (*write, *WRITABLE_DEVICES), landlock.abi(), execute=(program,)
    )
    try:
        code = seccomp.packed(seccomp.program(machine, None))
        start = (
            sys.executable,
            "-I",
            "-S",
            "-c",
            _START,
            str(ruleset),
            str(machine.seccomp),
            code.hex(),
        )
        yield Restricted((*start, *map(str, command)), ruleset)
    finally:
        os.close(ruleset)
