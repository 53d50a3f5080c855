"""Determine whether other users could have written a file, or connected; create private files.

The rule is that of OpenSSH's StrictModes and of git's safe.directory: a file is as trustworthy as
the least protected folder on the path to it. Each folder from the root down, and the file, must
belong to this user or to root and must not be writable by anybody else. There are three exceptions:

    - In a folder with the sticky bit, such as /tmp, others may add entries but not replace ours.
      The path may lead through such a folder, but not end in it.
    - A group of the owner's name, whose only member is the owner, counts as its owner. Many
      distributions give each user such a group, together with the umask 002. Of the members of
      other groups, a directory service need not tell all.
    - The owner of `/` counts as root: in a user namespace, root may have no number of its own.

Symbolic links are followed one by one, and each is checked as an entry of its folder.

Anybody on this machine can connect to a port of loopback, or listen on one. The kernel knows whose
the socket at the other end is, and whose the one that listens.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import socket
import stat
import struct
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_MOST_LINKS = 40  # Linux's limit
_SOCKETS = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_MAPPED = bytes(10) + b"\xff\xff"  # precedes an address of IPv4 in one of IPv6
_LISTENS = "0A"  # TCP_LISTEN of include/net/tcp_states.h
# include/uapi/linux: netlink.h, sock_diag.h and inet_diag.h
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_ANY_STATE, _NO_COOKIE = 0xFFFFFFFF, 0xFFFFFFFF
_PRIVATE_FILE, _GROUP_FILE, _PRIVATE_FOLDER = 0o600, 0o660, 0o700


def foreign_writer(path: Path, *, group_may: bool = False) -> str:
    """Return who else could have written a file, or an entry of a folder; "" if nobody could.

    `group_may` accepts that a group can write. A path that does not exist yet is judged by its
    folder, and one that cannot be inspected is not trusted.
    """
    try:
        return _foreign_writer(path, group_may)
    except OSError as exc:
        return f"{exc.filename or path} cannot be looked at: {exc.strerror}"


def _foreign_writer(path: Path, group_may: bool) -> str:
    """Follow the path and its links; return the first reason for distrust, or ""."""
    left = list(reversed(path.absolute().parts[1:]))
    at, links = Path("/"), 0
    if why := _foreign(at, at.lstat(), is_last=not left, group_may=group_may):
        return why
    while left:
        name = left.pop()
        if name == "..":
            at = at.parent
            continue
        entry = at / name
        try:
            info = entry.lstat()
        except FileNotFoundError:
            return _foreign(at, at.lstat(), is_last=True, group_may=group_may)
        if stat.S_ISLNK(info.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return f"{entry} is one of too many symbolic links"
            if not _is_ours(info.st_uid):
                return f"{entry} is a symbolic link of {_user(info.st_uid)}"
            target = entry.readlink()
            at = Path("/") if target.is_absolute() else at
            left += reversed([part for part in target.parts if part != "/"])
            continue
        if why := _foreign(entry, info, is_last=not left, group_may=group_may):
            return why
        at = entry
    return ""


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700. Raises OSError."""
    missing_ones = [one for one in (folder, *folder.parents) if not one.exists()]
    for missing in reversed(missing_ones):
        missing.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)


def make_private(path: Path) -> None:
    """Remove other users' permissions from a file of this user, if it exists.

    Its group keeps its permissions only if it may write, which means that the file is shared
    intentionally. Raises OSError, also for a link.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return
    try:
        info = os.fstat(descriptor)
        is_our_file = info.st_uid == os.geteuid() and stat.S_ISREG(info.st_mode)
        if is_our_file and info.st_mode & stat.S_IRWXO:
            shared = info.st_mode & stat.S_IWGRP
            os.fchmod(descriptor, _GROUP_FILE if shared else _PRIVATE_FILE)
    finally:
        os.close(descriptor)


def open_private(path: Path) -> int:
    """Open a file to read and write; create it with mode 0600. Raises OSError for a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, _PRIVATE_FILE)


class SocketLike(Protocol):
    """The methods of a socket, or of asyncio's stand-in for one, that say where its ends are."""

    def getpeername(self) -> Any:
        """Return the address of the other end."""

    def getsockname(self) -> Any:
        """Return the address of this end."""


def user_of_peer(connection: SocketLike) -> int | None:
    """Return the user whose socket is at the other end of a TCP connection on this machine.

    None if the kernel does not list it: it is on another machine, or its process has closed it.
    """
    found = _other_end(connection)
    return found.user if found else None


def is_peer_listening_at(host: str, port: int, connection: SocketLike) -> bool:
    """Return whether who listens at a place of this machine is who is behind a connection.

    It is the same user, and the same process as far as this user may see: of processes that may
    not be looked into, such as those of other users and of sshd, the kernel tells only the user.
    """
    other = _other_end(connection)
    if other is None:
        return False
    places = _in_tables(host, port) | _in_tables("0.0.0.0", port) | _in_tables("::", port)
    listeners = [one for one in _sockets() if one.state == _LISTENS and one.local in places]
    if not listeners or any(one.user != other.user for one in listeners):
        return False
    holders = _processes_of({other.inode, *(one.inode for one in listeners)})
    behind = holders[other.inode]
    return all(
        bool(behind & holders[one.inode]) or not behind | holders[one.inode] for one in listeners
    )


