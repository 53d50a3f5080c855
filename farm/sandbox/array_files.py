"""Read the .npz files that a process with an untrusted model has left.

numpy allocates what a header asks for, and unpacks what is compressed. Here the arrays of a file
take no more memory than the file, and hold no objects.
"""

from __future__ import annotations

import io
import math
import shlex
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import ModelError
from farm.npy_header import read_npy_header

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an uncompressed .npz by name. Raises ModelError for anything else."""
    try:
        if path.is_symlink() or not path.is_file():
            raise ValueError("it is no regular file")
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise ValueError("an array is compressed")
            if sum(entry.file_size for entry in entries) > path.stat().st_size:
                raise ValueError("its arrays are larger than the file")
            return {
                entry.filename.removesuffix(".npy"): parse_npy(archive.read(entry))
                for entry in entries
            }
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        RuntimeError,
        MemoryError,
        EOFError,
        zipfile.BadZipFile,
    ) as exc:
        # RuntimeError: an encrypted entry, a method of compression that is not known, recursion
        fix = f"rm -r {shlex.quote(str(path.parent))}"
        raise ModelError(
            f"{path.name} is damaged", f"{type(exc).__name__}: {exc}"[:600], fix
        ) from exc


def parse_npy(content: bytes) -> Array:
    """Return the array in the bytes of an .npy file. Raises ValueError for any other content."""
    import numpy as np

    file = io.BytesIO(content)
    header = read_npy_header(file)
    shape, dtype, count = header.shape, header.dtype, math.prod(header.shape)
    if dtype.hasobject or len(content) - file.tell() != dtype.itemsize * count:
        raise ValueError(
            f"an array of {dtype} {list(shape)} has {len(content) - file.tell()} bytes"[:200]
        )
    values = (
        np.frombuffer(content, dtype, count, file.tell())
        if dtype.itemsize * count
        else np.empty(count, dtype)
    )
    return values.reshape(shape, order="F" if header.fortran else "C").copy(order="K")
