"""Give up the capabilities of root, for good, but those to read what root may read.

Landlock and the filter of system calls leave root with rights that have no call of their own:
flags of files by ioctl(2), freezing a file system, raising limits of memory. See
capabilities(7).
"""

from __future__ import annotations

import ctypes

from farm.sandbox import seccomp
from farm.sandbox.raw_system_calls import system_call

VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3: two words of 32 bits each
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2
KEPT = _DAC_OVERRIDE | _DAC_READ_SEARCH


class CapabilityHeader(ctypes.Structure):
    """Whose capabilities are meant (struct __user_cap_header_struct): those of this thread."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class CapabilityWords(ctypes.Structure):
    """The three sets of capabilities, 32 of them (struct __user_cap_data_struct)."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def drop_unneeded_capabilities() -> None:
    """Give up all capabilities of this thread but those of `KEPT`. Raises OSError."""
    machine = seccomp.host_architecture()
    assert machine is not None, "asked for on an architecture without a table"
    header, words = CapabilityHeader(VERSION, 0), (CapabilityWords * 2)()
    system_call(_number(machine, "capget"), ctypes.byref(header), ctypes.byref(words))
    kept = words[0].permitted & KEPT
    words[0] = CapabilityWords(kept, kept, 0)
    words[1] = CapabilityWords(0, 0, 0)
    system_call(_number(machine, "capset"), ctypes.byref(header), ctypes.byref(words))


def _number(machine: seccomp.Architecture, name: str) -> int:
    number = machine.number(name)
    assert number is not None, "each architecture of the table has it"
    return number
