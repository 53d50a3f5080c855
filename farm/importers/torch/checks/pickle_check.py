"""Check pickles without unpickling them: the names in them, and the sizes of their tensors.

A pickle is a program for a stack machine. This module runs that machine with placeholders instead
of classes and functions, so that nothing is imported and nothing is called. torch's own readers
trust the declared sizes of tensors: a tensor that is larger than its record lets a program read
memory behind the record.

Sources: CPython's pickletools.py, torch/serialization.py,
torch/csrc/jit/serialization/unpickler.cpp.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from farm.errors import ModelError
from farm.importers.archive_check import Archive

_PICKLE_BYTES = 512 << 20
# EXT*, INST, OBJ, BYTEARRAY8, buffers, NEWOBJ_EX: torch does not write these.
_NEEDLESS = (b"\x82", b"\x83", b"\x84", b"i", b"o", b"\x96", b"\x97", b"\x98", b"\x92")
_ITEM_BYTES = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4, "ShortStorage": 2,  # noqa: E501
    "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexFloatStorage": 8, "ComplexDoubleStorage": 16, "QInt8Storage": 1,  # noqa: E501
    "QUInt8Storage": 1, "QInt32Storage": 4, "QUInt4x2Storage": 1, "QUInt2x4Storage": 1, "UntypedStorage": 1,  # noqa: E501
}  # fmt: skip
_REBUILDS = (
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_qtensor",
)
_OF_TENSORS = re.compile(
    r"torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.nn\.parameter\.(?:Parameter|Buffer)|torch\.Size|torch\.Tensor"
    r"|torch\.device|torch\.\w*Storage|torch\.storage\.\w+Storage|torch\.serialization\._get_layout"
    r"|torch\.(?:u?int|float|bfloat|complex|q|bool|per_)\w*"
    r"|collections\.(?:OrderedDict|Counter)|_codecs\.encode|builtins\.(?:set|bytearray|complex)|__builtin__\.(?:set|bytearray|complex)"
)
# Names that torch's reader of scripts replaces by numbers. It calls functions by their numbers, so
# a call of such a name would be one of another function.
_NUMBERS = re.compile(r"torch\.(?!device$)[a-z]\w*|torch\.(?:storage\.)?\w+Storage")
_FIX = "save tensors alone, with torch.save(module.state_dict(), path), or with torch.export.save"


@dataclass(frozen=True, slots=True)
class _Storage:
    """A record that a pickle refers to: its key, declared size and element size in bytes."""

    key: str
    bytes: int
    item_bytes: int


class _Placeholder:
    """Stand-in for a class, a function or an object that a pickle names.

    An object has no name of its own, but that of the function that made it, `made_by`.
    """

    def __init__(self, name: str = "", made_by: str = "") -> None:
        self.name, self.made_by = name, made_by


class _Refused(Exception):
    """The pickle is not read."""


class _Machine(pickle._Unpickler):
    """The stack machine of pickles, with placeholders for all classes and functions.

    It is Python's own implementation in Python, which allocates no memory for declared sizes.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    append: Callable[[Any], None]

    def __init__(self, content: bytes, size_of: Callable[[str], int | None]) -> None:
        super().__init__(io.BytesIO(content))
        self.names: set[str] = set()
        self._size_of = size_of

    def find_class(self, module: str, name: str) -> _Placeholder:
        """Record a name and return its placeholder."""
        full = f"{module}.{name}"
        self.names.add(full)
        return _Placeholder(full)

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the record of a storage; raise _Refused if it is smaller than declared."""
        if (
            not isinstance(pid, tuple)
            or len(pid) < 5
            or pid[0] != "storage"
            or not isinstance(pid[1], _Placeholder)
        ):
            raise _Refused("it refers to a record in a way that torch does not write")
        kind, key, count = pid[1].name.rpartition(".")[2], pid[2], pid[4]
        if (
            kind not in _ITEM_BYTES
            or not isinstance(key, str)
            or type(count) is not int
            or count < 0
        ):
            raise _Refused("it refers to a record in a way that torch does not write")
        item = _ITEM_BYTES[kind]
        there = self._size_of(key)
        if count and (there is None or there < count * item):
            raise _Refused(
                f"a tensor of {count * item:,} bytes is said to be in the record {key!r:.80}, "
                f"which has {there or 0:,}"
            )
        return _Storage(key, count * item, item)

    def _load_reduce(self) -> None:
        """Replace a call by a placeholder; check the arguments if the call rebuilds a tensor."""
        arguments = self.stack.pop()
        function = self.stack[-1]
        if (
            not isinstance(function, _Placeholder)
            or not function.name
            or _NUMBERS.fullmatch(function.name)
        ):
            named = ", ".join(sorted(self.names)[:5])
            raise _Refused(f"it calls what is no function; it names {named}")
        if function.name in _REBUILDS:
            _check_tensor(arguments)
        self.stack[-1] = _Placeholder(made_by=function.name)

    def _load_newobj(self) -> None:
        """Leave the class of a new object in its place: torch's reader of scripts does the same."""
        self.stack.pop()

    def _load_build(self) -> None:
        """Drop the state of an object.

        torch's reader of scripts calls what stands below the state.
        """
        if getattr(self.stack[-2], "made_by", "") == "collections.OrderedDict":
            self.stack.pop()
        else:
            self._load_reduce()

    def _load_appends(self) -> None:
        """Append items to a list; drop items of other objects."""
        items = self.pop_mark()
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)

    def _load_append(self) -> None:
        """Append an item to a list; drop an item of another object."""
        value = self.stack.pop()
        if isinstance(self.stack[-1], list):
            self.stack[-1].append(value)

    def _load_items(self) -> None:
        """Drop the items of a dict or set; they were checked when they were put on the stack."""
        self.pop_mark()

    def _load_item(self) -> None:
        """Drop an item of a dict."""
        self.stack.pop()
        self.stack.pop()

    def _load_dict(self) -> None:
        """Replace a dict by an empty one."""
        self.pop_mark()
        self.append({})

    def _load_set(self) -> None:
        """Replace a set by a placeholder."""
        self.pop_mark()
        self.append(_Placeholder())

    dispatch: ClassVar[dict[int, Any]] = {
        **{
            code: load
            for code, load in pickle._Unpickler.dispatch.items()
            if bytes([code]) not in _NEEDLESS
        },
        pickle.REDUCE[0]: _load_reduce,
        pickle.NEWOBJ[0]: _load_newobj,
        pickle.BUILD[0]: _load_build,
        pickle.APPENDS[0]: _load_appends,
        pickle.APPEND[0]: _load_append,
        pickle.SETITEMS[0]: _load_items,
        pickle.SETITEM[0]: _load_item,
        pickle.DICT[0]: _load_dict,
        pickle.ADDITEMS[0]: _load_items,
        pickle.FROZENSET[0]: _load_set,
    }


