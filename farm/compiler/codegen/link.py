"""Link a model's object code into a shared library that works with any C library on the board.

Nothing of the build machine's system is linked in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm import subprocesses
from farm.deadline import Deadline
from farm.errors import BuildError
from farm.types import Profile

_LINK_S = 120.0


def linker(profile: Profile) -> Callable[..., None]:
    """Return the `fcompile` of `export_library`: the profile's compiler driver or lld.

    LLVM's lld comes from the ziglang package. It is called as a linker, not as a compiler driver,
    and then needs 0.1 s and no C library. The returned function raises BuildError if linking fails.
    """
    if profile.linker:
        command = [*profile.linker, "-shared", "-nostdlib", "-s", "-o"]
        fix = f"install {profile.linker[0]}, or remove `linker` from the profile {profile.name!r} to use the bundled linker"
    else:
        command = [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "--hash-style=gnu", "-s", "-o"]
        fix = "reinstall the bundled toolchain: pip install --force-reinstall ziglang"

    def link(output: str, objects: list[str], **_: Any) -> None:
        what = f"linking for {profile.name}"
        try:
            subprocesses.run([*command, output, *objects], deadline=Deadline(_LINK_S), what=what, fix=fix)
        except OSError as exc:
            raise BuildError(f"{what}: {command[0]} cannot be started", str(exc), fix) from exc
        if not Path(output).is_file():
            raise BuildError(f"{what}: {command[0]} made no library", " ".join(command), fix)

    return link
