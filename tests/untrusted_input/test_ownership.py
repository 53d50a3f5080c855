"""Whether other users could have written a file: modes, owners, sticky folders, links, groups.
Whose a connection is.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm import ownership
from farm.ownership import (
    foreign_writer,
    is_peer_listening_at,
    make_private,
    make_private_folder,
    open_private,
    user_of_peer,
)

MALLORY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


def put(path: Path, mode: int = 0o644, owner: int | None = None) -> Path:
    path.write_text("")
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def folder(path: Path, mode: int = 0o755, owner: int | None = None) -> Path:
    path.mkdir()
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def test_what_is_ours_all_the_way_is_trusted(tmp_path: Path) -> None:
    assert foreign_writer(put(tmp_path / "file")) == ""
    assert foreign_writer(tmp_path / "missing") == ""


def test_a_file_that_everybody_may_write_is_not(tmp_path: Path) -> None:
    file = put(tmp_path / "file", 0o666)
    assert foreign_writer(file) == f"every user may write to {file}"


def test_a_folder_on_the_way_that_everybody_may_write_to_is_not(tmp_path: Path) -> None:
    above = folder(tmp_path / "above")
    file = put(folder(above / "below") / "file")
    above.chmod(0o777)
    assert foreign_writer(file) == f"every user may write to {above}"
    above.chmod(0o1777)
    assert foreign_writer(file) == "", "others cannot replace what is ours in a sticky folder"


def test_a_sticky_folder_itself_is_no_place_to_take_any_file_from(tmp_path: Path) -> None:
    shared = folder(tmp_path / "shared", 0o1777)
    assert foreign_writer(shared) == f"every user may write to {shared}"


@as_root
def test_what_belongs_to_another_user_is_not_trusted(tmp_path: Path) -> None:
    shared = folder(tmp_path / "shared", 0o1777)
    file = put(shared / "file", owner=MALLORY)
    assert foreign_writer(file).startswith(f"{file} belongs to the user ")
    theirs = folder(tmp_path / "theirs", owner=MALLORY)
    assert foreign_writer(put(theirs / "file")).startswith(f"{theirs} belongs to the user ")


@as_root
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    shared, file = folder(tmp_path / "shared", 0o1777), put(tmp_path / "file")
    link = shared / "link"
    link.symlink_to(file)
    assert foreign_writer(link) == ""
    os.lchown(link, MALLORY, MALLORY)
    assert "is a symbolic link of the user" in foreign_writer(link)


def test_a_link_is_as_good_as_where_it_leads(tmp_path: Path) -> None:
    bad = folder(tmp_path / "bad")
    put(bad / "file")
    bad.chmod(0o777)
    (tmp_path / "to-folder").symlink_to("bad")
    (tmp_path / "up").symlink_to("to-folder/../bad/file")
    assert foreign_writer(tmp_path / "to-folder" / "file") == f"every user may write to {bad}"
    assert foreign_writer(tmp_path / "up") == f"every user may write to {bad}"


def test_links_that_lead_to_each_other_come_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "too many symbolic links" in foreign_writer(tmp_path / "a")


def test_a_group_of_which_a_directory_service_tells_no_members_is_not_the_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SSSD does: `users` is the group of all accounts, of which only one's own is told."""
    file = put(tmp_path / "devices.toml", 0o664)
    ours = pwd.getpwuid(os.geteuid())
    monkeypatch.setattr(ownership.pwd, "getpwall", lambda: [ours])
    for name, trusted in ((ours.pw_name, True), ("users", False)):
        group = grp.struct_group((name, "x", file.stat().st_gid, []))
        monkeypatch.setattr(ownership.grp, "getgrgid", lambda _, group=group: group)
        assert ("may write" not in foreign_writer(file)) is trusted


@as_root
def test_a_group_counts_where_it_has_other_members(tmp_path: Path) -> None:
    file = put(tmp_path / "file", 0o664)
    os.chown(file, 0, 0)
    assert foreign_writer(file) == "", "root is alone in its group"
    os.chown(file, 0, 2**20)
    assert foreign_writer(file) == f"the group {2**20} may write to {file}"
    assert foreign_writer(file, group_may=True) == ""


def test_files_and_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private_folder(tmp_path / "a" / "b")
        os.close(open_private(tmp_path / "a" / "b" / "file"))
    finally:
        os.umask(before)
    made = (tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/file")
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o700, 0o600]


