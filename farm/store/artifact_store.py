"""Content-addressed store of folders: root/kind/digest, published atomically.

A folder that is being written lies under root/tmp and is locked by its writer.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from farm import ownership
from farm.errors import BuildError
from farm.regular_files import check_not_special_file

KINDS = ("models", "workloads", "artifacts")  # what imports and builds leave
_TMP = "tmp"
_LOCK = ".lock"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_CHUNK = 1 << 20


class _NotThere(Exception):
    """Upstream does not have a folder."""


def user_cache_dir() -> Path:
    """Return the folder of what can be built again: agents, compiled libraries.

    It is $FARM_CACHE, else $XDG_CACHE_HOME/farm, else ~/.cache/farm. Programs in it are executed,
    therefore this raises BuildError if a user who is neither its owner nor a member of its group
    can write to it.
    """
    root = _root("FARM_CACHE", "XDG_CACHE_HOME", ".cache")
    if root.exists() and (why := ownership.foreign_writer(root, group_may=True)):
        fix = (
            "keep it elsewhere: export FARM_CACHE=/path; or, if you trust what is in it, chmod "
            f"-R o-w {shlex.quote(str(root))}"
        )
        raise BuildError(
            "the cache could have been filled by another user",
            f"{why}; programs in it are run",
            fix,
        )
    return root


def user_data_dir() -> Path:
    """Return the folder of what cannot be built again, such as the record of runs.

    It is $FARM_DATA, else $XDG_DATA_HOME/farm, else ~/.local/share/farm.
    """
    return _root("FARM_DATA", "XDG_DATA_HOME", ".local/share")


def _root(own: str, xdg: str, home: str) -> Path:
    if given := os.environ.get(own):
        return Path(given).expanduser().absolute()
    # XDG specification: ignore a relative path
    base = Path(os.environ.get(xdg) or Path.home() / home)
    return (base if base.is_absolute() else Path.home() / home) / "farm"


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """A stored folder. `nbytes` is its size, `used` when it was written or last used."""

    kind: str
    digest: str
    nbytes: int
    used: datetime


class Upstream(Protocol):
    """A second store, from which folders are fetched, and to which they are sent."""

    def fetch(self, kind: str, digest: str, folder: Path) -> bool:
        """Fill an empty folder with what is stored under a digest; return whether it was there."""

    def send(self, kind: str, digest: str, folder: Path) -> None:
        """Store a folder under its digest."""


class Store:
    """Store of folders by kind and digest; any number of processes may use one root concurrently.

    What is not there is looked for `upstream`, and what is published goes there too. Its methods
    raise BuildError if the disk is full or the root cannot be written.
    """

    def __init__(self, root: Path, upstream: Upstream | None = None) -> None:
        self.root = root
        self.upstream = upstream

    def find(self, kind: str, digest: str) -> Path | None:
        """Return the complete folder stored under this digest, or None if there is none.

        The caller must not change its content. Its time of modification is that of its last use.
        """
        place = self._place(kind, digest)
        if not place.is_dir() and not self.fetch(kind, digest):
            return None
        with contextlib.suppress(OSError):  # a root that may only be read
            os.utime(place)
        return place

    def fetch(self, kind: str, digest: str) -> bool:
        """Copy a folder from upstream; return whether it was there."""
        if self.upstream is None:
            return False
        try:
            with self._published(kind, digest) as folder:
                if not self.upstream.fetch(kind, digest, folder):
                    raise _NotThere
        except _NotThere:
            return False
        return True

    @contextlib.contextmanager
    def publish(self, kind: str, digest: str) -> Iterator[Path]:
        """Yield an empty folder to fill and publish it when the block ends.

        An error in the block leaves nothing behind. If another process has published the same
        digest in the meantime, its folder stays and this one is deleted: the two are equal.
        """
        with self._published(kind, digest) as folder:
            yield folder
        if self.upstream is not None:
            self.upstream.send(kind, digest, self._place(kind, digest))

    @contextlib.contextmanager
    def _published(self, kind: str, digest: str) -> Iterator[Path]:
        place = self._place(kind, digest)
        with self.scratch() as scratch, self._errors():
            work = scratch / digest
            work.mkdir()
            yield work
            _sync(work)
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                work.rename(place)
            except OSError as exc:
                if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not place.is_dir():
                    raise
            _sync_one(place.parent)

    def entries(self) -> list[StoredFolder]:
        """Return what imports and builds have left here, the kinds in order."""
        found = []
        for kind in KINDS:
            with contextlib.suppress(FileNotFoundError):
                for place in sorted((self.root / kind).iterdir()):
                    nbytes = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
                    found.append(
                        StoredFolder(
                            kind,
                            place.name,
                            nbytes,
                            datetime.fromtimestamp(place.stat().st_mtime, UTC),
                        )
                    )
        return found

    def remove(self, entries: Iterable[StoredFolder]) -> None:
        """Remove stored folders; those that are gone already are no error."""
        with self.scratch() as scratch, self._errors():
            for one in entries:
                with contextlib.suppress(FileNotFoundError):
                    self._place(one.kind, one.digest).rename(scratch / f"{one.kind}-{one.digest}")

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a temporary folder that exists until the block ends.

        If the process dies in the block, `sweep` removes the folder later.
        """
        with self._errors():
            tmp = self.root / _TMP
            ownership.make_private_folder(self.root)
            tmp.mkdir(exist_ok=True)
            while (lock := _lock(folder := tmp / f"{os.getpid()}-{secrets.token_hex(6)}")) is None:
                pass  # a concurrent sweep holds our new lock and will remove it
            try:
                folder.mkdir(mode=0o700)  # tasks in it may hold keys
                yield folder
            finally:
                _discard(folder, lock)

    def sweep(self) -> int:
        """Remove the folders under root/tmp that dead processes left behind; return their number.

        Never touches a folder of a live process.
        """
        removed = 0
        with contextlib.suppress(OSError):
            for name in {path.name.removesuffix(_LOCK) for path in (self.root / _TMP).iterdir()}:
                folder = self.root / _TMP / name
                if (lock := _lock(folder)) is not None:
                    removed += folder.exists()
                    _discard(folder, lock)
        return removed

    def _place(self, kind: str, digest: str) -> Path:
        if kind == _TMP or not _NAME.fullmatch(kind) or not _NAME.fullmatch(digest):
            raise ValueError(f"no name for something kept: {kind!r}/{digest!r}")
        return self.root / kind / digest

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the file system's errors under root to BuildError; pass all other errors on."""
        try:
            yield
        except OSError as exc:
            if not self._concerns(exc.filename):
                raise
            elsewhere = "keep the cache elsewhere: export FARM_CACHE=/path"
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                what, fix = (
                    "the disk is full",
                    f"free space on the disk of {self.root}, or {elsewhere}",
                )
            elif exc.errno in (
                errno.EROFS,
                errno.EACCES,
                errno.EPERM,
                errno.ENOTDIR,
                errno.ENOENT,
                errno.ENOLCK,
                errno.EOPNOTSUPP,
            ):
                what, fix = (
                    "the cache cannot be written",
                    f"make {self.root} a folder you may write, or {elsewhere}",
                )
            else:
                raise
            raise BuildError(what, f"{exc.strerror}: {exc.filename or self.root}", fix) from exc

    def _concerns(self, filename: object) -> bool:
        """Return whether the file of an OSError is the root, lies in it, or is a parent of it.

        The error of a write to an open file names no file; it counts as one of the root.
        """
        if not isinstance(filename, (str, bytes)):
            return True
        path = Path(os.fsdecode(filename))
        return path == self.root or self.root in path.parents or path in self.root.parents


