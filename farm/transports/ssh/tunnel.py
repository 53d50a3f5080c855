"""The tunnel: a program that connects a port of this machine's loopback to the agent on a board.

    argv: a scratch folder with tunnel.order, and the descriptor of a connection. The tunnel sends
          its password prompts there, and later receives requests for uploads (see upload.py).
    It writes tunnel.port once it listens, or tunnel.error.

It is a separate process because TVM's client holds Python's GIL while it waits for a reply, so that
a relay thread in the same process could not forward the reply. The agent communicates on the
standard streams of its SSH channel: the board opens no port, not even on its loopback, and no other
user of the board can connect to the agent. Those streams leave out the handshake of TVM's RPC,
which is done here; clients without the key are rejected.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from farm import subprocesses
from farm.deadline import Deadline
from farm.errors import DeadlineError, FarmError, InternalError
from farm.prompts import Question
from farm.rpc import handshake
from farm.transports.rpc_client import broke_off
from farm.transports.rpc_errors import ended
from farm.transports.rpc_relay import Relay
from farm.transports.ssh import upload
from farm.transports.ssh.board import Board
from farm.transports.ssh.config import Hop, route
from farm.transports.ssh.connect import logged_in
from farm.transports.ssh.errors import broken, translated
from farm.transports.ssh.transport import ERROR, LOG, ORDER, PORT
from farm.types import Device

_TICK_S = 0.2
_END_S = 1.5  # time for the agent to end by itself
_NEWS_S = 0.5
_PIECE = 1 << 16


def main() -> None:
    """Run the program."""
    scratch, pipe, parent = Path(sys.argv[1]), Connection(int(sys.argv[2])), os.getppid()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = scratch / ORDER
    device, agent, timeout_s, key = pickle.loads(order.read_bytes())
    order.unlink()
    try:
        _Tunnel(device, scratch, pipe, parent, Deadline(timeout_s)).serve(agent, key)
    except FarmError as error:
        _say(scratch / ERROR, pickle.dumps(error))
    except Exception as error:
        _say(scratch / ERROR, pickle.dumps(InternalError(f"{type(error).__name__}: {error}", traceback.format_exc())))


def _end(*_: object) -> NoReturn:
    raise SystemExit


def _say(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


class _Tunnel:
    """One session: from the login on the board to the end of its only client's connection."""

    def __init__(self, device: Device, scratch: Path, pipe: Connection, parent: int, deadline: Deadline) -> None:
        self._device, self._scratch, self._pipe, self._parent, self._deadline = device, scratch, pipe, parent, deadline

    def serve(self, agent: Path, key: str) -> None:
        """Log in, start the agent, and relay between one client and the agent."""
        hops = route(self._device.url)
        with logged_in(self._device.name, hops, self._deadline, self._ask) as client:
            board = Board(self._device, self._deadline, client)
            channel, store = self._start(board, agent, hops[-1])
            try:
                self._in_background(self._keep_log, channel)
                self._in_background(upload.serve, self._pipe, board, store)
                with self._client(key) as sock:
                    broken_off = self._relay(sock, channel)
                    error = self._cause(channel, client.get_transport(), hops[-1], broken_off)
                    # Before the client sees its connection close
                    _say(self._scratch / ERROR, pickle.dumps(error))
            finally:
                _leave(channel)

    def _start(self, board: Board, agent: Path, hop: Hop) -> tuple[Any, str]:
        transport = board.client.get_transport()
        try:
            with translated(self._device.name, hop):
                return board.start_agent(agent)
        except FarmError as error:
            # A failure that looks like the board's may be the end of the connection
            transport.join(_NEWS_S)
            if transport.is_alive():
                raise
            raise _broken(self._device.name, hop, transport) from error

    def _ask(self, question: Question) -> str | None:
        self._pipe.send(question)
        answer: str | None = self._pipe.recv()
        return answer

    def _client(self, key: str) -> socket.socket:
        """Return the connection of the first client with the key; stop listening afterwards."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            _say(self._scratch / PORT, str(listener.getsockname()[1]).encode())
            if sock := handshake.admit(listener, key, self._goes_on):
                return sock
        raise DeadlineError(f"nobody asked for the session on {self._device.name}", "the deadline passed first")

    def _goes_on(self) -> bool:
        return not self._deadline.expired and os.getppid() == self._parent

    def _relay(self, sock: socket.socket, channel: Any) -> str:
        """Relay until one side, the deadline or the parent process ends.

        Returns the reason if the relay itself has ended the session, else an empty string.
        """
        relay = Relay(sock, channel, channel.shutdown_write)
        relay.start()
        while self._goes_on() and not relay.ended.is_set():
            relay.tick(_TICK_S)
        return relay.broke_off

    def _in_background(self, function: Any, *arguments: Any) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def _keep_log(self, channel: Any) -> None:
        with (self._scratch / LOG).open("ab", buffering=0) as log:
            _pour(channel.recv_stderr, log.write, lambda: None)

    def _cause(self, channel: Any, transport: Any, hop: Hop, broken_off: str) -> FarmError:
        """Return the error that explains why the session is over.

        It is not read if the client has ended the session.
        """
        name, seconds = self._device.name, self._deadline.seconds
        if broken_off:
            return broke_off(self._device, broken_off)
        if self._deadline.expired:
            return DeadlineError(
                f"the session on {name} ran out of time", f"{seconds:.0f} s are over", "give it longer with --deadline SECONDS"
            )
        channel.status_event.wait(_END_S)
        status = channel.exit_status
        if status < 0:
            return _broken(name, hop, transport)
        log = subprocesses.last_lines((self._scratch / LOG).read_text(errors="replace"))
        how = "" if status == 0 else f" of signal {status - 128}" if status > 128 else f" with exit code {status}"
        what = f"the agent on {name} ended{how}" if status else f"the session on {name} ended"
        return ended(self._device, what, log, "check the memory of the board (dmesg there), then run the command again")


def _broken(name: str, hop: Hop, transport: Any) -> FarmError:
    """Return the error for an established connection that has ended."""
    return broken(name, hop, transport.get_exception() or EOFError("it was closed from the other side"))


def _pour(take: Any, give: Any, at_end: Any) -> None:
    """Copy everything from one side to the other, then call `at_end`."""
    with contextlib.suppress(OSError, EOFError):  # a broken side counts as closed
        while piece := take(_PIECE):
            give(piece)
    with contextlib.suppress(OSError, EOFError):
        at_end()


def _leave(channel: Any) -> None:
    """Close the agent's input and give it time to end by itself."""
    with contextlib.suppress(OSError, EOFError):
        channel.shutdown_write()
        channel.status_event.wait(_END_S)
        channel.close()
