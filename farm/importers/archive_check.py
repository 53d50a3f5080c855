"""Read a model's zip archive; refuse everything that two readers could understand differently.

torch reads archives with miniz, which looks entries up case-insensitively, trusts the directory at
the end and never compares it with the headers of the entries. Python's zipfile takes the last of
two entries of the same name. A check by one reader therefore holds for another reader only if the
archive is unambiguous: one directory, directly before the end; entries that do not overlap; headers
that agree with the directory; and unique names.

The format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from farm.errors import ModelError

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s4B4HL2L5H2L")
_LOCAL = struct.Struct("<4s2B4HL2L2H")
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED, _SIZES_FOLLOW = 0x1, 0x8
_STORED, _DEFLATED = 0, 8
_ZIP64_FIELD = 0x0001
_MAX_ENTRIES = 200_000
_MAX_NAME_BYTES = 1024
# Bytes that deflated entries may hold, however small they are in the file.
_INFLATED_FREELY = 16 << 20
_MAX_RATIO = 20  # higher ratios are refused: text shrinks by 5 to 10, zip bombs by 1000
_NAME = re.compile(r"[^\x00-\x1f\x7f\\]+")
_MEMORY_SHARE = 0.8  # share of this machine's memory that a model's file may fill

SAVE_AGAIN = (
    "save the model again with torch.save, torch.jit.save or torch.export.save, and do not repack "
    "the archive"
)


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """One file of an archive: its name, the offset of its data, and its sizes in bytes.

    `stored_bytes` is its size in the archive, `bytes` its size in memory.
    """

    name: str
    offset: int
    stored_bytes: int
    bytes: int
    deflated: bool
    crc: int
    begins: int  # offset of its header
    ends: int  # offset behind its data


@dataclass(frozen=True, slots=True)
class _Directory:
    """The archive's directory: its offset, size in bytes and number of entries."""

    offset: int
    bytes: int
    entries: int


