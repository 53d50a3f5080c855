"""Find the external data files of an ONNX model.

The file is parsed here as Protocol Buffers' wire format
(https://protobuf.dev/programming-guides/encoding), in Python alone: the file is untrusted, and its
external files must be known before the sandbox is created, to decide what the sandbox may read.
Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from farm.errors import ModelError

_MODEL, _ENTRY = "ModelProto", "StringStringEntryProto"
_MESSAGES: dict[str, dict[int, str]] = {
    _MODEL: {7: "GraphProto", 25: "FunctionProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {13: _ENTRY},
}
_KEY, _VALUE = 1, 2
# Wire types; 4 is the end of a group.
_VARINT, _EIGHT_BYTES, _LENGTH, _GROUP, _FOUR_BYTES = 0, 1, 2, 3, 5


class _Group(Exception):
    """A message has a group, whose fields protobuf skips as one."""


def external_files(path: Path) -> list[Path]:
    """Return the external data files of a model, sorted.

    Returns an empty list for a file that is not an ONNX model; the import reports that. Raises
    ModelError for a file that onnx would read, and this parser does not: files that it names would
    be read without being in its digest.
    """
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
    ):
        try:
            names = set(_locations(view))
        except _Group as exc:
            raise ModelError(
                f"{path.name} is not read",
                "it has a field of the kind group, which no exporter of ONNX writes",
                "export the model again, or save it with onnx.save",
            ) from exc
        except (ValueError, IndexError):  # includes UnicodeDecodeError
            return []
    return sorted(path.parent / name for name in names)


def _locations(content: memoryview) -> Iterator[str]:
    """Yield the values of all external data entries with the key `location`."""
    waiting = [(_MODEL, 0, len(content))]
    while waiting:
        kind, begin, end = waiting.pop()
        if kind == _ENTRY:
            texts = {
                number: bytes(content[first:last])
                for number, first, last in _fields(content, begin, end)
            }
            if texts.get(_KEY) == b"location":
                yield texts.get(_VALUE, b"").decode()
            continue
        inner = _MESSAGES[kind]
        waiting += [
            (inner[number], first, last)
            for number, first, last in _fields(content, begin, end)
            if number in inner
        ]


def _fields(content: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number, begin and end of each length-delimited field of a message.

    Raises ValueError if the bytes are not a message.
    """
    while begin < end:
        tag, begin = _varint(content, begin)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, begin = _varint(content, begin)
        elif wire_type == _LENGTH:
            size, begin = _varint(content, begin)
            if size > end - begin:
                raise ValueError("a field is longer than its message")
            yield number, begin, begin + size
            begin += size
        elif wire_type in (_EIGHT_BYTES, _FOUR_BYTES):
            begin += 8 if wire_type == _EIGHT_BYTES else 4
        elif wire_type == _GROUP:
            raise _Group
        else:
            raise ValueError(f"no wire type {wire_type}")


def _varint(content: memoryview, begin: int) -> tuple[int, int]:
    """Return the varint at `begin` and the offset behind it; raise ValueError if it is too long."""
    value = 0
    for place in range(10):
        byte = content[begin + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, begin + place + 1
    raise ValueError("a number of more than ten bytes")
