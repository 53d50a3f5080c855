"""The lab server: TVM's tracker in this process, so that it ends when we end (TVM's own starter leaves an orphan that holds the port)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable

from farm.errors import DeviceError
from farm.transports.rpc_client import tvm_rpc


def serve(host: str, ports: Iterable[int], announce: Callable[[int], None]) -> None:
    """Serve on the first free port until interrupted. Raises DeviceError where none is free."""
    with _listen(host, list(ports)) as listener:
        tvm_rpc()  # without torch, which takes seconds
        from tvm.rpc.tracker import TrackerServerHandler

        asyncio.set_event_loop(asyncio.new_event_loop())
        handler = TrackerServerHandler(listener, "")
        announce(listener.getsockname()[1])
        try:
            handler.run()
        finally:
            handler.stop()


def _listen(host: str, ports: list[int]) -> socket.socket:
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
        listener.listen(64)
        return listener
    raise DeviceError("the tracker cannot listen", why or "no port was given", "name another port with --port")
