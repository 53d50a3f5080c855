"""Resolve Include in ~/.ssh/config: paramiko parses everything else.

A ProxyCommand of the configuration is executed and an IdentityFile is read. Like OpenSSH, farm
therefore refuses a file that another user could have written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from farm.errors import DeviceError
from farm.ownership import foreign_writer

_MOST_DEEP = 16  # the same limit as OpenSSH
_OPTION = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*)")


def insert_included_files(file: Path) -> str:
    """Return the text of a configuration with its included files inserted.

    Raises OSError, and DeviceError if files include each other in a circle or if another user could
    have written one.
    """
    return "\n".join(_lines(file, file.parent, 0)) + "\n"


def _lines(file: Path, home: Path, depth: int) -> Iterator[str]:
    """Yield the lines of a file and of the files it includes.

    After an included file, the enclosing block continues. Relative names are relative to the folder
    `home`.
    """
    if depth > _MOST_DEEP:
        raise DeviceError(f"{file} is included by itself", "", "correct Include in ~/.ssh/config")
    if why := foreign_writer(file):
        fix = (
            f"see what is in it, then: chown $USER {quote(str(file))}; chmod go-w "
            f"{quote(str(file))}, and its folders"
        )
        raise DeviceError(
            f"another user could have written {file}", f"{why}; what it names is run", fix
        )
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
                yield block  # options before the included file's first block belong to this one
                yield from _lines(path, home, depth + 1)
        yield block
