"""Logging in with whatever people have, and to whatever they have configured: a real SSH server, a
real SSH agent, real certificates.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_client_login import RELAY, User, configure, fails, log_in
from ssh_password_server import KEY_AND_PASSWORD, PASSWORD, PASSWORDS, password_server
from ssh_server import SshServer, ssh_server
from timeouts import LIMIT_S, patient, wait_until

from farm.errors import DeadlineError
from farm.processes.cancellation import Cancellation
from farm.processes.deadline import Deadline
from farm.transports.ssh import connect
from farm.transports.ssh.config import resolve_hops
from farm.transports.ssh.connect import log_in_through_hops


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    """A server that accepts the key in our home folder; there is no SSH agent."""
    (tmp_path / "ssh").mkdir()
    with ssh_server(tmp_path / "ssh", uuid.uuid4().hex, more="TrustedUserCAKeys none\n") as server:
        at_home(monkeypatch, server)
        yield server


def at_home(monkeypatch: pytest.MonkeyPatch, server: SshServer) -> None:
    monkeypatch.setenv("HOME", str(server.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An SSH agent without keys."""
    child = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.PIPE)
    assert child.stdout and child.stdout.readline()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    yield
    child.terminate()
    child.wait()
    child.stdout.close()


def key(server: SshServer, *options: str, name: str = "id_ed25519") -> Path:
    """A new key, the only one that the server accepts."""
    path = server.home / ".ssh" / name
    for old in (path, path.with_name(f"{name}.pub")):
        old.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-f", path, *(options or ("-t", "ed25519", "-N", ""))], check=True
    )
    (server.folder / "authorized_keys").write_text(path.with_name(f"{name}.pub").read_text())
    return path


