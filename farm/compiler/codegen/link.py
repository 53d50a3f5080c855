"""Link a model's object code into a shared library that works with any C library on the board.

Nothing of the build machine's system is linked in.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm import sandbox
from farm.errors import BuildError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.sandbox.restricted_program import restricted_command
from farm.types import Profile

_LINK_S = 120.0
_LINKER_BYTES, _LIBRARY_BYTES = 4 << 30, 64 << 20  # besides those of the object files


def fcompile_for_profile(profile: Profile) -> Callable[..., None]:
    """Return the `fcompile` of `export_library`: the profile's compiler driver or lld.

    LLVM's lld comes from the ziglang package. It is called as a linker, not as a compiler driver,
    and then needs 0.1 s and no C library. It reads the object files and writes the library, and
    nothing else, where the kernel can restrict it: the object files may be a hostile process's.
    The returned function raises BuildError if linking fails.
    """
    if profile.linker:
        command = [*profile.linker, "-shared", "-nostdlib", "-s", "-o"]
        fix = (
            f"install {profile.linker[0]}, or remove `linker` from the profile {profile.name!r} "
            "to use the bundled linker"
        )
    else:
        command = [_zig(), "ld.lld", "-shared", "--hash-style=gnu", "-s", "-o"]
        fix = "reinstall the bundled toolchain: pip install --force-reinstall ziglang"

    def link(output: str, objects: list[str], **_: Any) -> None:
        what = f"linking for {profile.name}"
        whole, deadline = [*command, output, *objects], Deadline(_LINK_S)
        try:
            if profile.linker or not sandbox.sandbox_support().complete:
                subprocesses.run_program(whole, deadline=deadline, what=what, fix=fix)
            else:
                read, write = [Path(one) for one in objects], [Path(output).parent]
                given = sum(one.stat().st_size for one in read)
                with restricted_command(
                    whole,
                    read,
                    write,
                    memory_bytes=_LINKER_BYTES + 4 * given,
                    file_bytes=_LIBRARY_BYTES + 2 * given,
                ) as start:
                    subprocesses.run_program(
                        start.command,
                        deadline=deadline,
                        what=what,
                        fix=fix,
                        pass_fds=[start.descriptor],
                    )
        except OSError as exc:
            raise BuildError(f"{what}: {command[0]} cannot be started", str(exc), fix) from exc
        if not Path(output).is_file():
            raise BuildError(f"{what}: {command[0]} made no library", " ".join(command), fix)

    return link


def _zig() -> str:
    found = importlib.util.find_spec("ziglang")
    return str(Path((found and found.origin) or "ziglang").with_name("zig"))
