"""The machines of the tutorial of a lab, each with a network and files of its own: the lab's
server and a desk. The board is a SystemdBoard.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from network_namespaces import Machine
from ssh_server import SSHD, keygen
from timeouts import LIMIT_S, wait_until

# An account of root's, so that it may read the Python under test, wherever that is
ACCOUNT = "{user}:x:0:0::/home/{user}:/bin/sh\n"
SSHD_CONFIG = """Include /etc/ssh/sshd_config.d/*.conf
HostKey /etc/ssh/host_key
PidFile /run/farm-sshd.pid
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
"""
FILES = """
set -e
mount --make-rprivate /
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/passwd /etc/passwd
mount -t tmpfs -o mode=755 tmpfs /home
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /etc/ssh
mkdir -p /run/sshd /etc/ssh/sshd_config.d /home/{user}/env/bin
cp {folder}/host_key /etc/ssh
cp {folder}/sshd_config /etc/ssh
ln -s {program} /home/{user}/env/bin/farm
touch {folder}/ready
exec sleep infinity
"""


@dataclass
class Host:
    """A machine of somebody's, whose processes end with it."""

    machine: Machine
    user: str
    folder: Path
    environment: dict[str, str]
    holder: subprocess.Popen[bytes] = field(init=False)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, hosts: str) -> None:
        """Make its files; `hosts` is its /etc/hosts."""
        self.folder.mkdir()
        keygen(self.folder / "host_key")
        (self.folder / "hosts").write_text(hosts)
        own = ACCOUNT.format(user=self.user)
        (self.folder / "passwd").write_text(own + Path("/etc/passwd").read_text())
        (self.folder / "sshd_config").write_text(SSHD_CONFIG)
        program = Path(sys.executable).with_name("farm")
        script = FILES.format(folder=self.folder, user=self.user, program=program)
        self.holder = subprocess.Popen([*self.machine.prefix, "sh", "-c", script])
        wait_until((self.folder / "ready").exists, "the files of a machine")

    def words(self, *command: str) -> list[str]:
        """The command line that runs a command there, at home."""
        there = ["nsenter", "-t", str(self.holder.pid), "-m", "-n", "--"]
        return [*there, "sh", "-c", f'cd /home/{self.user}; exec "$@"', "sh", *command]

    @property
    def variables(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"HOME": f"/home/{self.user}", "PATH": path, "SSH_AUTH_SOCK": ""}
        return {**os.environ, **own, **self.environment}

    def run(self, command: str) -> str:
        """What a line of shell prints there; it has to succeed."""
        done = subprocess.run(
            self.words("sh", "-c", command),
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def begin(self, command: str) -> subprocess.Popen[str]:
        """A program that goes on there."""
        log = (self.folder / f"log-{len(self.started)}").open("w")
        child = subprocess.Popen(
            self.words(*shlex.split(command)),
            env=self.variables,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        self.started.append(child)
        return child

    def said(self, child: subprocess.Popen[str]) -> str:
        return (self.folder / f"log-{self.started.index(child)}").read_text()

    def write(self, name: str, text: str) -> None:
        """A file in its home folder."""
        (self.folder / "file").write_text(text)
        self.run(f"mkdir -p $(dirname {name}) && cat {self.folder / 'file'} >{name}")

    def serve_ssh(self) -> None:
        self.run(f"{SSHD} -E {self.folder / 'sshd.log'}")

    def end(self) -> None:
        for child in self.started:
            if child.poll() is None:
                child.terminate()
                child.wait(LIMIT_S)
            with contextlib.suppress(ProcessLookupError):  # TVM's server leaves its worker behind
                os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(AssertionError):
            self.run("kill $(cat /run/farm-sshd.pid)")
        self.holder.kill()
        self.holder.wait()


@contextlib.contextmanager
def host(
    machine: Machine, user: str, folder: Path, hosts: str, **environment: str
) -> Iterator[Host]:
    """A machine, for as long as the block lasts."""
    one = Host(machine, user, folder, environment)
    one.start(hosts)
    try:
        yield one
    finally:
        one.end()
