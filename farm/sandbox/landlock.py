"""Restrict the files, TCP ports and signals of this process by Landlock, for good.

Source: https://docs.kernel.org/userspace-api/landlock.html and linux/landlock.h. ABI 1 came with
Linux 5.13, 2 with 5.19 (moves between folders), 3 with 6.2 (truncation), 4 with 6.7 (TCP), 5 with
6.10 (ioctl of devices) and 6 with 6.12 (signals and abstract Unix sockets). A right that an older
ABI does not support is left out.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from enum import IntFlag
from pathlib import Path

from farm.sandbox.raw_system_calls import prctl, system_call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS
_TCP = 0b11  # LANDLOCK_ACCESS_NET_BIND_TCP and CONNECT_TCP
_SCOPES = 0b11  # LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET and SIGNAL


class Access(IntFlag):
    """Rights to files: LANDLOCK_ACCESS_FS_*."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


READ = Access.READ_FILE | Access.READ_DIR
# Making links is not among these rights: a process without restrictions reads the written files
# later.
WRITE = (
    READ
    | Access.WRITE_FILE
    | Access.TRUNCATE
    | Access.MAKE_REG
    | Access.MAKE_DIR
    | Access.REMOVE_FILE
    | Access.REMOVE_DIR
)
_OF_FILES = (
    Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE | Access.IOCTL_DEV
)
_ALL_OF_ABI_1 = (Access.MAKE_SYM << 1) - 1
_ADDED = {2: Access.REFER, 3: Access.TRUNCATE, 5: Access.IOCTL_DEV}


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi_version() -> int:
    """Return the kernel's Landlock version; 0 if it has none or has it disabled."""
    try:
        return system_call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    except OSError:
        return 0


def restrictable_rights(version: int) -> Access:
    """Return all rights to files that a Landlock version can restrict."""
    rights = Access(_ALL_OF_ABI_1)
    for since, right in _ADDED.items():
        if version >= since:
            rights |= right
    return rights


def restrict_thread(read: Iterable[Path], write: Iterable[Path], version: int) -> None:
    """Restrict this thread, and what it starts, to the files below `read` and `write`, without TCP.

    A path that does not exist is skipped. Raises OSError if the kernel refuses.
    """
    made = create_ruleset(read, write, version)
    try:
        prctl(_NO_NEW_PRIVILEGES, 1)
        system_call(_RESTRICT_SELF, ctypes.c_int(made), ctypes.c_uint32(0))
    finally:
        os.close(made)


def create_ruleset(
    read: Iterable[Path], write: Iterable[Path], version: int, execute: Iterable[Path] = ()
) -> int:
    """Return the descriptor of the rules of `restrict_thread`.

    Programs of `execute` may be started, too.
    """
    rules = [(path, READ) for path in read] + [(path, WRITE) for path in write]
    rules += [(path, READ | Access.EXECUTE) for path in execute]
    made = _create(version)
    try:
        for path, rights in rules:
            _add(made, path, rights & restrictable_rights(version))
    except BaseException:
        os.close(made)
        raise
    return made


def _create(version: int) -> int:
    attributes = _Ruleset(restrictable_rights(version), _TCP, _SCOPES)
    # Size of the structure in this ABI, in bytes
    known = 24 if version >= 6 else 16 if version >= 4 else 8
    return system_call(
        _CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(known), ctypes.c_uint32(0)
    )


def _add(ruleset: int, path: Path, rights: Access) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        rule = ctypes.byref(_PathBeneath(rights, place))
        system_call(
            _ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0)
        )
    finally:
        os.close(place)
