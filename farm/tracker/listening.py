"""The sockets that the tracker listens on."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from farm.errors import DeviceError

BACKLOG = 1024  # a lab's boards come back all at once after a restart


def listen_on_first_free_port(host: str, ports: Iterable[int]) -> socket.socket:
    """Listen on the first free port. Raises DeviceError if none is free."""
    family = socket.getaddrinfo(host, None)[0][0]
    why = ""
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as exc:
            listener.close()
            why = f"{host}:{port}: {exc.strerror}"
            continue
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return listener
    raise DeviceError(
        "the tracker cannot listen", why or "no port was given", "name another port with --port"
    )
