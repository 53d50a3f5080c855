"""TVM's RPC client, on sockets that notice a dead network."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farm.lightly import tvm_rpc

_DESCRIPTORS = Path("/proc/self/fd")
_PROBE_S, _PROBES = 5, 4  # 20 s of silence end a connection


def connect(host: str, port: int, key: str, timeout_s: float) -> Any:
    """A session with the server at an address; the server ends it after `timeout_s`."""
    rpc = tvm_rpc()
    with noticing_silence():
        return rpc.connect(host, port, key, session_timeout=timeout_s)


@contextlib.contextmanager
def noticing_silence() -> Iterator[None]:
    """Have the connections that the block opens break where nothing comes back any more. TVM's would wait for hours, and has no option."""
    before = _open_sockets()
    yield
    for name, number in _open_sockets().items():
        if name not in before:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _PROBE_S * _PROBES * 1000)


def _open_sockets() -> dict[str, int]:
    """The descriptors of this process's sockets by the kernel's name for each; none where the system does not tell."""
    found = {}
    for path in _DESCRIPTORS.iterdir() if _DESCRIPTORS.is_dir() else ():
        with contextlib.suppress(OSError):  # it is closed already, as that of the folder itself
            if (name := str(path.readlink())).startswith("socket:"):
                found[name] = int(path.name)
    return found
