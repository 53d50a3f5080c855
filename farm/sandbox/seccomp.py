"""Refuse system calls to this process by a seccomp filter, for good.

Sources: https://docs.kernel.org/userspace-api/seccomp_filter.html, linux/seccomp.h, linux/filter.h.
A refused call fails with EPERM, so that a library that only tries it continues. A call by another
architecture's table kills the process. Calls of the x32 ABI, and calls newer than the tables here,
fail with ENOSYS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from farm.sandbox import denied_system_calls
from farm.sandbox.raw_system_calls import prctl, system_call

_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS
_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
_ALL_THREADS = 1  # SECCOMP_FILTER_FLAG_TSYNC
_KILL, _ERROR, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000  # SECCOMP_RET_*

# Instructions of classic BPF: load a word of the data, "and", conditional jumps on the accumulator,
# return.
_LOAD, _AND, _EQUAL, _MORE, _ANY_OF, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data

_CLONE_THREAD = 0x00010000
_O_ACCMODE, _O_TRUNC = 0o3, 0o1000
_SET_ID = 0o6000  # S_ISUID and S_ISGID, of a file's mode
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
# prctl options that concern names, dumps, timers and memory of this process itself.
_CONTROLS = (
    3,  # PR_GET_DUMPABLE
    15,  # PR_SET_NAME
    16,  # PR_GET_NAME
    21,  # PR_GET_SECCOMP
    23,  # PR_CAPBSET_READ
    29,  # PR_SET_TIMERSLACK
    30,  # PR_GET_TIMERSLACK
    38,  # PR_SET_NO_NEW_PRIVS
    39,  # PR_GET_NO_NEW_PRIVS
    41,  # PR_SET_THP_DISABLE
    42,  # PR_GET_THP_DISABLE
    0x53564D41,  # PR_SET_VMA
)
_BECOME = "execve"
_NOBODY = (1 << 31) - 1  # no process has this id
_FILE_CONTROLS = (8, 10, 15, 1024, 1026)  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
_DEVICE_CONTROLS = (0x5412, 0x541C, 0x8901, 0x8902)  # TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP


@dataclass(frozen=True, slots=True)
class Architecture:
    """The constants of an architecture.

    `audit` is its AUDIT_ARCH_* constant, `column` its column in `denied_system_calls.NUMBERS`, and
    `seccomp` the number of seccomp(2).
    """

    audit: int
    column: int
    seccomp: int

    def number(self, name: str) -> int | None:
        """Return the number of a system call on this architecture, None if it has no such call."""
        return denied_system_calls.NUMBERS[name][self.column]


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, 0, 317),
    "aarch64": Architecture(0xC00000B7, 1, 277),
}


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("constant", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


# The fields of an instruction, in the order of its structure
Instruction = tuple[int, int, int, int]
Code = list[Instruction]


def host_architecture() -> Architecture | None:
    """Return this machine's architecture; None if no filter can be made for it."""
    return ARCHITECTURES.get(platform.machine())


def is_available() -> bool:
    """Return whether the kernel accepts filters that make a call fail with an error."""
    machine = host_architecture()
    if machine is None:
        return False
    action = ctypes.c_uint32(_ERROR)
    try:
        system_call(
            machine.seccomp,
            ctypes.c_uint(_GET_ACTION_AVAIL),
            ctypes.c_uint(0),
            ctypes.byref(action),
        )
    except OSError:
        return False
    return True


