"""Refuse what is no regular file before it is opened: a pipe hangs whoever reads it, a device may never end."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def check_regular(path: Path) -> None:
    """Raise OSError if a path leads to a pipe, a device or a socket.

    Nothing is raised for a path that does not exist, nor for a folder: opening them fails at once.
    """
    try:
        kind = _KINDS.get(stat.S_IFMT(path.stat().st_mode))
    except OSError:
        return
    if kind:
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
