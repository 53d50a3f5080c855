"""A port that leads to another one, slowly: for what is to break in the middle of a transfer. It
needs no rights.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_PIECE = 1 << 14


@dataclass
class Relay:
    """What goes to the far port is held at `bytes_per_s`; what comes from there is not."""

    to: int
    bytes_per_s: float
    listener: socket.socket
    _sockets: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.to))
                self._sockets += [near, far]
                for source, sink, speed in ((near, far, self.bytes_per_s), (far, near, 1e12)):
                    self._threads.append(threading.Thread(target=_pump, args=(source, sink, speed)))
                    self._threads[-1].start()

    def cut(self) -> None:
        """Break every connection, so that both ends hear of it; new ones may come."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )  # its close is a reset
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in sockets:
            sock.close()

    def close(self) -> None:
        """No new ones either."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()


def _pump(source: socket.socket, sink: socket.socket, bytes_per_s: float) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            time.sleep(len(piece) / bytes_per_s)
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def slow_relay(to: int, bytes_per_s: float) -> Iterator[Relay]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _PIECE
    )  # of what it accepts: the sender is to feel it
    relay = Relay(to, bytes_per_s, listener)
    serving = threading.Thread(target=relay.serve)
    serving.start()
    try:
        yield relay
    finally:
        relay.close()
        serving.join()
