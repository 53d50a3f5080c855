"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct

from farm import ownership
from farm.lab.entities import Caller

_UCRED = struct.Struct("3i")


def caller_of(connection: socket.socket) -> Caller:
    """Return who is at the other end of a Unix socket, by the kernel's word."""
    _, uid, _ = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    is_server = uid == os.geteuid()
    return Caller(ownership.name_of(uid), is_server or uid == 0, is_server)
