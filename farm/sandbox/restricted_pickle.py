"""Pickle values that leave a sandbox so that reading them calls only constructors of known types.

A process that a model has taken over can send any bytes. Accepted are builtin values, paths, numpy
arrays of numbers, farm's own errors, the value types of `farm.types`, and types that the caller
names. Values are made by their constructors alone: pickle's BUILD, which sets attributes, could set
those of a class or of a function. The fields of a dataclass have the types that it declares, and
the parts of an error are texts.
"""

from __future__ import annotations

import functools
import io
import pickle
import pickletools
from collections.abc import Collection
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
    if any(code.name == "BUILD" for code, _, _ in pickletools.genops(content)):
        raise pickle.UnpicklingError("attributes that are set do not pass out of a sandbox")
    return _Unpickler(io.BytesIO(content), types).load()


def rebuild_array(dtype: str, shape: tuple[int, ...], content: bytes) -> Any:
    """Return a numpy array of numbers with this dtype and shape.

    Raises pickle.UnpicklingError for any other dtype.
    """
    import numpy as np

    kind = np.dtype(dtype)
    if kind.kind not in _NUMBERS and kind.name not in _EXTENDED:
        raise pickle.UnpicklingError(f"an array of {dtype}")
    return np.frombuffer(content, kind).reshape(shape).copy()


def _error(cls: type[FarmError], *texts: Any) -> FarmError:
    if not all(type(text) is str for text in texts):
        raise TypeError(f"the parts of a {cls.__name__} are no texts")
    return cls(*texts)


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
    def __init__(self, file: io.BytesIO, types: Collection[type]) -> None:
        super().__init__(file)
        self._types = {(one.__module__, one.__qualname__): one for one in types}

    def find_class(self, module: str, name: str) -> Any:
        if known := self._types.get((module, name)):
            return (
                type_checked_constructor(known, tuple(self._types.values()))
                if is_dataclass(known)
                else known
            )
        if (module, name) == (__name__, rebuild_array.__name__):
            return rebuild_array
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
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
                return found
        raise pickle.UnpicklingError(f"{module}.{name} does not pass out of a sandbox")
