"""Memory that lies against a page that cannot be touched, for tensors and workspaces of kernels.

A kernel that reads or writes beyond its memory on the side of the page ends with a segmentation
fault. Memory begins at multiples of 64 bytes, as TVM's does, so a few bytes may lie between its end
and the page; they and the bytes on the other side are filled, and checked when the memory is freed.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PAGE = mmap.PAGESIZE
ALIGNMENT = 64  # of TVM's tensors and workspaces
ROOM = 1 << 20  # bytes that may be touched on both sides of memory without a guard
_NOTHING, _BOTH = mmap.PROT_READ & 0, mmap.PROT_READ | mmap.PROT_WRITE
_FAILED = ctypes.c_void_p(-1).value


class GuardSide(StrEnum):
    """The side of a tensor on which the page lies that cannot be touched."""

    END = "end"
    BEGIN = "begin"
    NONE = "none"  # room on both sides instead


FILL = {GuardSide.END: 0xA5, GuardSide.BEGIN: 0x5A, GuardSide.NONE: 0x3C}


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


_LIBC = _libc()


class GuardedBuffer:
    """Memory of `size` bytes, filled, with a guard.

    Raises MemoryError if there is none.
    """

    def __init__(self, size: int, guard: GuardSide) -> None:
        self.size, self.guard = size, guard
        inside = max(PAGE, -(-size // PAGE) * PAGE)
        margin = ROOM if guard is GuardSide.NONE else PAGE
        self._mapped = inside + 2 * margin
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = _LIBC.mmap(None, self._mapped, _BOTH, flags, -1, 0)
        if base in (None, _FAILED):
            raise MemoryError(f"{self._mapped} bytes with guard pages")
        self._base: int = base
        first = self._base + margin
        self._open = (self._base, self._base + self._mapped)
        if guard is not GuardSide.NONE:
            self._open = (first, first + inside)
        spare = (inside - size) // ALIGNMENT * ALIGNMENT
        self.address: int = first + (spare if guard is GuardSide.END else 0)
        ctypes.memset(self._open[0], FILL[guard], self._open[1] - self._open[0])
        if guard is not GuardSide.NONE:
            for page in (base, first + inside):
                _LIBC.mprotect(page, PAGE, _NOTHING)

    def touched(self) -> int | None:
        """Return the place, from the begin of the memory, of a byte outside that was written.

        Returns None if there is none.
        """
        import numpy as np

        low, high = self._open
        for begin, end in ((low, self.address), (self.address + self.size, high)):
            if end > begin:
                other = np.flatnonzero(_bytes(begin, end - begin) != FILL[self.guard])
                if other.size:
                    return begin + int(other[0]) - self.address
        return None

    def bytes(self) -> Array:
        """Return the memory as bytes; it is valid until `free`."""
        return _bytes(self.address, self.size)

    def free(self) -> None:
        """Return the memory to the system: an address in it can no longer be used."""
        _LIBC.munmap(self._base, self._mapped)


def _bytes(address: int, size: int) -> Array:
    """Return memory of this process as an array, which does not keep it alive."""
    import numpy as np

    if not size:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def tensor_in_guarded_buffer(memory: GuardedBuffer, shape: Sequence[int], dtype: str) -> Any:
    """Return a tensor of TVM in memory. It must not be used after the memory is freed."""
    import tvm

    # TVM takes no address, and numpy passes on no tensor of nothing
    whole = _bytes(memory.address, max(memory.size, 1))
    return tvm.runtime.from_dlpack(whole)._create_view(tuple(shape), dtype)


# TVMBackendAllocWorkspace(device type, device, bytes, type code, type bits), and its counterpart
_ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int
)
_RELEASE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


class GuardedWorkspaces:
    """Gives the kernels of a library workspaces with a guard, instead of TVM's.

    A library has pointers to the functions of the runtime, which TVM sets when it loads it.
    """

    def __init__(self, file: str) -> None:
        self.guard = GuardSide.NONE
        self._given: dict[int, GuardedBuffer] = {}
        self._touched: list[tuple[int, int]] = []
        self._functions = (_ALLOCATE(self._allocate), _RELEASE(self._release))
        library = ctypes.CDLL(file)
        names = ("__TVMBackendAllocWorkspace", "__TVMBackendFreeWorkspace")
        for name, function in zip(names, self._functions, strict=True):
            try:
                pointer = ctypes.c_void_p.in_dll(library, name)
            except ValueError:  # no kernel of the library has a workspace
                continue
            pointer.value = ctypes.cast(function, ctypes.c_void_p).value

    def take_touched(self) -> list[tuple[int, int]]:
        """Return the size of each workspace beyond which a kernel has written, and the place.

        Workspaces that were not freed are looked at, too, and are freed.
        """
        for address in list(self._given):
            self._release(0, 0, address)
        found, self._touched = self._touched, []
        return found

    def _allocate(self, _: int, __: int, size: int, ___: int, ____: int) -> int | None:
        try:
            memory = GuardedBuffer(size, self.guard)
        except MemoryError:
            return None  # TVM's kernel then returns an error
        self._given[memory.address] = memory
        return memory.address

    def _release(self, _: int, __: int, address: int) -> int:
        memory = self._given.pop(address)
        if (place := memory.touched()) is not None:
            self._touched.append((memory.size, place))
        memory.free()
        return 0
