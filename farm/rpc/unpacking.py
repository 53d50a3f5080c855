"""The bytes of an answer to a value.

The answer has passed `answers.AnswerFilter`: its types, counts and lengths are right.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

from farm.rpc.answer_filter import AnswerError, FfiTypeIndex
from farm.rpc.value_types import (
    DataType,
    RemoteDevice,
    RemoteObject,
    RemotePointer,
    RemoteTensor,
    Result,
)

_VALUES_AT = 12  # after length and code
_COUNT = struct.Struct("<i")
_SIZE = struct.Struct("<Q")
_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_DATA_TYPE = struct.Struct("<BBHi")
_DEVICE = struct.Struct("<ii")
_TENSOR = struct.Struct("<QiiiBBH")


def exception_text(packet: bytes) -> str:
    """Return the text of an exception."""
    reader = _Reader(packet)
    reader.count()
    return reader.text(errors="replace")


def unpack_returned_value(packet: bytes) -> Result:
    """Return what a function returned.

    Raises AnswerError for a text that is not UTF-8.
    """
    reader = _Reader(packet)
    reader.count()
    reader.count()  # the type of the first value: an integer
    kind = reader.integer()
    value = reader.value()
    if isinstance(value, RemoteTensor) and kind == FfiTypeIndex.TENSOR:
        owner = reader.value()
        address = owner.address if isinstance(owner, RemotePointer) else 0
        return replace(value, handle=address)
    if isinstance(value, RemotePointer) and kind >= FfiTypeIndex.FIRST_OBJECT:
        return RemoteObject(kind, value.address)
    return value


def unpack_syscall_result(packet: bytes) -> Result:
    """Return what a request of TVM's own returned."""
    reader = _Reader(packet)
    reader.count()
    return reader.value()


class _Reader:
    """The values of a packet, from the first."""

    def __init__(self, packet: bytes) -> None:
        self._packet, self._at = packet, _VALUES_AT

    def count(self) -> int:
        """Return a 32-bit integer."""
        return int(self._take(_COUNT)[0])

    def integer(self) -> int:
        """Return a 64-bit integer."""
        return int(self._take(_INT)[0])

    def value(self) -> Result:
        """Return a value that follows its type."""
        kind = self.count()
        return _READERS[kind](self)

    def text(self, errors: str = "strict") -> str:
        """Return a text that follows its type."""
        self.count()
        return self._text(errors)

    def _take(self, form: struct.Struct) -> tuple[int, ...]:
        values = form.unpack_from(self._packet, self._at)
        self._at += form.size
        return values

    def _bytes(self) -> bytes:
        (size,) = self._take(_SIZE)
        self._at += size
        return self._packet[self._at - size : self._at]

    def _text(self, errors: str = "strict") -> str:
        try:
            return self._bytes().decode(errors=errors)
        except UnicodeDecodeError as exc:
            raise AnswerError("a text that is not UTF-8") from exc

    def _owned_text(self) -> str:
        self.count()
        return self._text()

    def _nothing(self) -> None:
        return None

    def _bool(self) -> bool:
        return self.integer() != 0

    def _float(self) -> float:
        return float(self._take(_FLOAT)[0])

    def _pointer(self) -> RemotePointer:
        return RemotePointer(self._take(_SIZE)[0])

    def _data_type(self) -> DataType:
        return DataType(*self._take(_DATA_TYPE)[:3])

    def _device(self) -> RemoteDevice:
        return RemoteDevice(*self._take(_DEVICE))

    def _tensor(self) -> RemoteTensor:
        data, device, number, dimensions, code, bits, lanes = self._take(_TENSOR)
        shape = tuple(self.integer() for _ in range(dimensions))
        (offset,) = self._take(_SIZE)
        data_type = DataType(code, bits, lanes)
        return RemoteTensor(data, RemoteDevice(device, number), data_type, shape, offset)


_READERS: dict[int, Callable[[_Reader], Result]] = {
    FfiTypeIndex.NONE: _Reader._nothing,
    FfiTypeIndex.INT: _Reader.integer,
    FfiTypeIndex.BOOL: _Reader._bool,
    FfiTypeIndex.FLOAT: _Reader._float,
    FfiTypeIndex.OPAQUE_POINTER: _Reader._pointer,
    FfiTypeIndex.DATA_TYPE: _Reader._data_type,
    FfiTypeIndex.DEVICE: _Reader._device,
    FfiTypeIndex.DL_TENSOR_POINTER: _Reader._tensor,
    FfiTypeIndex.RAW_STRING: _Reader._text,
    FfiTypeIndex.BYTE_ARRAY_POINTER: _Reader._bytes,
    FfiTypeIndex.STRING: _Reader._owned_text,
    FfiTypeIndex.SMALL_STRING: _Reader._owned_text,
}
