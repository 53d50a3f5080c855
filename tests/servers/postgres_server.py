"""A PostgreSQL server of a test's own: a cluster in a folder, on a port of loopback, run by an
unprivileged user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

USERS = ("postgres", "nobody")


def binaries() -> Path | None:
    """The folder of the newest server's programs; Debian keeps them off the path."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    if found:
        return found[-1].parent
    known = shutil.which("initdb")
    return Path(known).resolve().parent if known else None


@dataclass
class PostgresServer:
    """`url` is its database's, for the role that may do everything there."""

    folder: Path
    bin: Path
    port: int
    user: str | None  # to run it as, where we are root, as whom it refuses to run

    @property
    def url(self) -> str:
        return f"postgresql://farm@127.0.0.1:{self.port}/farm"

    def start(self) -> None:
        self._control(
            "start",
            "-o",
            f"-p {self.port} -h 127.0.0.1 -k {self.folder}",
            "-l",
            str(self.folder / "log"),
        )

    def stop(self, how: str = "fast") -> None:
        self._control("stop", "-m", how)

    def restart(self, how: str = "fast") -> None:
        self.stop(how)
        self.start()

    def sql(self, text: str, database: str = "farm") -> str:
        command = [
            str(self.bin / "psql"),
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "farm",
            "-d",
            database,
            "-Atc",
            text,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def _control(self, verb: str, *more: str) -> None:
        self.call("pg_ctl", verb, "-D", str(self.folder / "data"), "-w", "-t", "60", *more)

    def call(self, program: str, *arguments: str) -> None:
        as_user = (
            {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid, "extra_groups": []}
            if self.user
            else {}
        )
        streams = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        subprocess.run(
            [str(self.bin / program), *arguments], check=True, cwd=self.folder, **streams, **as_user
        )  # type: ignore[call-overload]


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server, for as long as the block lasts, in a folder that its user can reach."""
    with tempfile.TemporaryDirectory(
        prefix="farm-pg-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        yield from _served(Path(folder))


def _served(folder: Path) -> Iterator[PostgresServer]:
    found = binaries()
    assert found
    user = next(name for name in USERS if _there(name)) if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        server = PostgresServer(folder, found, trial.getsockname()[1], user)
    server.call(
        "initdb",
        "-D",
        str(folder / "data"),
        "-U",
        "farm",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
    )
    server.start()
    try:
        server.sql("CREATE DATABASE farm", "postgres")
        yield server
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            server.stop("immediate")
        deadline = time.monotonic() + 10
        while (folder / "data" / "postmaster.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)


def _there(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
