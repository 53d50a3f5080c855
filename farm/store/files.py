"""Folders by digest: root/kind/digest, whole or absent. What is being written lies under root/tmp, locked by its writer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from farm.errors import BuildError

_TMP = "tmp"
_LOCK = ".lock"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_CHUNK = 1 << 20


def cache_root() -> Path:
    """What can be made again: $FARM_CACHE, else $XDG_CACHE_HOME/farm, else ~/.cache/farm."""
    return _root("FARM_CACHE", "XDG_CACHE_HOME", ".cache")


def data_root() -> Path:
    """What cannot, the record of runs: $FARM_DATA, else $XDG_DATA_HOME/farm, else ~/.local/share/farm."""
    return _root("FARM_DATA", "XDG_DATA_HOME", ".local/share")


def _root(own: str, xdg: str, home: str) -> Path:
    if given := os.environ.get(own):
        return Path(given).expanduser().absolute()
    base = Path(os.environ.get(xdg) or Path.home() / home)  # the XDG specification: a relative path is to be ignored
    return (base if base.is_absolute() else Path.home() / home) / "farm"


class Store:
    """Finds and publishes folders by kind and digest. Any number of processes may use the same root at once.

    Raises BuildError when the disk is full or the root cannot be written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, kind: str, digest: str) -> Path | None:
        """The folder kept under this digest, whole; None where there is none. Its content must not be changed."""
        place = self._place(kind, digest)
        return place if place.is_dir() else None

    @contextlib.contextmanager
    def publish(self, kind: str, digest: str) -> Iterator[Path]:
        """An empty folder to fill, kept at the end of the block; an error in the block leaves nothing.

        When another process has published the same digest meanwhile, its folder stays and ours goes: they are the same.
        """
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

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for as long as the block lasts. If the process dies in it, `sweep` removes it later."""
        with self._errors():
            tmp = self.root / _TMP
            tmp.mkdir(parents=True, exist_ok=True)
            while (lock := _lock(folder := tmp / f"{os.getpid()}-{secrets.token_hex(6)}")) is None:
                pass  # a sweep looks at our new lock this moment; it will remove that one
            try:
                folder.mkdir()
                yield folder
            finally:
                _discard(folder, lock)

    def sweep(self) -> int:
        """Remove what dead processes have left under root/tmp; returns how many folders. Never touches a live one's."""
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
        """Turns the file system's refusals under root into ours. Other programs' and paths' errors pass."""
        try:
            yield
        except OSError as exc:
            if not self._concerns(exc.filename):
                raise
            elsewhere = "keep the cache elsewhere: export FARM_CACHE=/path"
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                what, fix = "the disk is full", f"free space on the disk of {self.root}, or {elsewhere}"
            elif exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOENT, errno.ENOLCK, errno.EOPNOTSUPP):
                what, fix = "the cache cannot be written", f"make {self.root} a folder you may write, or {elsewhere}"
            else:
                raise
            raise BuildError(what, f"{exc.strerror}: {exc.filename or self.root}", fix) from exc

    def _concerns(self, filename: object) -> bool:
        """Whether the file of an OSError lies in the root or on the way to it; a write to an open file names none."""
        if not isinstance(filename, (str, bytes)):
            return True
        path = Path(os.fsdecode(filename))
        return path == self.root or self.root in path.parents or path in self.root.parents


def _lock(folder: Path) -> int | None:
    """Hold the lock of a temporary folder; None when a living process has it. The kernel frees it when its holder ends.

    A lock, unlike the process id in the name, also tells the living from the dead across containers and reboots.
    """
    path = f"{folder}{_LOCK}"
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == os.stat(path).st_ino:  # else another has removed the file that we locked  # noqa: PTH116
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
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():  # else sweep tries again, another day
        with contextlib.suppress(OSError):
            Path(f"{folder}{_LOCK}").unlink()
    os.close(lock)


def _sync(folder: Path) -> None:
    """Have the disk hold a folder and all in it, so that after a power cut the rename is not all that is left."""
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


def digest_of(*parts: bytes | str | Path | Mapping[str, object]) -> str:
    """SHA-256, in hexadecimal, of all parts in order. No two different lists of parts are written the same way.

    A Path stands for its file's content, a mapping for its canonical JSON (keys sorted; nested mappings and sequences allowed).
    Raises OSError where a file cannot be read, TypeError for what JSON cannot hold.
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
            kind, content = b"m", json.dumps(part, sort_keys=True, separators=(",", ":"), default=_plain).encode()
        total.update(kind + len(content).to_bytes(8, "big") + content)
    return total.hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a digest cannot be taken of {type(value).__name__}: {value!r:.100}")


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()
