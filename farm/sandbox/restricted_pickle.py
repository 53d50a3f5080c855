"""Pickle values that leave a sandbox so that reading them calls only constructors of known types.

A process that a model has taken over can send any bytes. Accepted are builtin values, paths, numpy
arrays of numbers, farm's own errors, the value types of `farm.types`, and types that the caller
names. Values are made by their constructors alone: pickle's BUILD, which sets attributes, could set
those of a class or of a function. The fields of a dataclass have the types that it declares, and
the parts of an error are texts. Reading takes memory by the size of what was sent: a few bytes
could ask for a table of 64 GiB, for a value that refers to another a thousand times to be copied,
or for the text of a list of lists.
"""

from __future__ import annotations

import functools
import io
import pickle
import pickletools
from collections.abc import Collection, Sized
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from farm.errors import FarmError
from farm.sandbox.field_types import type_checked_constructor

_PLAIN = {
    ("builtins", "bool"),
    ("builtins", "complex"),
    ("builtins", "float"),
    ("builtins", "frozenset"),
    ("builtins", "int"),
    ("builtins", "set"),
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13
}
# What `dumps` writes
_OPERATIONS = {
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "MEMOIZE", "BINGET", "LONG_BINGET"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET"),
    *("STACK_GLOBAL", "REDUCE"),
}
_MOST_OPERATIONS = 1 << 22  # each makes one value at most, of some hundred bytes
_ELEMENT_BYTES = 64  # of a set or a dictionary, about
_ROOM_BYTES = 16 << 20  # for paths that share long parts
_OURS = ("farm.types", "farm.errors")
_NUMBERS = "biufc"  # numpy's dtype kinds that hold numbers
_EXTENDED = ("bfloat16",)  # dtypes of ml_dtypes, which numpy knows by name only


def dumps(value: object) -> bytes:
    """Return a value as bytes for `loads`."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def loads(content: bytes, types: Collection[type] = ()) -> Any:
    """Return the value of bytes that may be hostile.

    `types` are accepted in addition to the known ones. Raises pickle.UnpicklingError, or any other
    exception that damaged content causes.
    """
    for count, (code, _, _) in enumerate(pickletools.genops(content)):
        if code.name not in _OPERATIONS:
            raise pickle.UnpicklingError(
                f"the operation {code.name} does not pass out of a sandbox"
            )
        if count >= _MOST_OPERATIONS:
            raise pickle.UnpicklingError("too many values")
    return _Unpickler(content, types).load()


def rebuild_array(dtype: str, shape: tuple[int, ...], content: bytes) -> Any:
    """Return a numpy array of numbers with this dtype and shape.

    Raises pickle.UnpicklingError for any other dtype.
    """
    import numpy as np

    if type(dtype) is not str or type(content) is not bytes:
        raise pickle.UnpicklingError("an array of no bytes")
    kind = np.dtype(dtype)
    if kind.kind not in _NUMBERS and kind.name not in _EXTENDED:
        raise pickle.UnpicklingError(f"an array of {dtype}")
    return np.frombuffer(content, kind).reshape(shape).copy()


def _error(cls: type[FarmError], *texts: Any) -> FarmError:
    if not all(type(text) is str for text in texts):
        raise TypeError(f"the parts of a {cls.__name__} are no texts")
    return cls(*texts)


def _member(cls: type[Enum], value: Any) -> Enum:
    if type(value) not in (str, int):
        raise TypeError(f"a {cls.__name__} is not named by a {type(value).__name__}")
    return cls(value)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return (type(value), tuple(getattr(value, field.name) for field in fields(value)))
        if isinstance(value, Enum):  # Python 3.11.0 to 3.11.3 would have getattr called
            return (type(value), (value.value,))
        if isinstance(value, FarmError):  # Dask's tblib pickles exceptions otherwise
            return value.__reduce__()
        if type(value).__module__ != "numpy":
            return NotImplemented
        import numpy as np

        if isinstance(value, np.generic):
            return (type(value.item()), (value.item(),))
        if type(value) is not np.ndarray:
            return NotImplemented
        name = value.dtype.name if value.dtype.name in _EXTENDED else value.dtype.str
        return (rebuild_array, (name, value.shape, value.tobytes()))


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, types: Collection[type]) -> None:
        super().__init__(io.BytesIO(content))
        self._types = {(one.__module__, one.__qualname__): one for one in types}
        self._left = len(content) + _ROOM_BYTES  # that constructors may yet copy

    def _copying(self, constructor: Any, *arguments: Any) -> Any:
        """Call a constructor that copies its arguments, of which many calls may share one."""
        for one in arguments:
            if isinstance(one, Sized):
                self._left -= len(one) * (1 if isinstance(one, (str, bytes)) else _ELEMENT_BYTES)
        if self._left < 0:
            raise pickle.UnpicklingError("values that are larger than what was sent")
        return constructor(*arguments)

    def find_class(self, module: str, name: str) -> Any:
        if known := self._types.get((module, name)):
            if is_dataclass(known):
                return type_checked_constructor(known, tuple(self._types.values()))
            return functools.partial(_member, known) if issubclass(known, Enum) else known
        if (module, name) == (__name__, rebuild_array.__name__):
            return functools.partial(self._copying, rebuild_array)
        if (module, name) in _PLAIN:
            return functools.partial(self._copying, super().find_class(module, name))
        if (
            any(module == ours or module.startswith(f"{ours}.") for ours in _OURS)
            and "." not in name
        ):
            found = super().find_class(module, name)
            if isinstance(found, type) and is_dataclass(found):
                return type_checked_constructor(found)
            if isinstance(found, type) and issubclass(found, FarmError):
                return functools.partial(_error, found)
            if isinstance(found, type) and issubclass(found, Enum):
                return functools.partial(_member, found)
        raise pickle.UnpicklingError(f"{module}.{name} does not pass out of a sandbox")
