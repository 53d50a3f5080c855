"""The file of keys that sshd reads for the lab's account."""

from __future__ import annotations

import base64
import dataclasses
import re
import stat
import struct
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import UsageError
from farm.lab.door.authorized_keys import (
    AuthorizedKey,
    AuthorizedKeysFile,
    DoorSettings,
    PublicKey,
    fingerprint,
    format_line,
    parse_key,
    parse_line,
)
from farm.lab.door.commands import (
    ApiCommand,
    BoardCommand,
    CommandError,
    is_user_name,
    parse_command,
)

DOOR = DoorSettings(
    Path("/opt/farm/bin/python"), Path("/srv/lab files/lab.sock"), ("127.0.0.1", 9190)
)


def made(folder: Path, kind: str, *options: str) -> Path:
    path = folder / f"key-{kind}-{'-'.join(options)}"
    command = ["ssh-keygen", "-q", "-t", kind, *options, "-N", "", "-C", "a@b", "-f", path]
    subprocess.run(command, check=True)
    return path.with_name(f"{path.name}.pub")


def key(number: int = 0) -> PublicKey:
    blob = struct.pack(">I11sI32s", 11, b"ssh-ed25519", 32, number.to_bytes(32, "big"))
    return PublicKey("ssh-ed25519", base64.b64encode(blob).decode(), "a@b")


@pytest.mark.parametrize(
    ("kind", "options"),
    [("ed25519", ()), ("ecdsa", ("-b", "256")), ("ecdsa", ("-b", "521")), ("rsa", ("-b", "2048"))],
)
def test_a_key_of_ssh_keygen_is_taken_and_named_as_it_names_it(
    kind: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    path = made(tmp_path, kind, *options)
    found = parse_key(path.read_text(), str(path))
    named = subprocess.run(["ssh-keygen", "-l", "-f", path], capture_output=True, text=True)
    assert named.stdout.split()[1] == fingerprint(found)
    assert found.comment == "a@b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it has 0 lines"),
        (f"ssh-ed25519 {key().blob}\nssh-ed25519 {key(1).blob}\n", "it has 2 lines"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", "stays with its owner"),
        (f'command="sh" ssh-ed25519 {key().blob}', "options are not taken over"),
        ("ssh-dss AAAA", "options are not taken over"),
        ("ssh-ed25519", "ends after the type"),
        (f"ssh-ed25519 {key().blob[:-8]}", "it is cut"),
        (f"ssh-ed25519 {key().blob}AAAA", "it is cut"),
        (f"ssh-rsa {key().blob}", "say different types"),
        ("ssh-ed25519 !!!!", "not base64"),
        (f"ssh-ed25519 {'A' * 20000}", "too long"),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5", "cut, or no key"),
    ],
)
def test_what_is_no_key_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"(?s).*" + words):
        parse_key(text, "alice.pub")


def test_a_short_key_of_rsa_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s).*1024 bits is too short"):
        parse_key(made(tmp_path, "rsa", "-b", "1024").read_text(), "alice.pub")


@pytest.mark.parametrize(("port", "account"), [(None, False), (20007, False), (None, True)])
def test_a_line_is_read_as_it_was_written(port: int | None, account: bool) -> None:
    entry = AuthorizedKey("alice", key(), port, account)
    line = format_line(entry, DOOR, Path("/home/farm/.ssh/farm_keys"))
    assert parse_line(line) == entry
    assert line.startswith("restrict,")


@pytest.mark.parametrize("comment", ["Alice at home", 'a" b', "a@b\t", "a" * 101])
def test_a_line_with_a_comment_of_any_kind_is_known_again(comment: str) -> None:
    """Else the key could not be listed or taken back."""
    found = parse_key(f"{key().type} {key().blob} {comment}\n", "alice.pub")
    assert found.comment in ("", comment.strip()) and not re.search(r"\s", found.comment)
    line = format_line(AuthorizedKey("alice", found), DOOR, Path("/k"))
    assert parse_line(line) == AuthorizedKey("alice", found)