def test_a_file_is_made_private_and_a_link_is_not_followed(tmp_path: Path) -> None:
    file = put(tmp_path / "file", 0o644)
    make_private(file)
    assert file.stat().st_mode & 0o777 == 0o600
    team = put(tmp_path / "team", 0o664)
    make_private(team)
    assert team.stat().st_mode & 0o777 == 0o660
    other = put(tmp_path / "other", 0o644)
    (tmp_path / "link").symlink_to(other)
    with pytest.raises(OSError):
        make_private(tmp_path / "link")
    assert other.stat().st_mode & 0o777 == 0o644
    make_private(tmp_path / "missing")


@contextlib.contextmanager
def listening(family: socket.AddressFamily, host: str) -> Iterator[socket.socket]:
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen()
        yield listener


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_connection_of_this_machine_is_known_by_its_user_until_it_is_closed(
    family: socket.AddressFamily, host: str
) -> None:
    with listening(family, host) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        accepted, _ = listener.accept()
        with accepted:
            assert user_of_peer(accepted) == os.geteuid() == user_of_peer(client)
            client.close()
            assert user_of_peer(accepted) is None


def test_a_connection_of_ipv6_to_ipv4_is_known_by_its_user() -> None:
    with (
        listening(socket.AF_INET, "127.0.0.1") as listener,
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as client,
    ):
        client.connect(("::ffff:127.0.0.1", listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with accepted:
            assert user_of_peer(accepted) == os.geteuid()


@as_root
def test_a_connection_of_another_user_is_known_as_theirs() -> None:
    with listening(socket.AF_INET, "127.0.0.1") as listener:
        os.seteuid(MALLORY)
        try:
            client = socket.create_connection(listener.getsockname())
        finally:
            os.seteuid(0)
        accepted, _ = listener.accept()
        with client, accepted:
            assert (user_of_peer(accepted), user_of_peer(client)) == (MALLORY, 0)


def test_a_peer_is_found_without_the_tables_and_by_them_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tables take as long as there are sockets, and a stranger makes as many as they like."""
    with listening(socket.AF_INET, "127.0.0.1") as listener, accepted_from_here(listener) as one:
        with monkeypatch.context() as patch:
            patch.setattr(ownership, "_SOCKETS", ())
            assert user_of_peer(one) == os.geteuid()
        monkeypatch.setattr(ownership, "_NETLINK_SOCK_DIAG", 12345)
        assert user_of_peer(one) == os.geteuid()


@contextlib.contextmanager
def accepted_from_here(listener: socket.socket) -> Iterator[socket.socket]:
    """The lab's end of a connection that this process has to it."""
    with socket.create_connection(listener.getsockname()[:2]):
        accepted, _ = listener.accept()
        with accepted:
            yield accepted


@contextlib.contextmanager
def of_another_process() -> Iterator[int]:
    """A port of loopback that another process listens at."""
    program = (
        "import socket, sys; one = socket.create_server(('127.0.0.1', 0)); "
        "print(one.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout
        yield int(child.stdout.readline())
        assert child.stdin
        child.stdin.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_is_the_peers_if_its_own_process_listens_there(host: str) -> None:
    with listening(socket.AF_INET, "127.0.0.1") as lab, listening(socket.AF_INET, host) as board:
        with accepted_from_here(lab) as accepted:
            port = board.getsockname()[1]
            assert is_peer_listening_at("127.0.0.1", port, accepted)
            board.close()
            assert not is_peer_listening_at("127.0.0.1", port, accepted)
        assert not is_peer_listening_at("127.0.0.1", lab.getsockname()[1], accepted)  # it has left


def test_a_port_that_another_process_of_the_peers_user_listens_at_is_not_the_peers() -> None:
    with (
        listening(socket.AF_INET, "127.0.0.1") as lab,
        accepted_from_here(lab) as accepted,
        of_another_process() as port,
    ):
        assert not is_peer_listening_at("127.0.0.1", port, accepted)


@as_root
def test_a_port_of_another_user_is_not_the_peers() -> None:
    with listening(socket.AF_INET, "127.0.0.1") as lab, accepted_from_here(lab) as accepted:
        os.seteuid(MALLORY)
        try:
            board = socket.create_server(("127.0.0.1", 0))
        finally:
            os.seteuid(0)
        with board:  # in the same process, though
            assert not is_peer_listening_at("127.0.0.1", board.getsockname()[1], accepted)