def certify(server: SshServer, path: Path) -> None:
    """The server accepts the key for its certificate only."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", server.folder / "authority"],
        check=True,
    )
    user = server.url.partition("//")[2].partition("@")[0]
    subprocess.run(
        [
            "ssh-keygen",
            "-q",
            "-s",
            server.folder / "authority",
            "-I",
            "us",
            "-n",
            user,
            f"{path}.pub",
        ],
        check=True,
    )
    (server.folder / "authorized_keys").write_text(
        f"cert-authority {(server.folder / 'authority.pub').read_text()}"
    )


KINDS = [
    ("ed25519", "id_ed25519", ()),
    ("ecdsa", "id_ecdsa", ()),
    ("rsa", "id_rsa", ("-b", "2048")),
    ("rsa", "id_rsa", ("-m", "PEM")),
]


@pytest.mark.parametrize(
    ("kind", "name", "more"), KINDS, ids=["ed25519", "ecdsa", "rsa", "rsa in PEM"]
)
def test_keys_of_every_kind_log_in_also_locked_ones(
    server: SshServer, kind: str, name: str, more: tuple[str, ...]
) -> None:
    (server.home / ".ssh" / "id_ed25519").unlink()
    path = key(server, "-t", kind, "-N", "", *more, name=name)
    assert log_in(server) == "hello\n"
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "open it", "-f", path], check=True)
    user = User("wrong", "open it")
    assert log_in(server, user) == "hello\n"
    assert [str(path) in question.text for question in user.asked] == [True, True]
    assert [question.wrong for question in user.asked] == [None, "wrong"]
    assert "ssh-add" in fails(server, "locked by a passphrase").fix


def test_the_agent_logs_in(server: SshServer, agent: None) -> None:
    path = key(server)
    subprocess.run(["ssh-add", "-q", path], check=True)
    path.unlink()
    assert log_in(server) == "hello\n"
    subprocess.run(["ssh-add", "-q", "-D"], check=True)
    assert "ssh-keygen" in fails(server, "there is no key to log in").fix


def test_an_agent_elsewhere_is_found(
    server: SshServer, agent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = key(server)
    subprocess.run(["ssh-add", "-q", path], check=True)
    path.unlink()
    configure(server, f"IdentityAgent {os.environ['SSH_AUTH_SOCK']}\n")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    assert log_in(server) == "hello\n"
    configure(server, "IdentityAgent none\n")
    fails(server, "there is no key to log in")


def test_with_many_keys_in_the_agent_the_one_that_was_named_comes_first(
    server: SshServer, agent: None
) -> None:
    for number in range(8):  # more than the server has patience with
        subprocess.run(["ssh-add", "-q", key(server, name=f"other{number}")], check=True)
    path = key(server, "-t", "ed25519", "-N", "locked", name="the-one")
    unlocked = server.folder / "unlocked"
    unlocked.write_bytes(path.read_bytes())
    unlocked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "locked", "-N", "", "-f", unlocked], check=True)
    subprocess.run(["ssh-add", "-q", unlocked], check=True)
    configure(server, "IdentityFile ~/.ssh/the-one\nIdentitiesOnly yes\n")
    user = User()
    assert log_in(server, user) == "hello\n"
    assert user.asked == []
    other = (server.home / ".ssh" / "other0.pub").read_text()
    (server.folder / "authorized_keys").write_text(other)
    assert "none of 1 keys" in fails(server, "refuses the login").why, "only those are offered"
    configure(server, "IdentityFile ~/.ssh/the-one\n")
    assert log_in(server) == "hello\n"


def test_a_key_that_the_agent_may_not_use_is_told(server: SshServer, agent: None) -> None:
    path = key(server)
    (server.folder / "no").write_text("#!/bin/sh\nexit 1\n")
    (server.folder / "no").chmod(0o700)
    subprocess.run(
        ["ssh-add", "-q", "-c", path], check=True
    )  # to be confirmed each time, by a program that the agent does not find
    path.unlink()
    assert "cannot be used for signing" in fails(server, "refuses the login").why
    key(server)
    assert log_in(server) == "hello\n"


@pytest.mark.parametrize("holder", ["file", "agent"])
def test_a_certificate_logs_in(server: SshServer, agent: None, holder: str) -> None:
    path = key(server)
    certify(server, path)
    if holder == "agent":
        subprocess.run(["ssh-add", "-q", path], check=True)
        path.unlink()
    assert log_in(server) == "hello\n"


def test_a_certificate_elsewhere_can_be_named(server: SshServer) -> None:
    path = key(server)
    certify(server, path)
    path.with_name("id_ed25519-cert.pub").rename(server.folder / "certificate")
    fails(server, "refuses the login")
    configure(server, f"CertificateFile {server.folder}/certificate\n")
    assert log_in(server) == "hello\n"


def test_what_is_no_key_is_named_where_nothing_else_helps(server: SshServer) -> None:
    (server.home / ".ssh" / "id_ed25519").write_text("no key")
    assert "id_ed25519: it cannot be read" in fails(server, "there is no key").why


def test_in_batch_mode_nothing_is_asked(server: SshServer) -> None:
    key(server, "-t", "ed25519", "-N", "locked")
    configure(server, "BatchMode yes\n")
    user = User("locked")
    fails(server, "locked by a passphrase", user)
    assert user.asked == []


def test_a_server_may_want_a_key_and_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with password_server(tmp_path / "ssh", uuid.uuid4().hex, KEY_AND_PASSWORD) as server:
        at_home(monkeypatch, server)
        user = User("wrong", PASSWORD)
        assert log_in(server, user) == "hello\n"
        assert len(user.asked) == 2
        fails(server, "wants more than a key")


def test_a_server_that_hangs_up_on_a_wrong_password_is_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with password_server(
        tmp_path / "ssh", uuid.uuid4().hex, f"MaxAuthTries 1\n{PASSWORDS}"
    ) as server:
        at_home(monkeypatch, server)
        assert log_in(server, User("wrong", PASSWORD)) == "hello\n"
        user = User(*["wrong"] * 9)
        fails(server, "refuses the password", user)
        assert len(user.asked) == 3


def test_a_password_that_is_switched_off_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with password_server(tmp_path / "ssh", uuid.uuid4().hex, PASSWORDS) as server:
        at_home(monkeypatch, server)
        configure(server, "PasswordAuthentication no\n")
        user = User(PASSWORD)
        fails(server, "does not accept keys", user)
        assert user.asked == []


def test_a_board_is_reached_by_a_command(server: SshServer) -> None:
    (server.folder / "relay").write_text(RELAY)
    relay = f"{shlex.quote(sys.executable)} {shlex.quote(str(server.folder / 'relay'))} %h %p"
    configure(
        server, f"Host behind\n HostName 127.0.0.1\n Port {server.port}\n ProxyCommand {relay}\n"
    )
    assert log_in(server, url="ssh://behind") == "hello\n"
    configure(server, "Host behind\n ProxyCommand false\n")
    fails(server, "the SSH connection to .* broke|no SSH server", url="ssh://behind")


def test_what_a_proxy_command_says_stands_in_the_error_and_not_on_the_terminal(
    server: SshServer, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(server, "Host behind\n ProxyCommand echo no bastion today >&2\n")
    assert (
        "its ProxyCommand: no bastion today"
        in fails(server, "the SSH connection to .* broke|no SSH server", url="ssh://behind").why
    )
    assert "bastion" not in capfd.readouterr().err


def test_a_proxy_command_ends_with_the_work_of_its_thread(
    server: SshServer, tmp_path: Path
) -> None:
    """As when its job's deadline is over: the program would go on at the end of its input."""
    program = (
        "import os, pathlib, time; pathlib.Path('part').write_text(str(os.getpid())); "
        "os.rename('part', 'pid'); time.sleep(300)"
    )
    (tmp_path / "forward").write_text(f"import os; os.chdir({str(tmp_path)!r})\n{program}\n")
    configure(
        server, f"Host behind\n ProxyCommand {shlex.quote(sys.executable)} {tmp_path}/forward\n"
    )
    work, caught = Cancellation(), list[BaseException]()

    def wait() -> None:
        with work.in_this_thread():
            try:
                log_in(server, url="ssh://behind")
            except Exception as error:
                caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until((tmp_path / "pid").exists, "the program runs", patient(20))
    process = Path("/proc") / (tmp_path / "pid").read_text().strip()
    assert process.exists()
    work.cancel()
    thread.join(patient(20))
    assert not thread.is_alive() and caught
    assert not process.exists()


