"""Accept connections in a thread, which ends before its listener is closed.

A thread that is about to accept when its listener is closed takes a connection of the next
listener of this process, which gets the same descriptor: whoever waits there waits for ever.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

_END_S = 5.0


@contextlib.contextmanager
def accepting(listener: socket.socket, each: Callable[[socket.socket], object]) -> Iterator[None]:
    """Call `each` with every connection to a listener, one after the other, within the block.

    An OSError of `each` ends that connection only.
    """

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):
                each(connection)

    thread = threading.Thread(target=accept, name="accept", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(_END_S)