def test_a_line_of_an_older_farm_is_read() -> None:
    old = (
        f'restrict,command="/opt/farm/bin/farm lab door alice --socket /s" ssh-ed25519 {key().blob}'
    )
    assert parse_line(old) == AuthorizedKey("alice", PublicKey("ssh-ed25519", key().blob))
    assert parse_line(old.replace("lab door alice", "lab door")) is None
    assert parse_line(old.replace("lab door", "lab serve")) is None


def test_a_path_with_a_quote_gets_into_no_line() -> None:
    evil = DoorSettings(Path('/opt/"python'), DOOR.socket, DOOR.tracker)
    with pytest.raises(UsageError, match="has no place there"):
        format_line(AuthorizedKey("alice", key()), evil, Path("/k"))


def test_the_file_is_private_and_keeps_the_lines_of_others(tmp_path: Path) -> None:
    file = AuthorizedKeysFile(tmp_path / "ssh" / "farm_keys")
    file.add(AuthorizedKey("alice", key()), DOOR)
    file.path.write_text(f"# by hand\n{file.path.read_text()}ssh-ed25519 AAAA somebody\n")
    file.add(AuthorizedKey("bob", key(1)), DOOR)
    assert [one.user for one in file.entries()] == ["alice", "bob"]
    assert file.remove("alice") == [AuthorizedKey("alice", key())]
    assert file.remove("alice") == []
    lines = file.path.read_text().splitlines()
    assert lines[:2] == ["# by hand", "ssh-ed25519 AAAA somebody"] and len(lines) == 3
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_a_key_has_one_owner_and_a_port_one_board(tmp_path: Path) -> None:
    file = AuthorizedKeysFile(tmp_path / "farm_keys")
    file.add(AuthorizedKey("alice", key()), DOOR)
    file.add(AuthorizedKey("alice", key(1)), DOOR)  # a second key of hers
    file.add(AuthorizedKey("pi5-07", key(2), 20007), DOOR)
    for entry, words in [
        (AuthorizedKey("bob", key()), "this key is alice's already"),
        (
            AuthorizedKey("bob", dataclasses.replace(key(), comment="bob@home")),
            "this key is alice's already",
        ),
        (AuthorizedKey("pi5-08", key(3), 20007), "port 20007 is pi5-07's already"),
        (AuthorizedKey("pi5-07", key(3)), "pi5-07 is a board already"),
        (AuthorizedKey("alice", key(3), 20008), "alice is a person already"),
    ]:
        with pytest.raises(UsageError, match=words):
            file.add(entry, DOOR)


def test_two_who_add_at_once_lose_nothing(tmp_path: Path) -> None:
    def add(first: int) -> None:
        for number in range(first, first + 20):
            AuthorizedKeysFile(tmp_path / "farm_keys").add(
                AuthorizedKey(f"u{number}", key(number)), DOOR
            )

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(AuthorizedKeysFile(tmp_path / "farm_keys").entries()) == 40


@given(st.binary(max_size=300))
def test_a_command_is_one_of_two_or_refused(text: bytes) -> None:
    try:
        found = parse_command(text)
    except CommandError as exc:
        assert str(exc).isprintable()
    else:
        assert found == ApiCommand() or (
            isinstance(found, BoardCommand) and text == f"board {found[0]}".encode()
        )


@given(st.text(max_size=40))
def test_no_name_of_a_user_has_anything_that_a_shell_acts_on(name: str) -> None:
    assert (
        not is_user_name(name) or name.replace("_", "").replace(".", "").replace("-", "").isalnum()
    )


@pytest.mark.parametrize("name", ["", "A", "-a", "a b", "a\n", "a" * 33, "..", 'a"', "root;id"])
def test_a_name_of_another_form_is_none(name: str) -> None:
    assert not is_user_name(name)
