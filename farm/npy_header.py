"""Read the header of an array in numpy's format.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

numpy reads it as a Python literal. Python 3.11 cannot do that in several threads at once: now and
then one of them gets "AST constructor recursion depth mismatch" (python/cpython#106905). Here it is
read by its form, and has one of numpy's simple types.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_MAGIC = b"\x93NUMPY"
_MOST_BYTES = 10_000  # of a header; numpy's own limit
_LENGTHS = {(1, 0): "<H", (2, 0): "<I"}  # by version
_FIELD = r"(['\"]){}\1\s*:\s*"
_DTYPE = re.compile(
    _FIELD.format("descr") + r"(['\"])([<>|=]?[?A-Za-z]\d{0,5}(?:\[\w{1,9}\])?)\2", re.ASCII
)
_ORDER = re.compile(_FIELD.format("fortran_order") + r"(True|False)\b", re.ASCII)
_SHAPE = re.compile(
    _FIELD.format("shape") + r"\(((?:\s*\d{1,19}L?\s*,)*(?:\s*\d{1,19}L?)?)\s*\)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """Shape, order and type of an array. With `fortran`, the first axis varies fastest."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


def read_npy_header(file: IO[bytes]) -> NpyHeader:
    """Read the header of an array; the file then stands at its first element.

    Raises ValueError for anything that is not an array of numbers, strings or times.
    """
    import numpy as np

    start = file.read(len(_MAGIC) + 2)
    if start[: len(_MAGIC)] != _MAGIC or len(start) != len(_MAGIC) + 2:
        raise ValueError("it does not begin as an array of numpy's format")
    version = (start[-2], start[-1])
    if version not in _LENGTHS:
        raise ValueError(f"version {version} of numpy's format")
    length = _read_exactly(file, struct.calcsize(_LENGTHS[version]))
    (size,) = struct.unpack(_LENGTHS[version], length)
    if size > _MOST_BYTES:
        raise ValueError(f"the header of an array has {size} bytes")
    text = _read_exactly(file, size).decode("latin-1").strip()
    dtype, order, shape = (pattern.search(text) for pattern in (_DTYPE, _ORDER, _SHAPE))
    if not (dtype and order and shape and text.startswith("{") and text.endswith("}")):
        raise ValueError(f"the header of an array is {text!r}"[:200])
    extents = tuple(int(extent) for extent in re.findall(r"\d+", shape[2]))
    try:
        return NpyHeader(extents, order[2] == "True", np.dtype(dtype[3]))
    except TypeError as exc:
        raise ValueError(f"numpy has no type {dtype[3]!r}") from exc


def _read_exactly(file: IO[bytes], count: int) -> bytes:
    content = file.read(count)
    if len(content) != count:
        raise ValueError("the header of an array ends too early")
    return content