def user_name(user: int) -> str:
    """Return the name of a user's account, or one of its number if it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid-{user}"


@dataclass(frozen=True, slots=True)
class _Socket:
    """A TCP socket as the kernel lists it: both ends, its state, its user, and its inode."""

    local: str
    remote: str
    state: str
    user: int
    inode: str


def _sockets() -> Iterator[_Socket]:
    """Yield the TCP sockets of this machine that a process has open."""
    for table in _SOCKETS:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[9] != "0":  # 0: closed
                yield _Socket(fields[1], fields[2], fields[3], int(fields[7]), fields[9])


def _other_end(connection: SocketLike) -> _Socket | None:
    """Return the socket at the other end of a connection, if it is on this machine."""
    try:
        ends = [connection.getpeername()[:2], connection.getsockname()[:2]]
    except OSError:
        return None
    with contextlib.suppress(OSError):
        # its tables take long to read, and a kernel that cannot be asked does not know our end
        if (found := _socket_between(*ends)) or _socket_between(*ends[::-1]):
            return found
    peer, ours = (_in_tables(host, port) for host, port in ends)
    return next((one for one in _sockets() if one.local in peer and one.remote in ours), None)


def _socket_between(local: tuple[str, int], remote: tuple[str, int]) -> _Socket | None:
    """Return the one socket with these ends that a process has open, by the kernel's sock_diag.

    Raises OSError if the kernel does not answer.
    """
    (host, port), (other_host, other_port) = local, remote
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    source, target = (
        socket.inet_pton(family, one.partition("%")[0]).ljust(16, b"\0")
        for one in (host, other_host)
    )
    ends = struct.pack(">HH16s16s", port, other_port, source, target)
    wanted = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE)
    wanted += ends + struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    header = struct.pack("=IHHII", 16 + len(wanted), _SOCK_DIAG_BY_FAMILY, _REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.sendto(header + wanted, (0, 0))
        answer = kernel.recv(4096)
    if (kind := struct.unpack_from("=H", answer, 4)[0]) == _ERROR:
        code = -int(struct.unpack_from("=i", answer, 16)[0])
        if code == errno.ENOENT:
            return None
        raise OSError(code, os.strerror(code))
    state, found = answer[17], answer[20:56]
    user, inode = struct.unpack_from("=II", answer, 80)
    if kind != _SOCK_DIAG_BY_FAMILY or not inode or found[:4] != ends[:4]:
        return None  # it is closed, or listens
    places = _in_table(host, port), _in_table(other_host, other_port)
    return _Socket(*places, f"{state:02X}", user, str(inode))


def _processes_of(inodes: Collection[str]) -> dict[str, set[int]]:
    """Return which processes have sockets open, by inode; those that may not be seen are not."""
    found: dict[str, set[int]] = {inode: set() for inode in inodes}
    names = {f"socket:[{inode}]": inode for inode in inodes}
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - names will do
        with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as descriptors:
            for one in descriptors:
                with contextlib.suppress(OSError):
                    if inode := names.get(os.readlink(one.path)):  # noqa: PTH115
                        found[inode].add(int(process))
    return found


def _in_tables(host: str, port: int) -> set[str]:
    """Return an address as the kernel's tables have it: IPv4 also as one of IPv6."""
    return {_in_table(host, port), _in_table(host, port, mapped=True)}


def _in_table(host: str, port: int, *, mapped: bool = False) -> str:
    """Return an address as the kernel's tables have it: words of four bytes, in hexadecimal."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    raw = socket.inet_pton(family, host.partition("%")[0])
    raw = _MAPPED + raw if mapped and family == socket.AF_INET else raw
    words = [int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


def _foreign(path: Path, info: os.stat_result, *, is_last: bool, group_may: bool) -> str:
    """Return why one folder or file is not protected, or ""."""
    if not _is_ours(info.st_uid):
        return f"{path} belongs to {_user(info.st_uid)}"
    if info.st_mode & stat.S_ISVTX and stat.S_ISDIR(info.st_mode) and not is_last:
        return ""
    if info.st_mode & stat.S_IWOTH:
        return f"every user may write to {path}"
    by_group = info.st_mode & stat.S_IWGRP
    if by_group and not group_may and not _is_private_group(path, info):
        return f"the group {_group(info.st_gid)} may write to {path}"
    return ""


def _is_ours(owner: int) -> bool:
    """Return whether an owner is root, this user, or the owner of `/`."""
    return owner in (0, os.geteuid(), os.lstat("/").st_uid)


def _is_private_group(path: Path, info: os.stat_result) -> bool:
    """Return whether the file's group is its owner's alone, and there is no ACL."""
    try:
        if "system.posix_acl_access" in os.listxattr(path):
            return False
    except OSError:  # a file system without access control lists
        pass
    try:
        group = grp.getgrgid(info.st_gid)
        owner = pwd.getpwuid(info.st_uid)
    except KeyError:
        return False
    if group.gr_name != owner.pw_name:
        return False
    by_account = {one.pw_name for one in pwd.getpwall() if one.pw_gid == info.st_gid}
    return {*group.gr_mem, *by_account} <= {owner.pw_name}


def _user(number: int) -> str:
    try:
        return f"the user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"the user {number}"


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
