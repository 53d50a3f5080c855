"""A "board" with a systemd of its own: namespaces in which one is process 1, with an SSH server and
no more. Needs root and systemd.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ssh_server import SSHD, SshServer, prepare
from timeouts import wait_until

SYSTEMD = Path("/lib/systemd/systemd")
USER, USER_ID = "farmer", 4321
TARGETS = (
    "basic",
    "sysinit",
    "shutdown",
    "umount",
    "final",
    "multi-user",
    "default",
    "network-online",
    "sockets",
    "timers",
    "paths",
)
# Everything that it writes to is its own: the units, /run, the users, /home and the control groups.
# It has no logind: a loginctl of ours notes who lingers, and that starts the user's systemd.
INIT = """
set -e
echo $$ >{group}/cgroup.procs
exec unshare --mount --pid --fork --cgroup --mount-proc --kill-child sh -e {folder}/init
"""
PROCESS_1 = """
umount -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for folder in /run /home /etc/systemd/system; do mount -t tmpfs -o mode=755 tmpfs $folder; done
mount --bind {folder}/passwd /etc/passwd
if test -e {folder}/hosts; then mount --bind {folder}/hosts /etc/hosts; fi
cd /etc/systemd/system
for target in {targets}; do echo "[Unit]" >$target.target; done
cat >user.service <<END
[Service]
User={user}
Type=notify
Delegate=yes
Environment=XDG_RUNTIME_DIR=/run/user/{user_id}
ExecStart={systemd} --user
END
cat >user.path <<END
[Path]
PathExists=/run/linger/{user}
END
mkdir -p /run/sshd /run/keys /run/bin /run/linger /run/user/{user_id} /home/{user} /home/board multi-user.target.wants
ln -s ../user.path multi-user.target.wants
cat >/run/bin/loginctl <<"END"
#!/bin/sh
case $1 in enable-linger) touch /run/linger/{user};; disable-linger) rm /run/linger/{user};; *) exit 1;; esac
END
chmod +x /run/bin/loginctl
cp {folder}/authorized_keys /run/keys
chown {user_id} /home/{user} /home/board /run/user/{user_id} /run/linger
chmod 700 /run/user/{user_id}
cd /
{sshd} -E {folder}/sshd.log -f {folder}/sshd_config
export container=farm SYSTEMD_UNIT_PATH=/etc/systemd/system
exec {systemd} --system --unit=multi-user.target --log-target=console --show-status=no
"""  # noqa: E501


@dataclass
class SystemdBoard(SshServer):
    """Its processes are those of a process namespace, which `cut` ends.

    `prefix` are the first words of a command in its network, if that is not ours.
    """

    prefix: tuple[str, ...] = ()
    group: Path = field(init=False)

    def start(self) -> None:
        self.group = _cgroups() / f"farm-{self.mark}"
        self.group.mkdir(exist_ok=True)
        (self.folder / "passwd").write_text(
            f"{Path('/etc/passwd').read_text()}{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/sh\n"
            "pi:x:0:0::/home/board:/bin/sh\n"  # as root, by another name
        )
        names = {
            "user": USER,
            "user_id": USER_ID,
            "systemd": SYSTEMD,
            "sshd": SSHD,
            "folder": self.folder,
            "group": self.group,
        }
        with (self.folder / "systemd.log").open("ab") as log:
            (self.folder / "init").write_text(PROCESS_1.format(targets=" ".join(TARGETS), **names))
            script = INIT.format(**names)
            self.child = subprocess.Popen(
                [*self.prefix, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wait(self.folder / "systemd.log")

    @property
    def data(self) -> Path:
        return Path(f"/proc/{self._first}/root/home/board")

    @property
    def _first(self) -> str:
        """Its process 1, as we number it."""
        return Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()[0]

    @property
    def user_url(self) -> str:
        return f"ssh://{USER}@127.0.0.1:{self.port}"

    def inside(self, *words: str) -> str:
        """What a command prints that runs there as root."""
        command = ["nsenter", "-t", self._first, "-m", "-p", "-C", "--", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def cut(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        wait_until(self._is_empty, "the end of its processes")

    def _is_empty(self) -> bool:
        """Whether its control groups could be removed, which those of living processes cannot."""
        for folder in [
            *sorted((path for path in self.group.rglob("*") if path.is_dir()), reverse=True),
            self.group,
        ]:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not self.group.exists()


def _cgroups() -> Path:
    """Where control groups of the second version are."""
    return next(
        (
            path
            for path in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"))
            if (path / "cgroup.procs").exists()
        ),
        Path(),
    )


def _is_possible() -> bool:
    """Whether we may make namespaces and control groups here."""
    trial = ["unshare", "--mount", "--pid", "--fork", "--cgroup", "--mount-proc", "true"]
    if os.getuid() or not (SYSTEMD.exists() and _cgroups().name and os.access(_cgroups(), os.W_OK)):
        return False
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def systemd_board(
    folder: Path, mark: str, prefix: tuple[str, ...] = (), address: str = "127.0.0.1"
) -> Iterator[SystemdBoard]:
    """The board, for as long as the block lasts; in a network of its own, with an address there."""
    if not _is_possible():
        pytest.skip("a systemd of one's own needs root, systemd and control groups")
    port = prepare(
        folder,
        mark,
        "AllowTcpForwarding no\nAuthorizedKeysFile /run/keys/authorized_keys\n",
        Path("/home/board"),
    )
    config = folder / "sshd_config"
    # The users of the board have home folders of their own.
    path = f"SetEnv PATH=/run/bin:{os.defpath}"
    environment = re.sub("SetEnv HOME=[^ ]*", path, config.read_text())
    config.write_text(environment.replace("ListenAddress 127.0.0.1", f"ListenAddress {address}"))
    board = SystemdBoard(folder, port, mark, address, prefix)
    board.trust()
    try:
        board.start()
        yield board
    finally:
        board.cut()