def _check_tensor(arguments: Any) -> None:
    """Raise _Refused for a tensor that extends beyond its record.

    `arguments` are those by which torch rebuilds it: the record, an offset, extents and strides.
    """
    if (
        not isinstance(arguments, tuple)
        or len(arguments) < 4
        or not isinstance(arguments[0], _Storage)
    ):
        raise _Refused("it has a tensor without a record")
    storage, offset, shape, strides = arguments[:4]
    numbers = [
        offset,
        *(shape if isinstance(shape, tuple) else ()),
        *(strides if isinstance(strides, tuple) else ()),
    ]
    fits = isinstance(shape, tuple) and isinstance(strides, tuple) and len(shape) == len(strides)
    if not fits or any(type(number) is not int or number < 0 for number in numbers):
        raise _Refused("it has a tensor of a shape that is none")
    if 0 in shape:
        return
    last = offset + sum(
        (extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)
    )
    if (last + 1) * storage.item_bytes > storage.bytes:
        raise _Refused(
            f"a tensor of the shape {list(shape)[:8]} does not fit into its record of "
            f"{storage.bytes:,} bytes"
        )


def names_in_pickle(content: bytes, size_of: Callable[[str], int | None], what: str) -> set[str]:
    """Return the classes and functions that a pickle names, as module.name.

    `size_of` returns the bytes of a record by its key. Raises ModelError for content that is not a
    pickle, and for tensors that are larger than their records.
    """
    machine = _Machine(content, size_of)
    try:
        machine.load()
    except _Refused as exc:
        raise ModelError(f"{what} is not read", str(exc), _FIX) from exc
    # A damaged pickle makes the machine's methods raise arbitrary exceptions.
    except Exception as exc:
        raise ModelError(
            f"{what} is no pickle of tensors", f"{type(exc).__name__}: {exc}", _FIX
        ) from exc
    return machine.names


def check_names(names: Iterable[str], allowed: re.Pattern[str], what: str) -> None:
    """Raise ModelError for classes and functions that are not allowed."""
    if others := sorted(name for name in names if not allowed.fullmatch(name)):
        listed = ", ".join(others[:5])
        raise ModelError(
            f"{what} holds more than tensors",
            f"it names {listed}: reading a pickle can run any code, so it is not read",
            _FIX,
        )


def check_saved_tensors(content: bytes, what: str) -> None:
    """Raise ModelError unless a file that torch.save wrote holds only tensors and plain values.

    `content` is the file as bytes.
    """
    from pathlib import Path

    with Archive(Path(), content, what) as archive:
        root = next(iter(archive.entries), "").partition("/")[0]
        if (
            any("/code/" in name or name.endswith("/constants.pkl") for name in archive.entries)
            or f"{root}/data.pkl" not in archive.entries
        ):
            raise ModelError(
                f"{what} is not read", "it is nothing that torch.save writes of tensors", _FIX
            )
        check_names(names_in_archived_pickle(archive, "data.pkl", "data", what), _OF_TENSORS, what)


def names_in_archived_pickle(archive: Archive, pickled: str, folder: str, what: str) -> set[str]:
    """Return the names in a pickle of a torch archive, whose tensors are records in `folder`.

    Raises ModelError like `names_in_pickle`.
    """
    root = next(iter(archive.entries), "").partition("/")[0]

    def size_of(key: str) -> int | None:
        entry = archive.entries.get(f"{root}/{folder}/{key}")
        return None if entry is None else entry.bytes

    return names_in_pickle(archive.read(f"{root}/{pickled}", _PICKLE_BYTES), size_of, what)
