"""A real SSH server on a high port of loopback, and a home folder for its client: a "board" that is
this machine.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from timeouts import LIMIT_S

from farm.processes.deadline import Deadline

SSHD = Path("/usr/sbin/sshd")
CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv HOME={folder}/board XDG_DATA_HOME={data} FARM_TEST={mark}
"""


@dataclass
class SshServer:
    """The server. `data` is the board's ~/.local/share, and its home folder: no start-up file of
    this machine's user runs. Every process of the board carries `mark` in its environment.
    """

    folder: Path
    port: int
    mark: str
    address: str = "127.0.0.1"
    child: subprocess.Popen[bytes] = field(init=False)

    @property
    def data(self) -> Path:
        return self.folder / "board"

    @property
    def kept(self) -> Path:
        """The folder that farm has on the board."""
        return self.data / "farm"

    @property
    def url(self) -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"

    @property
    def home(self) -> Path:
        """Our side's home folder."""
        return self.folder / "home"

    def trust(self) -> None:
        """Vouch for the server's host key."""
        self.known_hosts.write_text(
            f"[{self.address}]:{self.port} {(self.folder / 'host_key.pub').read_text()}"
        )

    @property
    def known_hosts(self) -> Path:
        return self.home / ".ssh" / "known_hosts"

    def agents(self) -> list[Path]:
        return sorted(self.kept.glob("agents/*/farm-agent"))

    def connections(self) -> list[int]:
        """The server's processes, one or two for a connection."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(status.read_text().rpartition(")")[2].split()[1]) == self.child.pid:
                    found.append(int(status.parent.name))
        return found

    def start(self) -> None:
        """Start it, for the first time or after a cut, and wait until it listens."""
        with (self.folder / "sshd.log").open("ab") as log:
            command = [SSHD, "-D", "-e", "-f", self.folder / "sshd_config"]
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait(self.folder / "sshd.log")

    def wait(self, log: Path) -> None:
        """Until it listens."""
        deadline = Deadline(LIMIT_S)
        while True:
            try:
                socket.create_connection((self.address, self.port), timeout=1).close()
                return
            except OSError:
                assert self.child.poll() is None and not deadline.expired, log.read_text()
                time.sleep(0.02)

    def configure(self, line: str = "", **environment: str) -> None:
        """A line of its configuration, and variables for every process of the board, from now
        on.
        """
        file = self.folder / "sshd_config"
        words = "".join(f" {name}={value}" for name, value in environment.items())
        file.write_text(
            f"{line}\n"
            + re.sub(r"^(SetEnv .*)$", rf"\1{words}", file.read_text(), flags=re.MULTILINE)
        )
        self.cut()
        self.start()

    def cut(self) -> None:
        """Kill the server and what serves its connections; what they started is left to itself."""
        for pid in [*self.connections(), self.child.pid]:
            for one in [*_children_named(pid, b"sshd"), pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
        self.child.wait()


def _children_named(pid: int, name: bytes) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [
                child
                for child in map(int, file.read_text().split())
                if Path(f"/proc/{child}/cmdline").read_bytes().startswith(name)
            ]
    return found


def keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


def prepare(folder: Path, mark: str, more: str, data: Path) -> int:
    """A server's keys and configuration, those of its client, and a free port. Skips where there is
    no sshd.
    """
    if not SSHD.exists():
        pytest.skip("no SSH server is installed: sudo apt-get install openssh-server")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # it wants that as root
    (folder / "home" / ".ssh").mkdir(parents=True)
    (folder / "board").mkdir()
    keygen(folder / "host_key")
    keygen(folder / "home" / ".ssh" / "id_ed25519")
    (folder / "authorized_keys").write_text((folder / "home/.ssh/id_ed25519.pub").read_text())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    # Of a keyword that comes twice, sshd takes the first.
    (folder / "sshd_config").write_text(
        more + CONFIG.format(port=port, folder=folder, data=data, mark=mark)
    )
    return port


@contextlib.contextmanager
def ssh_server(
    folder: Path, mark: str, more: str = "AllowTcpForwarding no\nDisableForwarding yes\n"
) -> Iterator[SshServer]:
    """The server, for as long as the block lasts; its client's key is accepted, its host key
    vouched for. Skips where there is no sshd.
    """
    server = SshServer(folder, prepare(folder, mark, more, folder / "board"), mark)
    server.trust()
    server.start()
    try:
        yield server
    finally:
        server.cut()
