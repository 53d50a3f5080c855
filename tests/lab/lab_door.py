"""A lab's door behind a real sshd, with users who have keys of their own, and boards that echo."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accepting import accepting
from lab_process import Board, Lab, lab, speaking
from ssh_server import SshServer, keygen, ssh_server

from farm.rpc.handshake import MAGIC, MISMATCH


@dataclass
class Door:
    """The lab, its sshd, and the keys of its users by name."""

    lab: Lab
    sshd: SshServer

    @property
    def keys(self) -> Path:
        return self.sshd.folder / "authorized_keys"

    def key_of(self, user: str) -> Path:
        path = self.sshd.folder / f"key-{user}"
        if not path.exists():
            keygen(path)
        return path

    def add(self, user: str, *words: str) -> None:
        public = f"{self.key_of(user)}.pub"
        done = self.tried("add", user, "--key", public, *words)
        assert done.returncode == 0, done.stderr

    def tried(self, do: str, user: str, *words: str) -> subprocess.CompletedProcess[str]:
        """What farm lab user does, with the sshd's configuration and keys."""
        files = ["--keys", str(self.keys)]
        files += ["--sshd-config", str(self.sshd.folder / "sshd_config")] if do == "add" else []
        return self.lab.farm("user", do, user, *files, *words)

    def command(self, user: str, *words: str) -> list[str]:
        """The command line of OpenSSH's own client, as a user."""
        options = [
            f"IdentityFile={self.key_of(user)}",
            "IdentitiesOnly=yes",
            "BatchMode=yes",
            f"UserKnownHostsFile={self.sshd.known_hosts}",
            "ExitOnForwardFailure=yes",
        ]
        place = ["-p", str(self.sshd.port), self.sshd.url.split("/")[2].partition(":")[0]]
        return ["ssh", "-F", "none", *(f"-o{option}" for option in options), *place, *words]

    def ssh(self, user: str, *words: str, said: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = self.command(user, *words)
        return subprocess.run(command, input=said, capture_output=True, timeout=60)

    def ask(self, by: str, **question: Any) -> Any:
        """What the server answers a user who asks one thing through the door."""
        done = self.ssh(by, "api", said=json.dumps(question).encode() + b"\n")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def lease(self, user: str, kind: str = "pi5") -> int:
        answer = self.ask(user, do="request", kind=kind, for_s=600.0)
        assert answer["ok"]["lease"]["state"] == "active", answer
        return int(answer["ok"]["lease"]["lease"])

    @contextlib.contextmanager
    def session(self, user: str, lease: int) -> Iterator[Session]:
        """A session with a board of a lease."""
        child = subprocess.Popen(
            self.command(user, f"board {lease}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        try:
            yield Session(child)
        finally:
            child.kill()
            child.wait()


class Session:
    """A stream of OpenSSH's client: the line about the board, then bytes."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self.head = json.loads(self._line())

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            piece = self.out.read(1)
            assert piece, f"no line: {line!r} {self.words()}"
            line += piece
        return line

    @property
    def out(self) -> Any:
        return self.child.stdout

    def say(self, data: bytes) -> None:
        assert self.child.stdin
        self.child.stdin.write(data)

    def hear(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (piece := self.out.read(count - len(data))):
            data += piece
        return data

    def words(self) -> str:
        """Its last words, once it has ended."""
        assert self.child.stderr
        self.child.wait(60)
        return self.child.stderr.read().decode()


class Echo:
    """A board whose server says back what it hears. `serving` counts its open connections.

    To TVM's greeting it says that the key is wrong: so the lab knows that it is a board.
    """

    def __init__(self, lab: Lab, kind: str = "pi5") -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.board = Board(lab.port, kind, self.listener.getsockname()[1])
        self.serving = 0
        self.connections = 0
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.listener)
        self._stack.enter_context(accepting(self.listener, self._accept))
        self._stack.enter_context(speaking(self.board))

    def close(self) -> None:
        """Accept no more."""
        self._stack.close()

    def _accept(self, connection: socket.socket) -> None:
        self.serving += 1
        self.connections += 1
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            begin = connection.recv(4, socket.MSG_PEEK)
            if begin == struct.pack("<i", MAGIC):
                connection.sendall(struct.pack("<i", MISMATCH))
                self.connections -= 1
                self.serving -= 1
                return
            while data := connection.recv(1 << 16):
                connection.sendall(data)
        self.serving -= 1
        with contextlib.suppress(OSError):
            self.board.offer()


SETTINGS = "AllowStreamLocalForwarding no\nClientAliveInterval 8\nSubsystem sftp internal-sftp\n"


@contextlib.contextmanager
def door(folder: Path, more: str = SETTINGS, **options: Any) -> Iterator[Door]:
    """A lab with a door, for as long as the block lasts."""
    with lab(**options) as one, ssh_server(folder, "door", more) as sshd:
        found = Door(one, sshd)
        found.keys.write_text("")
        yield found
