"""Check TFLite files before LiteRT reads them: offsets, sizes, and the order of writes and reads.

LiteRT verifies offsets itself, and trusts everything else: an operator that reads a tensor which
nothing has written before, or a constant of another size than its shape declares, makes it write
beyond its memory. The file is parsed here in Python, without any package.

The formats: https://flatbuffers.dev/internals and the schema that farm.importers.tflite.tflite_file
names.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from farm.errors import ModelError
from farm.importers.size_limits import check_tensor_fits_memory

# Bytes per element by TensorType.
_ITEM_BYTES = {
    0: 4,
    1: 2,
    2: 4,
    3: 1,
    4: 8,
    6: 1,
    7: 2,
    8: 8,
    9: 1,
    10: 8,
    11: 16,
    12: 8,
    15: 4,
    16: 2,
    18: 2,
}
_ITEM_BITS = {17: 4, 19: 2}  # of packed types
_STRING, _RESOURCE, _VARIANT = 5, 13, 14
_MOST_AXES = 8
_MOST_SUBGRAPHS = 256
_FIX = "copy it again, or convert the model again"


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a FlatBuffer: its offset, and the offsets of its fields by number."""

    at: int
    fields: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of a subgraph: name, shape, TensorType, and whether it is constant or variable."""

    name: str
    shape: tuple[int, ...]
    type: int
    constant: bool
    variable: bool


class _Damaged(ValueError):
    """The file points beyond its end or contradicts itself."""


def check_tflite(content: bytes, what: str) -> None:
    """Raise ModelError for a file that is damaged or that would harm its reader.

    `what` names the file in the message.
    """
    try:
        _Reader(content, what).check()
    except (_Damaged, struct.error, UnicodeDecodeError) as exc:
        raise ModelError(
            f"{what} is not a whole TFLite file", f"{exc}; it has {len(content)} bytes", _FIX
        ) from exc


class _Reader:
    """Reader of a FlatBuffer that checks every offset."""

    def __init__(self, content: bytes, what: str) -> None:
        self._content = content
        self._what = what
        # The number of tables that fit into a file of this size if no table is shared.
        self._tables = len(content) // 4

    def check(self) -> None:
        """Check the whole model; raise _Damaged."""
        model = self._table(self._unsigned(0))
        codes = len(self._vector(model, 1, 4))
        buffers = [self._buffer(at) for at in self._tables_of(model, 4)]
        subgraphs = list(self._tables_of(model, 2))
        if not 0 < len(subgraphs) <= _MOST_SUBGRAPHS:
            raise _Damaged(f"it has {len(subgraphs)} subgraphs")
        for at in self._tables_of(model, 1):
            self._text(at, 1)
        for subgraph in subgraphs:
            self._check_subgraph(subgraph, codes, buffers)

    def _check_subgraph(self, subgraph: _Table, codes: int, buffers: list[int]) -> None:
        """Check that operators read only tensors that are written before, and write no constant."""
        tensors = [self._tensor(table, buffers) for table in self._tables_of(subgraph, 0)]
        inputs, outputs = self._integers(subgraph, 1), self._integers(subgraph, 2)
        for index in (*inputs, *outputs):
            _in_range(index, len(tensors), "input or output")
        operators = list(self._tables_of(subgraph, 3))
        results = {index for operator in operators for index in self._results(operator)}
        written = {
            index
            for index, tensor in enumerate(tensors)
            if tensor.constant or tensor.variable or (0 in tensor.shape and index not in results)
        } | set(inputs)
        for number, operator in enumerate(operators):
            _in_range(self._scalar(operator, 0, "<I", 0), codes, f"kind of operator {number}")
            for index in self._integers(operator, 1):
                if index != -1:
                    _in_range(index, len(tensors), f"input of operator {number}")
                    if index not in written:
                        raise _Damaged(
                            f"operator {number} reads {tensors[index].name!r}, which nothing "
                            "has written before"
                        )
            made = self._results(operator)
            for index in made:
                _in_range(index, len(tensors), f"output of operator {number}")
                if tensors[index].constant or index in inputs:
                    raise _Damaged(
                        f"operator {number} writes {tensors[index].name!r}, which is an input "
                        "or a constant"
                    )
            written.update(made)
        if missing := [tensors[index].name for index in outputs if index not in written]:
            raise _Damaged(f"nothing writes the output {missing[0]!r}")

    def _results(self, operator: _Table) -> list[int]:
        """Return the tensors that an operator writes: its outputs and its intermediate results."""
        return [
            *self._integers(operator, 2),
            *(index for index in self._integers(operator, 8) if index != -1),
        ]

    def _tensor(self, table: _Table, buffers: list[int]) -> _Tensor:
        """Return a tensor, checked for its shape, type, size and quantization."""
        name, shape, kind = (
            self._text(table, 3),
            tuple(self._integers(table, 0)),
            self._scalar(table, 1, "<b", 0),
        )
        buffer = self._scalar(table, 2, "<I", 0)
        _in_range(buffer, len(buffers), f"buffer of {name!r}")
        if len(shape) > _MOST_AXES or any(extent < -1 for extent in shape):
            raise _Damaged(f"{name!r} has the shape {list(shape)[: _MOST_AXES + 1]}")
        held = buffers[buffer]
        if self._field(table, 6):  # LiteRT takes its lists of places for right
            raise ModelError(
                f"{self._what} stores weights sparsely, which farm does not read",
                f"the constant {name!r} has a list of the places of its elements",
                "convert the model again, without sparsity",
            )
        if kind in _ITEM_BYTES:
            check_tensor_fits_memory(
                self._what,
                f"the tensor {name!r}",
                (1 if extent == -1 else extent for extent in shape),
                _ITEM_BYTES[kind],
            )
            if held and held != prod(shape) * _ITEM_BYTES[kind]:
                raise _Damaged(f"the constant {name!r} of the shape {list(shape)} has {held} bytes")
        elif kind in _ITEM_BITS:
            needed = (prod(max(extent, 1) for extent in shape) * _ITEM_BITS[kind] + 7) // 8
            if held and held < needed:
                raise _Damaged(f"the constant {name!r} of the shape {list(shape)} has {held} bytes")
        elif kind not in (_STRING, _RESOURCE, _VARIANT):
            raise _Damaged(f"{name!r} is of type {kind}, which there is not")
        self._check_quantization(table, name, shape)
        variable = bool(self._scalar(table, 5, "<b", 0))
        return _Tensor(name, shape, kind, held > 0, variable)

    def _check_quantization(self, table: _Table, name: str, shape: tuple[int, ...]) -> None:
        """Check a tensor's scales and zero points."""
        at = self._field(table, 4)
        if not at:
            return
        quantization = self._table(at + self._unsigned(at))
        scales = [
            struct.unpack_from("<f", self._content, place)[0]
            for place in self._vector(quantization, 2, 4)
        ]
        zeros = len(self._vector(quantization, 3, 8))
        axis = self._scalar(quantization, 6, "<i", 0)
        if zeros not in (0, 1, len(scales)):
            raise _Damaged(f"{name!r} has {len(scales)} scales and {zeros} zero points")
        if len(scales) > 1 and (not 0 <= axis < len(shape) or shape[axis] != len(scales)):
            raise _Damaged(
                f"{name!r} has {len(scales)} scales along axis {axis} of the shape {list(shape)}"
            )
        if any(not math.isfinite(scale) or scale < 0 for scale in scales):
            raise _Damaged(f"{name!r} has a scale that is negative or not finite")

    def _buffer(self, table: _Table) -> int:
        """Return the bytes of a buffer, stored in the file's tables or behind them."""
        offset, size = self._scalar(table, 1, "<Q", 0), self._scalar(table, 2, "<Q", 0)
        if offset > 1:
            if offset + size > len(self._content):
                raise _Damaged("a buffer ends behind the file")
            return int(size)
        return len(self._vector(table, 0, 1))

    def _tables_of(self, table: _Table, field: int) -> Iterator[_Table]:
        """Yield the tables of a vector."""
        for place in self._vector(table, field, 4):
            yield self._table(place + self._unsigned(place))

    def _table(self, at: int) -> _Table:
        """Return the table at an offset; raise _Damaged if it is malformed.

        Also raises _Damaged if the file has more tables than fit into it.
        """
        self._tables -= 1
        if self._tables < 0:
            raise _Damaged("it has more tables than fit into it")
        self._inside(at, 4)
        back: int = struct.unpack_from("<i", self._content, at)[0]
        begins = at - back
        self._inside(begins, 4)
        table_bytes, inline_bytes = struct.unpack_from("<HH", self._content, begins)
        self._inside(begins, table_bytes)
        self._inside(at, inline_bytes)
        if table_bytes < 4 or table_bytes % 2 or inline_bytes < 4:
            raise _Damaged("a table of it is damaged")
        offsets = struct.unpack_from(f"<{(table_bytes - 4) // 2}H", self._content, begins + 4)
        if any(offset >= inline_bytes for offset in offsets):
            raise _Damaged("a table of it is damaged")
        return _Table(at, offsets)

    def _field(self, table: _Table, field: int) -> int:
        """Return the offset of a field; 0 if the table omits it."""
        offset = table.fields[field] if field < len(table.fields) else 0
        return table.at + offset if offset else 0

    def _scalar(self, table: _Table, field: int, kind: str, default: int) -> int:
        """Return a scalar field of the struct format `kind`, or the default."""
        at = self._field(table, field)
        if not at:
            return default
        value: int = struct.unpack_from(kind, self._content, at)[0]
        return value

    def _vector(self, table: _Table, field: int, item_bytes: int) -> range:
        """Return the offsets of a vector's items."""
        at = self._field(table, field)
        if not at:
            return range(0)
        begins = at + self._unsigned(at)
        count = self._unsigned(begins)
        self._inside(begins + 4, count * item_bytes)
        return range(begins + 4, begins + 4 + count * item_bytes, item_bytes)

    def _integers(self, table: _Table, field: int) -> tuple[int, ...]:
        """Return a vector of int32."""
        places = self._vector(table, field, 4)
        return struct.unpack_from(f"<{len(places)}i", self._content, places.start) if places else ()

    def _text(self, table: _Table, field: int) -> str:
        """Return a string field."""
        places = self._vector(table, field, 1)
        return self._content[places.start : places.stop].decode()

    def _unsigned(self, at: int) -> int:
        """Return the uint32 at an offset."""
        self._inside(at, 4)
        value: int = struct.unpack_from("<I", self._content, at)[0]
        return value

    def _inside(self, at: int, count: int) -> None:
        """Raise _Damaged unless the bytes are within the file."""
        if at < 0 or at + count > len(self._content):
            raise _Damaged("it points behind its end: it may be cut off")


def _in_range(index: int, count: int, what: str) -> None:
    """Raise _Damaged unless 0 <= index < count."""
    if not 0 <= index < count:
        raise _Damaged(f"the {what} is number {index} of {count}")
