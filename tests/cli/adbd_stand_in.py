"""A stand-in for adbd, the daemon of an Android board: it speaks the device's side of adb's
protocol over TCP.

    python adbd_stand_in.py PORT_FILE [--state device|unauthorized|silent] [--model NAME]
    [--without-shell-v2]

It runs the commands of a host on this machine, with the environment that it was started with, and
writes each service that it is asked for to stderr. The protocol is documented in the Android
sources (packages/modules/adb: protocol.txt, SERVICES.TXT, SYNC.TXT). What it does not have: USB,
TLS, delayed acknowledgements, compression, terminals, and an Android system (SELinux, bionic,
another user for each app).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = (
    int.from_bytes(name, "little")
    for name in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE")
)
TOKEN, SIGNATURE, PUBLIC_KEY = 1, 2, 3
VERSION = 0x01000001  # without checksums
MOST_BYTES = 1 << 18
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = 0, 1, 2, 3, 4
PIECE = 1 << 16


class Gone(Exception):
    """The host has closed the stream or the connection."""


class Stream:
    """One service of a connection: bytes to and from the host, each message acknowledged before the
    next.
    """

    def __init__(self, connection: Connection, own: int, theirs: int) -> None:
        self._connection, self._own, self._theirs = connection, own, theirs
        self._arrived: queue.Queue[bytes] = queue.Queue()
        self._acknowledged = threading.Semaphore(1)
        self._rest = b""
        self.gone = threading.Event()

    def feed(self, data: bytes) -> None:
        self._arrived.put(data)

    def acknowledge(self) -> None:
        self._acknowledged.release()

    def end(self) -> None:
        """The host has closed it."""
        self.gone.set()
        self._acknowledged.release()
        self._arrived.put(b"")

    def write(self, data: bytes) -> None:
        for begin in range(0, len(data), MOST_BYTES):
            self._acknowledged.acquire()
            if self.gone.is_set():
                raise Gone
            self._connection.send(WRTE, self._own, self._theirs, data[begin : begin + MOST_BYTES])

    def read_some(self) -> bytes:
        """What has arrived; empty at the end. The host may send more once this is taken."""
        if self._rest:
            data, self._rest = self._rest, b""
            return data
        if self.gone.is_set() and self._arrived.empty():
            return b""
        data = self._arrived.get()
        if data:
            self._connection.send(OKAY, self._own, self._theirs)
        return data

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.read_some()
            if not piece:
                raise Gone
            data += piece
        data, self._rest = data[:count], data[count:]
        return data

    def close(self) -> None:
        if not self.gone.is_set():
            self._acknowledged.acquire()  # the host has taken the last message
            self._connection.send(CLSE, self._own, self._theirs)
        self._connection.streams.pop(self._own, None)


class Connection:
    """One host: its greeting, whether it is authorized, and its streams."""

    def __init__(self, sock: socket.socket, options: argparse.Namespace) -> None:
        self._sock, self._options, self._sending = sock, options, threading.Lock()
        self.streams: dict[int, Stream] = {}
        self._count = 0

    def send(self, command: int, first: int, second: int, data: bytes = b"") -> None:
        with self._sending, contextlib.suppress(OSError):
            self._sock.sendall(
                struct.pack("<6I", command, first, second, len(data), 0, command ^ 0xFFFFFFFF)
                + data
            )

    def serve(self) -> None:
        try:
            with contextlib.suppress(OSError, Gone):
                while True:
                    self._take(*self._message())
        finally:
            for stream in list(self.streams.values()):
                stream.end()
            self._sock.close()

    def _message(self) -> tuple[int, int, int, bytes]:
        command, first, second, length, _, magic = struct.unpack("<6I", self._exactly(24))
        assert magic == command ^ 0xFFFFFFFF
        return command, first, second, self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._sock.recv(count - len(data))
            if not piece:
                raise Gone
            data += piece
        return data

    def _take(self, command: int, first: int, second: int, data: bytes) -> None:
        if command == CNXN:
            if self._options.state != "silent":
                self.send(AUTH, TOKEN, 0, os.urandom(20))
        elif command == AUTH and first == SIGNATURE:  # by a key that nobody has allowed yet
            self.send(AUTH, TOKEN, 0, os.urandom(20))
        elif (
            command == AUTH and first == PUBLIC_KEY
        ):  # its user is asked, who answers as `state` says
            if self._options.state == "device":
                self.send(CNXN, VERSION, MOST_BYTES, self._banner())
        elif command == OPEN:
            self._open(first, data.rstrip(b"\0").decode())
        elif stream := self.streams.get(second):
            {OKAY: stream.acknowledge, CLSE: stream.end, WRTE: lambda: stream.feed(data)}[command]()

    def _banner(self) -> bytes:
        name = self._options.model
        features = "cmd,stat_v2" if self._options.without_shell_v2 else "shell_v2,cmd,stat_v2"
        return f"device::ro.product.name={name};ro.product.model={name};ro.product.device={name};features={features}".encode()  # noqa: E501

    def _open(self, theirs: int, service: str) -> None:
        sys.stderr.write(f"{service}\n")
        sys.stderr.flush()
        kind, _, rest = service.partition(":")
        action = SERVICES.get(kind.partition(",")[0])
        if action is None:
            self.send(CLSE, 0, theirs)
            return
        self._count += 1
        stream = Stream(self, self._count, theirs)
        self.streams[self._count] = stream
        self.send(OKAY, self._count, theirs)
        threading.Thread(target=_serve, args=(action, stream, kind, rest), daemon=True).start()


def _serve(
    action: Callable[[Stream, str, str], None], stream: Stream, kind: str, rest: str
) -> None:
    with contextlib.suppress(OSError, Gone):
        action(stream, kind, rest)
    stream.close()


def _started(command: str) -> subprocess.Popen[bytes]:
    shell = os.environ.get("ADBD_SHELL", "/bin/sh")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # adbd's shells lead a session each
    return subprocess.Popen(
        [shell, "-c", command], bufsize=0, start_new_session=True, cwd="/", **pipes
    )  # type: ignore[call-overload,no-any-return]


def _copied(source: object, give: Callable[[bytes], None]) -> threading.Thread:
    def copy() -> None:
        with contextlib.suppress(OSError, Gone, ValueError):
            while piece := os.read(source.fileno(), PIECE):  # type: ignore[attr-defined]
                give(piece)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _shell(stream: Stream, kind: str, command: str) -> None:
    """`shell:` mixes the outputs of a command; `shell,v2:` keeps them apart, in packets, and ends
    with the exit status.
    """
    child = _started(command)
    assert child.stdin and child.stdout and child.stderr
    second = "v2" in kind.split(",")

    def packet(number: int) -> Callable[[bytes], None]:
        return (
            (lambda data: stream.write(struct.pack("<BI", number, len(data)) + data))
            if second
            else stream.write
        )

    outputs = [_copied(child.stdout, packet(STDOUT)), _copied(child.stderr, packet(STDERR))]
    threading.Thread(target=_feed, args=(stream, child, second), daemon=True).start()
    status = child.wait()
    for thread in outputs:
        thread.join()
    if second:
        packet(EXIT)(bytes([status if status >= 0 else 128 - status]))


def _feed(stream: Stream, child: subprocess.Popen[bytes], second: bool) -> None:
    """Give a command what the host types; when the host is gone, close its input and hang up."""
    assert child.stdin
    with contextlib.suppress(OSError, Gone):
        if second:
            for number, data in _packets(stream):
                if number == STDIN:
                    _write_all(child.stdin.fileno(), data)
                elif number == CLOSE_STDIN:
                    child.stdin.close()
        while not second and (piece := stream.read_some()):
            _write_all(child.stdin.fileno(), piece)
    with contextlib.suppress(OSError):
        child.stdin.close()
    if stream.gone.is_set() and child.poll() is None:
        child.send_signal(signal.SIGHUP)


def _packets(stream: Stream) -> Iterator[tuple[int, bytes]]:
    while True:
        number, length = struct.unpack("<BI", stream.read(5))
        yield number, stream.read(length)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync(stream: Stream, _kind: str, _rest: str) -> None:
    """Files: states, listings, and transfers both ways."""
    while True:
        name, length = struct.unpack("<4sI", stream.read(8))
        if name == b"QUIT":
            return
        path = stream.read(length).decode()
        {
            b"STAT": _stat,
            b"STA2": _stat2,
            b"LST2": _stat2,
            b"LIST": _list,
            b"SEND": _receive,
            b"RECV": _send,
        }[name](stream, name, path)


def _stat(stream: Stream, name: bytes, path: str) -> None:
    try:
        found = os.lstat(path)
        stream.write(
            struct.pack(
                "<4s3I", name, found.st_mode, found.st_size & 0xFFFFFFFF, int(found.st_mtime)
            )
        )
    except OSError:
        stream.write(struct.pack("<4s3I", name, 0, 0, 0))


def _stat2(stream: Stream, name: bytes, path: str) -> None:
    try:
        s = Path(path).stat(follow_symlinks=name == b"STA2")
        numbers = (
            s.st_dev,
            s.st_ino,
            s.st_mode,
            s.st_nlink,
            s.st_uid,
            s.st_gid,
            s.st_size,
            int(s.st_atime),
            int(s.st_mtime),
            int(s.st_ctime),
        )
        stream.write(struct.pack("<4sIQQIIIIQqqq", name, 0, *numbers))
    except OSError as error:
        stream.write(struct.pack("<4sIQQIIIIQqqq", name, error.errno or 1, *[0] * 10))


def _list(stream: Stream, _name: bytes, path: str) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(path):
            found = entry.stat(follow_symlinks=False)
            encoded = os.fsencode(entry.name)
            numbers = (found.st_mode, found.st_size & 0xFFFFFFFF, int(found.st_mtime), len(encoded))
            stream.write(struct.pack("<4s4I", b"DENT", *numbers) + encoded)
    stream.write(struct.pack("<4s4I", b"DONE", 0, 0, 0, 0))


def _receive(stream: Stream, _name: bytes, target: str) -> None:
    """A file from the host; its path is followed by its mode."""
    text, _, mode = target.rpartition(",")
    path, error = Path(text), ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(int(mode)) & 0o777)
    except OSError as exc:
        file, error = -1, f"couldn't create file: {exc.strerror}"
    while True:
        name, length = struct.unpack("<4sI", stream.read(8))
        if name == b"DONE":
            break
        data = stream.read(length)
        try:
            if file >= 0 and not error:
                _write_all(file, data)
        except OSError as exc:
            error = f"write failed: {exc.strerror}"
    if file >= 0:
        os.close(file)
    if error:
        stream.write(struct.pack("<4sI", b"FAIL", len(error)) + error.encode())
    else:
        os.utime(path, (length, length))
        stream.write(struct.pack("<4sI", b"OKAY", 0))


def _send(stream: Stream, _name: bytes, path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            while piece := file.read(PIECE):
                stream.write(struct.pack("<4sI", b"DATA", len(piece)) + piece)
        stream.write(struct.pack("<4sI", b"DONE", 0))
    except OSError as exc:
        words = f"open failed: {exc.strerror}".encode()
        stream.write(struct.pack("<4sI", b"FAIL", len(words)) + words)


def _tcp(stream: Stream, _kind: str, port: str) -> None:
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as sock:
        sock.settimeout(None)

        def give() -> None:
            with contextlib.suppress(OSError, Gone):
                while piece := stream.read_some():
                    sock.sendall(piece)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=give, daemon=True).start()
        while piece := sock.recv(PIECE):
            stream.write(piece)


SERVICES: dict[str, Callable[[Stream, str, str], None]] = {
    "shell": _shell,
    "exec": _shell,
    "sync": _sync,
    "tcp": _tcp,
}


def main() -> None:
    """Serve hosts until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port_file", type=Path)
    parser.add_argument("--state", choices=["device", "unauthorized", "silent"], default="device")
    parser.add_argument("--model", default="stand_in")
    parser.add_argument("--without-shell-v2", action="store_true")
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        part = options.port_file.with_suffix(".part")
        part.write_text(str(listener.getsockname()[1]))
        part.rename(options.port_file)
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=Connection(sock, options).serve, daemon=True).start()
            time.sleep(0)


if __name__ == "__main__":
    main()