def test_algorithms_are_those_of_the_configuration(server: SshServer) -> None:
    configure(server, "Ciphers aes256-ctr\nMACs hmac-sha2-512\n")
    with log_in_through_hops("board", resolve_hops(server.url), Deadline(30)) as client:
        transport = client.get_transport()
        assert transport and transport.local_cipher == "aes256-ctr"
    configure(server, "Ciphers ^aes192-ctr\nHostKeyAlgorithms -ecdsa*\n")
    assert log_in(server) == "hello\n"
    configure(server, "Ciphers blowfish\n")
    assert "aes" in fails(server, "algorithms that farm has not").fix


def test_a_server_is_waited_for_as_long_as_the_configuration_says(
    server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "_STEP_S", 60.0)
    configure(server, "ConnectTimeout 1\n")
    with socket.socket() as full, contextlib.ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # what is beyond its queue is not answered
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        hops = resolve_hops(f"ssh://127.0.0.1:{full.getsockname()[1]}")
        begin = time.monotonic()
        with (
            pytest.raises(DeadlineError, match="does not answer"),
            log_in_through_hops("board", hops, Deadline(LIMIT_S)),
        ):
            pass
        assert time.monotonic() - begin < 30


@contextlib.contextmanager
def gate(tmp_path: Path, server: SshServer) -> Iterator[SshServer]:
    """A jump host that accepts the same key, and the board behind it by the name `inner`."""
    (tmp_path / "gate").mkdir()
    with ssh_server(tmp_path / "gate", server.mark, more="") as gate:
        (gate.folder / "authorized_keys").write_text(
            (server.folder / "authorized_keys").read_text()
        )
        configure(
            server,
            (
                f"Host inner\n HostName 127.0.0.1\n Port {server.port}\n ProxyJump "
                f"127.0.0.1:{gate.port}\n"
            ),
        )
        yield gate


def shown(server: SshServer, url: str = "") -> str:
    """The command that accepts a host key, out of the error that says it is not known."""
    found = re.search(r"then: (.*)", fails(server, "is not known", url=url).fix)
    assert found
    return found[1]


def test_the_command_that_is_shown_accepts_each_host_on_the_way(
    server: SshServer, tmp_path: Path
) -> None:
    with gate(tmp_path, server):
        server.known_hosts.unlink()
        for _ in range(2):
            subprocess.run(["sh", "-c", shown(server, "ssh://inner")], check=True)
        assert log_in(server, url="ssh://inner") == "hello\n"


def test_the_command_that_is_shown_makes_the_folder(server: SshServer) -> None:
    (server.home / ".ssh").rename(server.home / "ssh")
    command = shown(server)
    subprocess.run(["sh", "-c", command], check=True)
    assert (server.home / ".ssh").stat().st_mode & 0o777 == 0o700
    (server.home / "ssh" / "id_ed25519").rename(server.home / ".ssh" / "id_ed25519")
    assert log_in(server) == "hello\n"


def test_the_command_that_is_shown_spares_a_last_line_without_an_end(server: SshServer) -> None:
    before = (
        "other.example.org ssh-ed25519 "
        "AAAAC3NzaC1lZDI1NTE5AAAAIEwm8Wz3EsCoSgVJqKrjR4z4XSqR0hXcYC1dUxbiDbqe"
    )
    server.known_hosts.write_text(before)
    subprocess.run(["sh", "-c", shown(server)], check=True)
    assert server.known_hosts.read_text().splitlines()[0] == before
    assert log_in(server) == "hello\n"


@pytest.mark.parametrize("form", ["hashed", "pattern", "several names"])
def test_known_hosts_is_understood_in_all_its_forms(server: SshServer, form: str) -> None:
    name = f"[127.0.0.1]:{server.port}"
    public = (server.folder / "host_key.pub").read_text()
    if form == "hashed":
        subprocess.run(
            ["ssh-keygen", "-q", "-H", "-f", server.known_hosts], check=True, capture_output=True
        )
        assert name not in server.known_hosts.read_text()
    elif form == "pattern":
        server.known_hosts.write_text(f"[127.0.*]:* {public}")
    else:
        server.known_hosts.write_text(f"other,{name} {public}")
    assert log_in(server) == "hello\n"
    server.known_hosts.write_text(f"[127.0.*]:*,!{name} {public}")
    fails(server, "is not known")
