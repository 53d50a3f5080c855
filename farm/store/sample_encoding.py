"""Compact lossless encoding of latency samples.

The first byte names the encoding. 0: float64 seconds, little-endian. 1: whole nanoseconds below
2^32, as a device's clock gives them; their first bytes, then their second bytes and so on,
deflated. Samples that are not exactly whole nanoseconds stay float64.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence

_FLOATS, _NANOSECONDS = b"\0", b"\1"
_WIDTH = 4
_MOST_SAMPLES = 4 << 20  # of one row of a record, which another user may have written


def pack_samples(seconds: Sequence[float]) -> bytes:
    """Return the samples, in seconds, encoded in as few bytes as possible."""
    if (nanoseconds := _whole(seconds)) is None:
        return _FLOATS + to_float64_bytes(seconds)
    plain = struct.pack(f"<{len(nanoseconds)}I", *nanoseconds)
    return _NANOSECONDS + zlib.compress(b"".join(plain[place::_WIDTH] for place in range(_WIDTH)))


def unpack_samples(data: bytes) -> tuple[float, ...]:
    """Return the samples that `pack_samples` encoded. Raises ValueError for other data."""
    kind, content = data[:1], data[1:]
    try:
        if kind == _FLOATS:
            return struct.unpack(f"<{len(content) // 8}d", content)
        if kind == _NANOSECONDS:
            opened = zlib.decompressobj()
            columns = opened.decompress(content, _MOST_SAMPLES * _WIDTH)
            if not opened.eof:
                raise ValueError(f"they are cut off, or more than {_MOST_SAMPLES:,}")
            count = len(columns) // _WIDTH
            plain = bytearray(len(columns))
            for place in range(_WIDTH):
                plain[place::_WIDTH] = columns[place * count : (place + 1) * count]
            return tuple(value / 1e9 for value in struct.unpack(f"<{count}I", plain))
    except (struct.error, zlib.error, ValueError) as exc:
        raise ValueError(f"damaged samples: {exc}") from exc
    raise ValueError(f"samples of unknown kind {kind!r}")


def to_float64_bytes(seconds: Sequence[float]) -> bytes:
    """Return the seconds as little-endian float64."""
    return struct.pack(f"<{len(seconds)}d", *seconds)


def _whole(seconds: Sequence[float]) -> list[int] | None:
    """Return the seconds as nanoseconds if all of them are exactly whole nanoseconds, else None."""
    found = []
    for value in seconds:
        if not 0 <= value < 4.2 or math.copysign(1.0, value) < 0:
            return None
        nanoseconds = round(value * 1e9)
        if nanoseconds / 1e9 != value:
            return None
        found.append(nanoseconds)
    return found
