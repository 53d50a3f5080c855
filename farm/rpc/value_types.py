"""The values that pass to and from a server, besides Python's own."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

# DLDataTypeCode of dlpack.h: names without and with the number of bits in them
_CODES = {"int": 0, "uint": 1, "float": 2, "handle": 3, "bfloat": 4, "complex": 5}
_SMALL_CODES = {
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
    "float6_e2m3fn": (15, 6),
    "float6_e3m2fn": (16, 6),
    "float4_e2m1fn": (17, 4),
}
_NAMED = {**_SMALL_CODES, "bool": (6, 8)}
_FORM = re.compile(
    r"(?P<base>bool|float\d_\w+?|(?P<kind>[a-z]+)(?P<bits>\d{1,3}))(x(?P<lanes>\d{1,4}))?",
)
_MOST_BITS = 255


@dataclass(frozen=True, slots=True)
class DataType:
    """The type of a tensor's elements (DLDataType): a code, bits and lanes."""

    code: int
    bits: int
    lanes: int = 1

    @classmethod
    def of(cls, name: str) -> DataType:
        """Return the data type with a name such as float32, bool or int8x4.

        Raises ValueError for an unknown name.
        """
        found = _FORM.fullmatch(name)
        base, lanes = (found["base"], int(found["lanes"] or 1)) if found else ("", 1)
        if base in _NAMED:
            return cls(*_NAMED[base], lanes)
        bits = int(found["bits"] or 0) if found else 0
        if not found or found["kind"] not in _CODES or not 0 < bits <= _MOST_BITS:
            raise ValueError(f"{name!r} is no data type")
        return cls(_CODES[found["kind"]], bits, lanes)

    def __str__(self) -> str:
        """Return the name that `of` takes."""
        lanes = f"x{self.lanes}" if self.lanes != 1 else ""
        for name, pair in _NAMED.items():
            if pair == (self.code, self.bits):
                return name + lanes
        names = {code: name for name, code in _CODES.items()}
        return f"{names.get(self.code, f'code{self.code}_')}{self.bits}{lanes}"


@dataclass(frozen=True, slots=True)
class RemoteDevice:
    """A device of the server (DLDevice): its type, 1 for the CPU, and its number."""

    type: int
    number: int = 0

    @property
    def has_plain_addresses(self) -> bool:
        """Return whether the server reads its memory as its own, so that parts can be copied."""
        return self.type == 1


CPU = RemoteDevice(1)


@dataclass(frozen=True, slots=True)
class RemotePointer:
    """An address of the server, opaque to the client."""

    address: int


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object that the server keeps for this client until its handle is freed.

    `type_index` is TVM's number for its class: 68 for a function, 73 for a module.
    """

    type_index: int
    address: int


@dataclass(frozen=True, slots=True)
class RemoteTensor:
    """A tensor in the server's memory.

    `handle` is the address of the object that owns it, or 0 if only its memory is the client's.
    """

    data: int
    device: RemoteDevice
    data_type: DataType
    shape: tuple[int, ...]
    byte_offset: int = 0
    handle: int = 0

    @property
    def size_bytes(self) -> int:
        """Return how many bytes its elements take."""
        bits = math.prod(self.shape) * self.data_type.bits * self.data_type.lanes
        return (bits + 7) // 8


_Remote = DataType | RemoteDevice | RemotePointer | RemoteObject | RemoteTensor
Argument = int | float | str | bytes | bytearray | _Remote | None
Result = int | float | str | bytes | _Remote | None
