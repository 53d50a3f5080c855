"""A lab with a page, and a client of its HTTP: over loopback or the Unix socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab_process import Lab, lab

PAGE = re.compile(r"page on http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class _OfUnix(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("lab")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


@dataclass
class Paged:
    lab: Lab
    cookie: str = ""

    @property
    def port(self) -> int:
        return int(PAGE.findall(self.lab.said)[-1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, unix: bool = False, **headers: str
    ) -> Answer:
        connection = (
            _OfUnix(self.lab.folder / "lab" / "http.sock")
            if unix
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        )
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie and not unix:
            sent.setdefault("Cookie", self.cookie)
        data = None
        if body is not None:
            data = body if isinstance(body, str) else json.dumps(body)
            sent.setdefault("Content-Type", "application/json")
        with contextlib.closing(connection):
            connection.request(method, path, data, sent)
            found = connection.getresponse()
            return Answer(
                found.status,
                {name.lower(): value for name, value in found.getheaders()},
                found.read(),
            )

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def link(self) -> str:
        """The link of `farm lab page`."""
        with self.lab.client() as client:
            return str(client.ask("page")["url"])

    def enter(self) -> None:
        """Be known from now on, as a browser is."""
        answer = self.get(self.link().removeprefix(self.url))
        assert answer.status == 303, answer.text
        self.cookie = answer.headers["set-cookie"].partition(";")[0]


class Events:
    """A reader of a stream of events."""

    def __init__(self, port: int, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._connection.request(
            "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()

    def next(self) -> dict[str, str]:
        """The next event; comments and the time to wait are passed over."""
        found: dict[str, str] = {}
        while line := self._answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if line == "\n":
                if "event" in found:
                    return found
                found = {}
            else:
                found[name] = value
        raise EOFError

    def close(self) -> None:
        self._connection.close()
        self._answer.close()


@contextlib.contextmanager
def paged(*options: str, inventory: str = "") -> Iterator[Paged]:
    """A lab with a page."""
    with lab("--page", "0", *options, inventory=inventory) as one:
        yield Paged(one)
