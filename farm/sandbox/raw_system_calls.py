"""Call the kernel directly, for system calls that the C library has no function for.

Linux: `man 2 syscall`. The numbers of Landlock's calls are the same on all architectures.
"""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)


def system_call(number: int, *arguments: object) -> int:
    """Call a system call by its number and return its result.

    Raises OSError with the kernel's errno.
    """
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def prctl(option: int, *arguments: int) -> int:
    """Control this process by a call with up to four numbers. Raises OSError."""
    filled = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    result: int = _libc.prctl(ctypes.c_int(option), *filled)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
