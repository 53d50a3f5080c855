"""Include in ~/.ssh/config: the text of a configuration with those that it includes, in their places. Paramiko knows the rest of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from farm.errors import DeviceError

_MOST_DEEP = 16  # as OpenSSH has it
_OPTION = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*)")


def included(file: Path) -> str:
    """The whole text. Raises OSError, and DeviceError where files include each other for ever."""
    return "\n".join(_lines(file, file.parent, 0)) + "\n"


def _lines(file: Path, home: Path, depth: int) -> Iterator[str]:
    """The lines of a file; after what it includes, the block goes on in which it did so. Relative names are of the folder `home`."""
    if depth > _MOST_DEEP:
        raise DeviceError(f"{file} is included by itself", "", "correct Include in ~/.ssh/config")
    block = "Host *"
    for line in file.read_text(errors="replace").splitlines():
        found = _OPTION.match(line)
        option = found[1].lower() if found else ""
        if option != "include":
            block = line if option in ("host", "match") else block
            yield line
            continue
        assert found
        for name in shlex.split(found[2]):
            pattern = home / Path(name).expanduser()
            for path in sorted(Path("/").glob(str(pattern.absolute()).lstrip("/"))):
                yield block  # also for what comes before the first block of its own
                yield from _lines(path, home, depth + 1)
        yield block
