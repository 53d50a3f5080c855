"""A stored folder as one file, which says what it holds and can be checked while it is read.

The file is a tar archive. Its first member, `farm.json`, names the kind and digest that the folder
is stored under, and the size and SHA-256 of each of its files. If a key is given, it also holds an
HMAC-SHA256 (RFC 2104) of all that.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from farm.store.artifact_store import file_digest

if TYPE_CHECKING:
    import tarfile

_FORMAT = 1
_MANIFEST = "farm.json"
_MOST_MANIFEST = 16 << 20  # bytes; 100 for each file of a large model
_MOST_FILES = 100_000
_MOST_HEADERS = 1 << 20  # bytes: of the first member's headers, the end, and what is read ahead
_MOST_HEADER = 4096  # bytes around a file: its headers and what fills its last block
_PATH = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*/){0,3}[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class _File:
    """The size, in bytes, and the SHA-256 of a file."""

    size: int
    sha256: str


class ArchiveError(ValueError):
    """The archive is damaged, of another format, of another digest, or sealed with another key."""


def write_archive(folder: Path, kind: str, digest: str, key: bytes | None, file: IO[bytes]) -> None:
    """Write the archive of a folder to an open file."""
    import tarfile

    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        path.relative_to(folder).as_posix(): _File(path.stat().st_size, file_digest(path))
        for path in paths
    }
    body = {
        "format": _FORMAT,
        "kind": kind,
        "digest": digest,
        "files": {name: asdict(one) for name, one in files.items()},
    }
    manifest = json.dumps({**body, "seal": _seal(body, key)} if key else body).encode()
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        head = tarfile.TarInfo(_MANIFEST)
        head.size = len(manifest)
        archive.addfile(head, BytesIO(manifest))
        for name, one in files.items():
            member = tarfile.TarInfo(name)
            member.size = one.size
            with (folder / name).open("rb") as content:
                archive.addfile(member, content)


def read_archive(file: IO[bytes], kind: str, digest: str, key: bytes | None, folder: Path) -> None:
    """Unpack an archive into an empty folder, and check all of it.

    Raises ArchiveError unless every file is there, whole, and no other; the folder may then hold
    some files. OSError is one of the disk or of `file`.
    """
    import tarfile

    try:
        bounded = _Bounded(file)
        with tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r|") as archive:
            files = _manifest(archive, kind, digest, key)
            bounded.left = _MOST_HEADERS + sum(one.size + _MOST_HEADER for one in files.values())
            while (member := archive.next()) is not None:
                one = files.pop(member.name, None)
                if one is None or not _is_plain(member) or member.size != one.size:
                    raise ArchiveError(
                        f"it holds {member.name!r}, which its manifest does not name so"
                    )
                _unpack(archive, member, one, folder / member.name)
    except (tarfile.TarError, EOFError) as exc:
        raise ArchiveError(f"it is damaged: {exc}") from exc
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as exc:
        raise ArchiveError("it names one thing as a file and as a folder") from exc
    if files:
        raise ArchiveError(f"it lacks {next(iter(files))!r}")


class _Bounded:
    """A stream that ends where tarfile would read more than it may.

    An extended header of a member may be of any size, and is in memory as a whole.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.left = _MOST_MANIFEST + _MOST_HEADERS

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; raise ArchiveError behind the bound."""
        content = self._file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise ArchiveError("it is larger than its manifest says")
        return content


def _manifest(
    archive: tarfile.TarFile, kind: str, digest: str, key: bytes | None
) -> dict[str, _File]:
    """Return the files that an archive must hold, from its first member."""
    first = archive.next()
    if (
        first is None
        or first.name != _MANIFEST
        or not _is_plain(first)
        or first.size > _MOST_MANIFEST
    ):
        raise ArchiveError("it does not begin with a manifest")
    content = archive.extractfile(first)
    assert content is not None, "a regular file"
    try:
        body = json.loads(content.read())
        seal = body.pop("seal", None)
        if key and not (
            isinstance(seal, str) and hmac.compare_digest(seal.encode(), _seal(body, key).encode())
        ):
            raise ArchiveError("it was not sealed with this key")
        if (body["format"], body["kind"], body["digest"]) != (_FORMAT, kind, digest):
            raise ArchiveError("it is of another build, or of another version of farm")
        return _files(body["files"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as exc:
        if isinstance(exc, ArchiveError):
            raise
        raise ArchiveError("its manifest is damaged") from exc


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Return whether a member is a file whose bytes are all in the archive: a sparse one is not."""
    import tarfile

    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()


def _files(named: Mapping[str, Mapping[str, object]]) -> dict[str, _File]:
    files = {}
    for name, one in named.items():
        size, sha256 = one["size"], one["sha256"]
        usable = (
            type(size) is int
            and size >= 0
            and isinstance(sha256, str)
            and _SHA256.fullmatch(sha256)
        )
        if not usable or not _PATH.fullmatch(name) or len(named) > _MOST_FILES:
            raise ArchiveError("its manifest names a file that farm does not make")
        files[name] = _File(size, sha256)  # type: ignore[arg-type]
    return files


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, one: _File, path: Path) -> None:
    content = archive.extractfile(member)
    assert content is not None, "a regular file"
    path.parent.mkdir(parents=True, exist_ok=True)
    total = hashlib.sha256()
    with path.open("xb") as file:
        while chunk := content.read(_CHUNK):
            total.update(chunk)
            file.write(chunk)
    if total.hexdigest() != one.sha256:
        raise ArchiveError(f"the content of {member.name!r} is damaged")


def _seal(body: Mapping[str, object], key: bytes) -> str:
    return hmac.new(key, json.dumps(body, sort_keys=True).encode(), hashlib.sha256).hexdigest()
