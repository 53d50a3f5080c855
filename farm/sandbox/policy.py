"""Define what a sandboxed process may use, and find the files that all of them need.

These are the files of Python and of the system.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SHARE = 0.9  # of this machine's memory and of the free disk space
# Packages that may be outside of the folder of installed ones
_PACKAGES = ("farm", "tvm", "tvm_ffi", "torch")
_INSTALLED = ("site-packages", "dist-packages")
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/null",
    "/dev/random",
    "/dev/urandom",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/meminfo",
    "/proc/self",
    "/proc/stat",
    "/proc/sys/vm",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
)
WRITABLE_DEVICES = (Path("/dev/null"),)


@dataclass(frozen=True, slots=True)
class Policy:
    """The resources of a sandboxed process, besides Python, installed packages and the C library.

    It may read the files `read`, and everything below folders among them. Below `write` it may also
    create, change and remove files. `memory_bytes` limits its allocations, `file_bytes` each file
    that it writes. It may open no socket, start no program and signal no other process. Its time is
    limited by the deadline of its task.
    """

    read: tuple[Path, ...]
    write: tuple[Path, ...]
    memory_bytes: int
    file_bytes: int

    @classmethod
    def of_this_machine(cls, read: tuple[Path, ...], write: tuple[Path, ...]) -> Policy:
        """Return the policy that allows most of this machine's memory and free disk space."""
        free = min((shutil.disk_usage(folder).free for folder in write), default=0)
        return cls(read, write, int(_SHARE * _memory()), int(_SHARE * free))


def _memory() -> int:
    """Return the bytes of this machine's memory, or its control group's limit if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


@functools.cache
def python_and_package_folders() -> tuple[Path, ...]:
    """Return the folders of this Python and of the packages installed in it.

    Folders of the user's own code are not among them.
    """
    places = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix), *_packages()}
    places |= {
        Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    places |= {Path(entry) for entry in sys.path if Path(entry).name in _INSTALLED}
    return tuple(sorted({place.resolve() for place in places} - {Path("/"), Path.home().resolve()}))


def _packages() -> Iterator[Path]:
    for name in _PACKAGES:
        with contextlib.suppress(ImportError, ValueError):
            found = importlib.util.find_spec(name)
            yield from map(Path, (found and found.submodule_search_locations) or ())


def system_files() -> tuple[Path, ...]:
    """Return the system's files that the C library, Python and the inference engines read."""
    return tuple(map(Path, _SYSTEM))
