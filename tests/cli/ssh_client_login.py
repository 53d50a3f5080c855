"""A client of an SSH server, logged in within the test's own process, and the user who answers its
questions.
"""

from __future__ import annotations

import pytest
from ssh_server import SshServer

from farm.errors import DeviceError
from farm.processes.deadline import Deadline
from farm.prompts import Ask, Question, answer_nothing
from farm.transports.ssh.config import resolve_hops
from farm.transports.ssh.connect import log_in_through_hops

# A ProxyCommand: its standard streams to a host and a port, and back.
RELAY = """
import os, select, socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
ways = {0: sock.fileno(), sock.fileno(): 1}
while True:
    for source in select.select(list(ways), [], [])[0]:
        if not (data := os.read(source, 65536)):
            sys.exit()
        while data:
            data = data[os.write(ways[source], data):]
"""


class User:
    """Who answers from a list, and remembers what was asked."""

    def __init__(self, *answers: str) -> None:
        self.asked: list[Question] = []
        self._answers = list(answers)

    def __call__(self, question: Question) -> str | None:
        self.asked.append(question)
        return self._answers.pop(0) if self._answers else None


def log_in(server: SshServer, ask: Ask = answer_nothing, url: str = "") -> str:
    """What the server runs for us once we are logged in."""
    with log_in_through_hops("board", resolve_hops(url or server.url), Deadline(30), ask) as client:
        _, out, _ = client.exec_command("echo hello")
        return str(out.read().decode())


def fails(server: SshServer, words: str, ask: Ask = answer_nothing, url: str = "") -> DeviceError:
    with pytest.raises(DeviceError, match=words) as caught:
        log_in(server, ask, url)
    return caught.value


def configure(server: SshServer, text: str) -> None:
    (server.home / ".ssh" / "config").write_text(text)
