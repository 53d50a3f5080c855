"""Reduce this process's environment to the variables that the import of a model needs.

An environment often holds secrets: keys of clouds, tokens of services. A fork inherits it three
times over: as `os.environ`, as the C library's `environ`, and as the memory behind
/proc/self/environ, in which the kernel shows what the program was started with.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

# Names of variables, or their beginnings. Each is read by Python, the C library, TVM, torch, an
# inference engine, or by farm to find its cache.
NAMES = frozenset(
    (
        "FARM_CACHE",
        "FARM_DATA",
        "FARM_TEST",  # by which the tests recognise their processes
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
    )
)
BEGINNINGS = (
    "CUDA_",
    "GOMP_",
    "KMP_",
    "LC_",
    "MALLOC_",
    "MKL_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "TORCH_",
    "TVM_",
)
_SECRET = (
    "AUTH",
    "CREDENTIAL",
    "KEY",
    "PASS",
    "SECRET",
    "TOKEN",
)  # in a name with such a beginning
_ENV_START, _ENV_END = 47, 48  # of the fields of /proc/self/stat behind the program's name


def is_variable_kept(name: str) -> bool:
    """Return whether the process of a model gets the variable of this name."""
    if name in NAMES:
        return True
    return name.startswith(BEGINNINGS) and not any(word in name.upper() for word in _SECRET)


def reduce_environment() -> None:
    """Drop all variables that may not pass, and overwrite them in this process's memory."""
    held = dict(os.environb)
    passing = {name: value for name, value in held.items() if is_variable_kept(os.fsdecode(name))}
    os.environb.clear()  # os.environ would decode the values, and leave copies of them
    _overwrite_initial()
    os.environb.update(passing)
    for name, value in held.items():
        if name not in passing:
            _overwrite(value)


def _overwrite_initial() -> None:
    """Overwrite the variables among those that the program was started with; see proc(5)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    place, behind = int(fields[_ENV_START]), int(fields[_ENV_END])
    while place < behind:
        variable = ctypes.string_at(place)
        if not is_variable_kept(os.fsdecode(variable[: variable.find(b"=")])):
            ctypes.memset(place, 0, len(variable))
            _overwrite(variable)
        place += len(variable) + 1


def _overwrite(value: bytes) -> None:
    """Overwrite a value that nothing refers to any more: memory that is freed keeps its content."""
    if len(value) > 1:  # Python keeps one object for each single byte
        ctypes.memset(id(value) + bytes.__basicsize__ - 1, 0, len(value))