def machine_memory_bytes() -> int:
    """Return the size of this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Archive:
    """An archive that is open for reading; `entries` holds its files by name.

    Raises ModelError if the archive is damaged, ambiguous or a zip bomb.
    """

    def __init__(self, path: Path, content: bytes | None = None, what: str = "") -> None:
        """Open the file, or `content` of a file inside it that `what` names."""
        self._what = what or str(path)
        self._file = path.open("rb") if content is None else None
        try:
            self._content: mmap.mmap | bytes
            if content is not None:
                self._content = content
            else:
                assert self._file is not None
                self._content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self.entries = self._read_entries()
        except ModelError:
            self.close()
            raise
        except (struct.error, ValueError, OSError) as exc:
            self.close()
            raise self.refusal(f"its directory cannot be read: {exc}") from exc

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; further calls have no effect."""
        content = getattr(self, "_content", None)
        if isinstance(content, mmap.mmap):
            content.close()
        if self._file is not None:
            self._file.close()

    def refusal(self, why: str) -> ModelError:
        """Return the ModelError that refuses this archive."""
        return ModelError(f"{self._what} is not an archive that farm reads", why, SAVE_AGAIN)

    def read(self, name: str, limit: int) -> bytes:
        """Return the content of an entry of at most `limit` bytes.

        Raises ModelError if the entry is larger or damaged.
        """
        entry = self.entries[name]
        if entry.bytes > limit:
            raise self.refusal(
                f"{name} in it has {entry.bytes:,} bytes, and farm reads up to {limit:,} of "
                "such a file"
            )
        stored = self._content[entry.offset : entry.offset + entry.stored_bytes]
        content = self._inflate(entry, stored) if entry.deflated else stored
        if zlib.crc32(content) != entry.crc:
            raise self.refusal(f"{name} in it is damaged: its checksum is another")
        return content

    def _inflate(self, entry: ArchiveEntry, stored: bytes) -> bytes:
        """Return the inflated content of an entry.

        Raises ModelError unless it has the size that the directory declares.
        """
        stream = zlib.decompressobj(-15)
        try:
            content = stream.decompress(stored, entry.bytes + 1)
        except zlib.error as exc:
            raise self.refusal(f"{entry.name} in it is damaged: {exc}") from exc
        if len(content) != entry.bytes or not stream.eof or stream.unused_data:
            raise self.refusal(
                f"{entry.name} in it has another size than the archive says, {entry.bytes:,} bytes"
            )
        return content

    def _read_entries(self) -> dict[str, ArchiveEntry]:
        """Return all entries by name, checked for unique names, layout and sizes."""
        directory = self._directory()
        entries: dict[str, ArchiveEntry] = {}
        folded: set[str] = set()
        at = directory.offset
        for _ in range(directory.entries):
            entry, at = self._entry(at, directory)
            if entry.name.lower() in folded:
                raise self.refusal(
                    f"{entry.name!r} is in it twice, and one reader would take the first and "
                    "another the last"
                )
            folded.add(entry.name.lower())
            entries[entry.name] = entry
        if at != directory.offset + directory.bytes:
            raise self.refusal("its directory has another size than it says")
        self._check_layout(sorted(entries.values(), key=lambda entry: entry.begins), directory)
        self._check_sizes(entries)
        return entries

    def _directory(self) -> _Directory:
        """Return the archive's directory, which must end where the end record begins."""
        end_at = len(self._content) - _END.size
        if end_at < 0:
            raise self.refusal("it is too short")
        mark, disk, directory_disk, here, entries, size, offset, comment = _END.unpack_from(
            self._content, end_at
        )
        if mark != b"PK\5\6" or comment:
            raise self.refusal(
                "it does not end as an archive does: it is cut off, or something is appended"
            )
        if disk or directory_disk or here != entries:
            raise self.refusal("it is one part of an archive of several")
        found, before = _Directory(offset, size, entries), end_at
        locator_at = end_at - _LOCATOR.size
        if locator_at >= 0 and self._content[locator_at : locator_at + 4] == b"PK\6\7":
            found, before = self._directory_64(found, locator_at)
        elif _FULL_32 in (size, offset) or entries == _FULL_16:
            raise self.refusal("the record of its large sizes is missing")
        if found.offset + found.bytes != before:
            raise self.refusal(
                "its directory is not directly before its end: something is put before or between"
            )
        if found.entries > _MAX_ENTRIES:
            raise self.refusal(
                f"it has {found.entries:,} entries, and farm reads up to {_MAX_ENTRIES:,}"
            )
        return found

    def _directory_64(self, small: _Directory, locator_at: int) -> tuple[_Directory, int]:
        """Return the directory of a ZIP64 archive and the offset of its end record."""
        _, disk, end_at, disks = _LOCATOR.unpack_from(self._content, locator_at)
        if disk or disks > 1 or end_at + _END_64.size != locator_at:
            raise self.refusal("its end is not where it says")
        mark, record, _, _, disk, directory_disk, here, entries, size, offset = _END_64.unpack_from(
            self._content, end_at
        )
        if (
            mark != b"PK\6\6"
            or record != _END_64.size - 12
            or disk
            or directory_disk
            or here != entries
        ):
            raise self.refusal("the record of its large sizes is damaged")
        said = (
            (small.offset, offset, _FULL_32),
            (small.bytes, size, _FULL_32),
            (small.entries, entries, _FULL_16),
        )
        if any(short not in (full, large) for short, large, full in said):
            raise self.refusal("it gives two places for its directory")
        return _Directory(offset, size, entries), end_at

    def _entry(self, at: int, directory: _Directory) -> tuple[ArchiveEntry, int]:
        """Read a directory record and the header it points to; raise ModelError unless they agree.

        Returns the entry and the offset of the next record.
        """
        if at + _CENTRAL.size > directory.offset + directory.bytes:
            raise self.refusal("its directory is cut off")
        (
            mark,
            _,
            _,
            _,
            _,
            flags,
            method,
            _,
            _,
            crc,
            stored,
            size,
            name_bytes,
            extra_bytes,
            comment_bytes,
            disk,
            _,
            _,
            begins,
        ) = _CENTRAL.unpack_from(self._content, at)
        if (
            mark != b"PK\1\2"
            or (disk and disk != _FULL_16)
            or not 0 < name_bytes <= _MAX_NAME_BYTES
        ):
            raise self.refusal("its directory is damaged")
        raw = self._content[at + _CENTRAL.size : at + _CENTRAL.size + name_bytes]
        name = self._name(raw)
        extra_at = at + _CENTRAL.size + name_bytes
        extra = self._content[extra_at : extra_at + extra_bytes]
        size, stored, begins = self._large(name, extra, [size, stored, begins])
        if flags & _ENCRYPTED or method not in (_STORED, _DEFLATED):
            raise self.refusal(
                f"{name} in it is encrypted, or compressed in a way that torch does not write"
            )
        if method == _STORED and stored != size:
            raise self.refusal(f"{name} in it has two sizes, {stored:,} and {size:,} bytes")
        if begins + _LOCAL.size > directory.offset:
            raise self.refusal(f"{name} in it begins behind the archive's entries")
        data = self._check_header(begins, raw, name, (flags, method, crc, stored, size))
        if data + stored > directory.offset:
            raise self.refusal(f"{name} in it ends behind the archive's entries")
        entry = ArchiveEntry(
            name, data, stored, size, method == _DEFLATED, crc, begins, data + stored
        )
        return entry, extra_at + extra_bytes + comment_bytes

    def _name(self, raw: bytes) -> str:
        """Return the decoded name of an entry.

        Raises ModelError for control characters, backslashes, and "." or ".." in the path.
        """
        try:
            name = raw.decode()
        except UnicodeDecodeError as exc:
            raise self.refusal(f"it has an entry of an odd name, {raw!r}") from exc
        parts = name.removesuffix("/").split("/")
        if not _NAME.fullmatch(name) or any(part in ("", ".", "..") for part in parts):
            raise self.refusal(f"it has an entry of an odd name, {name!r}")
        return name

    def _large(self, name: str, extra: bytes, values: list[int]) -> tuple[int, int, int]:
        """Return size, stored size and header offset, from ZIP64 where the short ones are full.

        `extra` may contain at most one ZIP64 field.
        """
        at, seen, numbers = 0, False, list(values)
        while at + 4 <= len(extra):
            kind, length = struct.unpack_from("<2H", extra, at)
            at += 4
            if at + length > len(extra):
                raise self.refusal(f"{name} in it has a damaged header")
            if kind == _ZIP64_FIELD:
                wanted = [index for index, value in enumerate(values) if value == _FULL_32]
                if seen or length < 8 * len(wanted):
                    raise self.refusal(f"{name} in it has a damaged header")
                seen = True
                for place, index in enumerate(wanted):
                    (numbers[index],) = struct.unpack_from("<Q", extra, at + 8 * place)
            at += length
        if _FULL_32 in values and not seen:
            raise self.refusal(f"{name} in it lacks its size")
        return numbers[0], numbers[1], numbers[2]

    def _check_header(
        self, begins: int, raw: bytes, name: str, said: tuple[int, int, int, int, int]
    ) -> int:
        """Compare an entry's header with its directory record; return the offset of its data.

        `said` holds flags, method, checksum, stored size and size of the directory record.
        """
        mark, _, _, flags, method, _, _, crc, stored, size, name_bytes, extra_bytes = (
            _LOCAL.unpack_from(self._content, begins)
        )
        at = begins + _LOCAL.size
        own_name = self._content[at : at + name_bytes]
        # If sizes and checksum follow the data, the header may hold 0 for them. ZIP64 sizes are in
        # another field.
        later = bool(flags & _SIZES_FOLLOW)
        numbers = ((crc, said[2]), (stored, said[3]), (size, said[4]))
        differ = any(
            own != other and not (own == 0 and later) and own != _FULL_32 for own, other in numbers
        )
        if mark != b"PK\3\4" or own_name != raw or flags != said[0] or method != said[1] or differ:
            raise self.refusal(
                f"{name} in it has a header that contradicts the archive's directory"
            )
        return int(at + name_bytes + extra_bytes)

    def _check_layout(self, entries: list[ArchiveEntry], directory: _Directory) -> None:
        """Refuse entries that overlap each other or the directory, and data before the first."""
        if entries and entries[0].begins != 0:
            raise self.refusal("something is put before its first entry")
        for one, other in itertools.pairwise(entries):
            if one.ends > other.begins:
                raise self.refusal(f"{one.name} and {other.name} in it overlap")
        if entries and entries[-1].ends > directory.offset:
            raise self.refusal(f"{entries[-1].name} in it overlaps the directory")

    def _check_sizes(self, entries: dict[str, ArchiveEntry]) -> None:
        """Refuse zip bombs, and archives that would not fit into this machine's memory."""
        deflated = [entry for entry in entries.values() if entry.deflated]
        inflated, stored = (
            sum(entry.bytes for entry in deflated),
            sum(entry.stored_bytes for entry in deflated),
        )
        if inflated > _INFLATED_FREELY + _MAX_RATIO * stored:
            raise self.refusal(f"{stored:,} bytes of it unpack to {inflated:,}: a zip bomb")
        total, memory = sum(entry.bytes for entry in entries.values()), machine_memory_bytes()
        if total > _MEMORY_SHARE * memory:
            raise self.refusal(
                f"it unpacks to {total / 1e9:,.1f} GB, and this machine has "
                f"{memory / 1e9:,.1f} GB of memory"
            )
