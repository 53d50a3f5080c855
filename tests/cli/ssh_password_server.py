"""A real SSH server that takes passwords, or asks questions, of us: the user that runs the
tests.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import ssh_server
from ssh_server import SshServer

PASSWORD = "Grüße, board"
PASSWORDS = "PermitRootLogin yes\nPasswordAuthentication yes\nPubkeyAuthentication no\n"
QUESTIONS = (
    "PermitRootLogin yes\nKbdInteractiveAuthentication yes\nUsePAM yes\nPubkeyAuthentication no\n"
)
KEY_AND_PASSWORD = (
    "PermitRootLogin yes\nPasswordAuthentication yes\nAuthenticationMethods publickey,password\n"
)
# The users' passwords are those of a file of ours, in a mount namespace of the server's own:
# nothing is left of them.
_WITH_SHADOW = 'mount --bind "$0" /etc/shadow && exec /usr/sbin/sshd "$@"'


@contextlib.contextmanager
def password_server(folder: Path, mark: str, first: str) -> Iterator[SshServer]:
    """The server, for as long as the block lasts. `first` goes before its other options, and so
    holds instead of them.
    """
    if (
        os.getuid() != 0
        or subprocess.run(
            ["unshare", "--mount", "true"], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("only root, with namespaces, can give a server passwords of its own")
    folder.mkdir()
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", "-stdin"],
        input=PASSWORD,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (folder / "shadow").write_text(f"root:{hashed}:20000:0:99999:7:::\nsshd:!:20000::::::\n")
    (folder / "shadow").chmod(0o600)
    program = folder / "sshd"
    program.write_text(
        f"#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(_WITH_SHADOW)} "
        f'{shlex.quote(str(folder / "shadow"))} "$@"\n'
    )
    program.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssh_server, "SSHD", program)
        patch.setattr(ssh_server, "CONFIG", first + ssh_server.CONFIG)
        with ssh_server.ssh_server(folder / "server", mark, more="") as server:
            yield server
