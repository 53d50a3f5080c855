"""The tunnel: a program that holds the SSH connection to a board, and brings its agent to a port of this machine's loopback.

    argv: a scratch folder with tunnel.order, and the descriptor of a connection by which it asks for passwords, and is asked later on for
          files that go beside the agent's channel (see ssh_upload.py)
    It answers with tunnel.port once it listens, or with tunnel.error.

It is a process of its own: TVM's client holds Python's lock while it waits for a reply, which a relay beside it would then never forward.
The agent speaks on the standard streams of its SSH channel: the board opens no port at all, not even on its loopback, and no other user of
it can meet the agent. The greeting of TVM's RPC, which those streams leave out, is spoken here; who does not know the key is turned away.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from farm import process
from farm.asking import Question
from farm.deadline import Deadline
from farm.errors import DeadlineError, FarmError, InternalError
from farm.transports import ssh_upload
from farm.transports.errors import ended
from farm.transports.ssh import ERROR, LOG, ORDER, PORT
from farm.transports.ssh_board import Board
from farm.transports.ssh_config import Hop, route
from farm.transports.ssh_errors import broken, translated
from farm.transports.ssh_login import logged_in
from farm.types import Device

_MAGIC = 0xFF271  # kRPCMagic and kRPCSuccess of TVM's rpc_endpoint.h
_MISMATCH = _MAGIC + 2
_MOST_KEY_BYTES = 4096
_GREETING_S = 5.0
_TICK_S = 0.2
_END_S = 1.5  # for the agent to end by itself
_NEWS_S = 0.5
_PIECE = 1 << 16


def main() -> None:
    """The program."""
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
    """Write a file, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


class _Tunnel:
    def __init__(self, device: Device, scratch: Path, pipe: Connection, parent: int, deadline: Deadline) -> None:
        self._device, self._scratch, self._pipe, self._parent, self._deadline = device, scratch, pipe, parent, deadline
        self._ended = threading.Event()

    def serve(self, agent: Path, key: str) -> None:
        """From the login to the end of the one session."""
        hops = route(self._device.url)
        with logged_in(self._device.name, hops, self._deadline, self._ask) as client:
            board = Board(client, self._device, self._deadline)
            channel, store = self._start(board, agent, hops[-1])
            try:
                self._in_background(self._keep_log, channel)
                self._in_background(ssh_upload.serve, self._pipe, board, store)
                with self._client(key) as sock:
                    self._relay(sock, channel)
                    error = self._cause(channel, client.get_transport(), hops[-1])
                    _say(self._scratch / ERROR, pickle.dumps(error))  # before the client sees its connection go
            finally:
                _leave(channel)

    def _start(self, board: Board, agent: Path, hop: Hop) -> tuple[Any, str]:
        transport = board.client.get_transport()
        try:
            with translated(self._device.name, hop):
                return board.start_agent(agent)
        except FarmError as error:
            transport.join(_NEWS_S)  # what seems to be wrong with the board may be the end of the connection
            if transport.is_alive():
                raise
            raise _broken(self._device.name, hop, transport) from error

    def _ask(self, question: Question) -> str | None:
        self._pipe.send(question)
        answer: str | None = self._pipe.recv()
        return answer

    def _client(self, key: str) -> socket.socket:
        """The connection of the one client that knows the key; nobody listens afterwards."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(_TICK_S)
            _say(self._scratch / PORT, str(listener.getsockname()[1]).encode())
            while self._goes_on():
                try:
                    sock, _ = listener.accept()
                except TimeoutError:
                    continue
                sock.settimeout(_GREETING_S)
                if greet(sock, key):
                    sock.settimeout(None)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return sock
                sock.close()
        raise DeadlineError(f"nobody asked for the session on {self._device.name}", "the deadline passed first")

    def _goes_on(self) -> bool:
        return not self._deadline.expired and os.getppid() == self._parent

    def _relay(self, sock: socket.socket, channel: Any) -> None:
        """Until one side, the time, or the process that started us has ended."""
        self._in_background(_pour, sock.recv, channel.sendall, channel.shutdown_write)
        self._in_background(_pour, channel.recv, sock.sendall, self._ended.set)
        while self._goes_on() and not self._ended.wait(_TICK_S):
            pass

    def _in_background(self, function: Any, *arguments: Any) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def _keep_log(self, channel: Any) -> None:
        with (self._scratch / LOG).open("ab", buffering=0) as log:
            _pour(channel.recv_stderr, log.write, lambda: None)

    def _cause(self, channel: Any, transport: Any, hop: Hop) -> FarmError:
        """Why the session is over. Where the client has ended it, nobody will ask."""
        name, seconds = self._device.name, self._deadline.seconds
        if self._deadline.expired:
            return DeadlineError(
                f"the session on {name} ran out of time", f"{seconds:.0f} s are over", "give it longer with --deadline SECONDS"
            )
        channel.status_event.wait(_END_S)
        status = channel.exit_status
        if status < 0:
            return _broken(name, hop, transport)
        log = process.last_lines((self._scratch / LOG).read_text(errors="replace"))
        how = "" if status == 0 else f" of signal {status - 128}" if status > 128 else f" with exit code {status}"
        what = f"the agent on {name} ended{how}" if status else f"the session on {name} ended"
        return ended(self._device, what, log, "check the memory of the board (dmesg there), then run the command again")


def _broken(name: str, hop: Hop, transport: Any) -> FarmError:
    """Why a connection that was there has ended."""
    return broken(name, hop, transport.get_exception() or EOFError("it was closed from the other side"))


def _pour(take: Any, give: Any, at_end: Any) -> None:
    """Everything from one side to the other, then the last act."""
    with contextlib.suppress(OSError, EOFError):  # a broken side has ended
        while piece := take(_PIECE):
            give(piece)
    with contextlib.suppress(OSError, EOFError):
        at_end()


def _leave(channel: Any) -> None:
    """Let the agent end by itself: its input ends here."""
    with contextlib.suppress(OSError, EOFError):
        channel.shutdown_write()
        channel.status_event.wait(_END_S)
        channel.close()


def greet(sock: socket.socket, key: str) -> bool:
    """The server's side of TVM's greeting: a magic number, and "client:KEY OPTIONS" with its length; the answer likewise."""
    try:
        magic, length = struct.unpack("<ii", _exactly(sock, 8))
        if magic != _MAGIC or not 0 < length <= _MOST_KEY_BYTES:
            return False
        shown = _exactly(sock, length).removeprefix(b"client:").split(b" ")[0]
        if not hmac.compare_digest(shown, key.encode()):
            sock.sendall(struct.pack("<i", _MISMATCH))
            return False
        sock.sendall(struct.pack("<ii", _MAGIC, len(b"server:")) + b"server:")
    except OSError:
        return False
    return True


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (piece := sock.recv(count - len(data))):
            raise ConnectionResetError
        data += piece
    return data
