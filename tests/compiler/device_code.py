"""Find the device code in a library that is built for a GPU, and disassemble it."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path

from timeouts import LIMIT_S

from farm.config import profiles
from farm.processes import subprocesses
from farm.processes.deadline import Deadline

SHIPPED = {
    name: profiles.profile_from_table(name, table)
    for name, table in profiles.built_in_profile_tables().items()
}
EM_CUDA = 190  # e_machine, of the ELF registry
HOSTS = {"cuda-sm90": 62, "cuda-sm80": 62, "jetson-orin-nano": 183}


def binaries(library: Path) -> Iterator[bytes]:
    """The ELF files for GPUs inside a library."""
    content, place = library.read_bytes(), 0
    while (place := content.find(b"\x7fELF", place + 1)) >= 0:
        if struct.unpack_from("<H", content, place + 18)[0] == EM_CUDA:
            offset, size, count = (
                struct.unpack_from(form, content, place + at)[0]
                for form, at in (("<Q", 40), ("<H", 58), ("<H", 60))
            )
            program, entries = (
                struct.unpack_from("<Q", content, place + 32)[0],
                struct.unpack_from("<HH", content, place + 54),
            )
            yield content[
                place : place + max(offset + size * count, program + entries[0] * entries[1])
            ]


def disassembled(binary: bytes, folder: Path) -> str:
    (found,) = importlib.util.find_spec("nvidia").submodule_search_locations
    (folder / "kernels.cubin").write_bytes(binary)
    command = [Path(found) / "cu13" / "bin" / "nvdisasm", folder / "kernels.cubin"]
    return subprocesses.run_program(
        command, deadline=Deadline(LIMIT_S), what="disassembling", fix=""
    )