def _lock(folder: Path) -> int | None:
    """Lock a temporary folder; return the lock's descriptor, or None if a live process holds it.

    The kernel releases the lock when its holder ends. Unlike the process id in the folder's name, a
    lock also distinguishes live from dead processes across containers and reboots.
    """
    path = f"{folder}{_LOCK}"
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # otherwise another process has removed the file that we locked
            if os.fstat(lock).st_ino == os.stat(path).st_ino:  # noqa: PTH116
                return lock
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _discard(folder: Path, lock: int) -> None:
    """Delete a temporary folder and its lock file, and release the lock."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():  # otherwise a later sweep tries again
        with contextlib.suppress(OSError):
            Path(f"{folder}{_LOCK}").unlink()
    os.close(lock)


def _sync(folder: Path) -> None:
    """Flush a folder and everything in it to disk.

    Without this, a power cut after the rename could leave the folder with incomplete files.
    """
    for path in folder.rglob("*"):
        if path.is_file() or path.is_dir():
            _sync_one(path)
    _sync_one(folder)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of_parts(*parts: bytes | str | Path | Mapping[str, object]) -> str:
    """Return the SHA-256, in hexadecimal, of all parts in order.

    The encoding is injective: two different lists of parts never encode to the same bytes. A Path
    stands for its file's content, a mapping for its canonical JSON (keys sorted; nested mappings
    and sequences are allowed). Raises OSError if a file cannot be read, TypeError for a value that
    JSON cannot hold.
    """
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, bytes):
            kind, content = b"b", part
        elif isinstance(part, str):
            kind, content = b"s", part.encode("utf-8", "surrogatepass")
        elif isinstance(part, Path):
            kind, content = b"p", bytes.fromhex(file_digest(part))
        else:
            kind, content = (
                b"m",
                json.dumps(part, sort_keys=True, separators=(",", ":"), default=_plain).encode(),
            )
        total.update(kind + len(content).to_bytes(8, "big") + content)
    return total.hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a digest cannot be taken of {type(value).__name__}: {value!r:.100}")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Raises OSError for a pipe or a device, too.
    """
    check_not_special_file(path)
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()
