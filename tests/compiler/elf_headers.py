"""As much of a shared library's ELF headers as the tests ask for: what it needs and what it leaves
undefined (System V gABI, 4 and 5).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_DYNAMIC, _DYNSYM = 6, 11  # section types
_NEEDED = 1  # dynamic tag


@dataclass(frozen=True)
class Elf:
    machine: int
    flags: int
    needed: list[str]
    undefined: set[str]
    defined: set[str]


def read(path: Path) -> Elf:
    content = path.read_bytes()
    assert content[:4] == b"\x7fELF" and content[5] == 1, "not a little-endian ELF file"
    wide = content[4] == 2
    machine, flags, offset, count = _header(content, wide)
    sections = [
        _section(content, offset + index * (64 if wide else 40), wide) for index in range(count)
    ]
    needed: list[str] = []
    undefined, defined = set(), set()
    for kind, start, size, link in sections:
        names = sections[link][1]
        if kind == _DYNAMIC:
            tags = struct.iter_unpack("<QQ" if wide else "<II", content[start : start + size])
            needed += [_name(content, names + value) for tag, value in tags if tag == _NEEDED]
        if kind == _DYNSYM:
            symbols = struct.iter_unpack(
                "<IBBHQQ" if wide else "<IIIBBH", content[start : start + size]
            )
            for symbol in symbols:
                home = symbol[3] if wide else symbol[5]
                (defined if home else undefined).add(_name(content, names + symbol[0]))
    return Elf(machine, flags, needed, undefined - {""}, defined)


def _header(content: bytes, wide: bool) -> tuple[int, int, int, int]:
    fields = struct.unpack_from("<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH", content, 16)
    return fields[1], fields[6], fields[5], fields[11]


def _section(content: bytes, at: int, wide: bool) -> tuple[int, int, int, int]:
    fields = struct.unpack_from("<IIQQQQI" if wide else "<IIIIIII", content, at)
    return fields[1], fields[4], fields[5], fields[6]


def _name(content: bytes, at: int) -> str:
    return content[at : content.index(0, at)].decode()