def assemble_filter(machine: Architecture, process: int | None) -> Code:
    """Return the filter for the process with this id, the only process that it may signal.

    With None, it is for a process that is to become another program, and may signal none.
    """
    code: Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_MORE, 0, 1, denied_system_calls.LAST),  # x32 calls begin at 0x40000000
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    for names, error in _REFUSED:
        allowed_names = () if process is not None else (_BECOME,)
        for number in filter(
            None, (machine.number(name) for name in names if name not in allowed_names)
        ):
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | error)]
    refused, allowed = (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)

    def only(name: str, argument: int, values: Sequence[int]) -> Code:
        tests = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
        return _case(machine, name, argument, [*tests, refused, allowed])

    def never(name: str, argument: int, values: Sequence[int], mask: int = 0xFFFFFFFF) -> Code:
        count = len(values)
        tests = [(_EQUAL, count - place, 0, value) for place, value in enumerate(values)]
        return _case(machine, name, argument, [(_AND, 0, 0, mask), *tests, allowed, refused])

    thread = (_ANY_OF, 1, 0, _CLONE_THREAD)
    code += _case(machine, "clone", 0, [thread, refused, allowed])
    itself = _NOBODY if process is None else process
    code += only("kill", 0, [itself])
    code += only("tgkill", 0, [itself])
    code += only("prlimit64", 0, [0, itself])
    code += only("prctl", 0, _CONTROLS)
    code += never("fcntl", 1, _FILE_CONTROLS)
    code += never("ioctl", 1, _DEVICE_CONTROLS)
    # Threads are pinned by their own ids, which a filter does not know. Others must not be, so that
    # all but this process are told that it was done.
    pinned = [(_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, itself), (_RETURN, 0, 0, _ERROR), allowed]
    code += _case(machine, "sched_setaffinity", 0, pinned)
    shared = _MAP_SHARED | _MAP_ANONYMOUS  # no limit counts it
    code += _case(
        machine, "mmap", 3, [(_AND, 0, 0, shared), (_EQUAL, 0, 1, shared), refused, allowed]
    )
    for name, mode in (("creat", 1), ("mkdir", 1), ("mkdirat", 2)):
        code += _case(machine, name, mode, [(_ANY_OF, 0, 1, _SET_ID), refused, allowed])
    for name, flags in (("open", 1), ("openat", 2)):
        code += _case(machine, name, flags, _opening(flags + 1, refused, allowed))
    return [*code, allowed]


def _opening(mode: int, refused: Instruction, allowed: Instruction) -> Code:
    """Return instructions that decide on the flags of an open, which are loaded, and on its mode.

    Refused is O_TRUNC with O_RDONLY, which truncates a file (Landlock controls truncation from its
    third ABI on), and a new file that runs with the rights of its owner.
    """
    return [
        (_AND, 0, 0, _O_TRUNC | _O_ACCMODE),
        (_EQUAL, 3, 0, _O_TRUNC),
        (_EQUAL, 2, 0, _O_TRUNC | _O_ACCMODE),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * mode),
        (_ANY_OF, 0, 1, _SET_ID),
        refused,
        allowed,
    ]


_REFUSED = (
    (denied_system_calls.NETWORK, errno.EPERM),
    (denied_system_calls.PROGRAMS, errno.EPERM),
    (denied_system_calls.OTHER_PROCESSES, errno.EPERM),
    (denied_system_calls.SHARED_OBJECTS, errno.EPERM),
    (denied_system_calls.FILE_ATTRIBUTES, errno.EPERM),
    (denied_system_calls.KERNEL, errno.EPERM),
    (denied_system_calls.MEMORY, errno.EPERM),
    (denied_system_calls.BY_POINTER, errno.ENOSYS),
)


def _case(machine: Architecture, name: str, argument: int, body: Code) -> Code:
    """Return instructions that decide one call by the low word of an argument.

    Other calls are left to the instructions that follow.
    """
    number = machine.number(name)
    if number is None:
        return []
    # The low word comes first: both architectures are little-endian
    place = _ARGUMENTS + 8 * argument
    return [(_EQUAL, 0, len(body) + 1, number), (_LOAD, 0, 0, place), *body]


def pack_filter(code: Code) -> bytes:
    """Return a filter as the kernel takes it."""
    return b"".join(struct.pack("=HBBI", *one) for one in code)


def install_filter() -> None:
    """Install the filter for all threads of this process. Raises OSError if the kernel refuses."""
    machine = host_architecture()
    assert machine is not None, "asked for on an architecture without a table"
    code = assemble_filter(machine, os.getpid())
    instructions = (_Instruction * len(code))(*(_Instruction(*one) for one in code))
    made = _Program(len(code), instructions)
    prctl(_NO_NEW_PRIVILEGES, 1)
    system_call(
        machine.seccomp,
        ctypes.c_uint(_SET_MODE_FILTER),
        ctypes.c_uint(_ALL_THREADS),
        ctypes.byref(made),
    )
