"""Refuse what is no regular file before it is opened.

A pipe may hang its reader, a device never end.
"""

from __future__ import annotations

import errno
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_PIPE = _KINDS[stat.S_IFIFO]
_OPENED = ("/dev/fd/", "/proc/self/fd/")  # descriptors, as a shell passes them for <(command)


def check_not_special_file(path: Path, *, or_pipe: bool = False) -> None:
    """Raise OSError if a path leads to a pipe, a device or a socket.

    A pipe is accepted with `or_pipe`, and where the user's shell has opened it. Nothing is raised
    for a path that does not exist, nor for a folder: opening them fails at once.
    """
    try:
        kind = _KINDS.get(stat.S_IFMT(path.stat().st_mode))
    except OSError:
        return
    if kind == _PIPE and (or_pipe or str(path).startswith(_OPENED)):
        return
    if kind:
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
