"""The headers of arrays in numpy's format, as numpy writes them and as nobody does."""

from __future__ import annotations

import io
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from farm.npy_header import NpyHeader, read_npy_header

ARRAYS: list[np.ndarray[Any, Any]] = [
    np.zeros((), np.float32),
    np.zeros(3, ">i8"),
    np.zeros((0, 4), np.bool_),
    np.asfortranarray(np.zeros((2, 3, 5), np.complex64)),
    np.array(["one", "three"]),
    np.array([b"ab"]),
    np.zeros(2, "datetime64[ms]"),
]


def saved(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def with_header(text: str, version: bytes = b"\x01\x00") -> io.BytesIO:
    return io.BytesIO(b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode())


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{list(array.shape)}")
def test_what_numpy_writes_is_read_as_numpy_reads_it(array: np.ndarray[Any, Any]) -> None:
    file = io.BytesIO(saved(array))
    header = read_npy_header(file)
    assert (header.shape, header.dtype) == (array.shape, array.dtype)
    assert header.fortran == (array.flags.f_contiguous and not array.flags.c_contiguous)
    assert file.read() == array.tobytes("A")


def test_another_writer_may_order_and_space_it_as_it_likes() -> None:
    file = with_header('{"shape":(2L, 3),"descr":"<u2" , "fortran_order":True}\n')
    assert read_npy_header(file) == NpyHeader((2, 3), True, np.dtype("<u2"))


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (io.BytesIO(b"PK\x03\x04, an archive"), "does not begin"),
        (io.BytesIO(b"\x93NUMPY\x01"), "does not begin"),
        (io.BytesIO(b"\x93NUMPY\x01\x00\xff\x00{"), "too early"),
        (io.BytesIO(b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31)), "2147483648 bytes"),
        (with_header("{}", b"\x07\x00"), r"version \(7, 0\)"),
        (with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"), "the header"),
        (
            with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1 + 1,), }"),
            "the header",
        ),
        (
            with_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }"),
            "the header",
        ),
        (
            with_header("{'descr': '<Q9', 'fortran_order': False, 'shape': (1,), }"),
            "numpy has no type",
        ),
        (with_header("{'descr': '<f4', 'shape': (1,), }"), "the header"),
        (
            with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1 " * 4000 + "x"),
            "the header",
        ),
    ],
)
def test_what_is_no_header_is_refused(file: io.BytesIO, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_npy_header(file)


def test_many_threads_read_headers_at_once() -> None:
    contents = [saved(np.zeros((number, 3), np.float32)) for number in range(64)]

    def shapes(_: int) -> list[tuple[int, ...]]:
        return [read_npy_header(io.BytesIO(content)).shape for content in contents]

    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(shapes, range(64)))
    assert found == [[(number, 3) for number in range(64)]] * 64
