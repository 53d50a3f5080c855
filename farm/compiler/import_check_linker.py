"""Link the code that the check of an import generated, so that the check can load and run it.

The check may run in a sandbox, which starts no program, and its process is alive while its object
files are linked: whoever has taken it over could exchange them. They are copied first.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.compiler.artifact import LIBRARY
from farm.compiler.build import OBJECTS, checked_object_files, link_objects
from farm.errors import BuildError
from farm.types import Profile

_WHAT = "the process that checked the import"


@dataclass(frozen=True, slots=True)
class ImportCheckLinker:
    """The helper of an import's check: called with names of object files, it returns a library.

    The object files lie in the folder `made`, to which the check writes. The library, and the
    copies of the objects that it is made of, lie in `folder`, which the check can only read.
    """

    profile: Profile
    made: Path
    folder: Path

    def __call__(self, names: Any) -> Path:
        """Return the path of the library of these object files. Raises BuildError."""
        if not isinstance(names, tuple) or not all(isinstance(one, str) for one in names):
            raise BuildError(f"{_WHAT} asked for no library", repr(names)[:200])
        checked_object_files(_WHAT, self.made, names)
        copies = self.folder / OBJECTS
        copies.mkdir()
        for name in names:
            self._copy(name, copies)
        library = self.folder / LIBRARY
        link_objects(self.profile, library, checked_object_files(_WHAT, self.folder, names))
        return library

    def _copy(self, name: str, into: Path) -> None:
        """Copy an object file; no link is followed, and no special file is waited for."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            folder = os.open(self.made / OBJECTS, flags | os.O_DIRECTORY)
            try:
                descriptor = os.open(name, flags | os.O_NONBLOCK, dir_fd=folder)
            finally:
                os.close(folder)
            with os.fdopen(descriptor, "rb") as source, (into / name).open("xb") as copy:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise BuildError(f"{_WHAT} left other files than code", name)
                shutil.copyfileobj(source, copy)
        except FileNotFoundError as exc:
            raise BuildError(f"{_WHAT} left no code", name) from exc
        except OSError as exc:
            raise BuildError(f"{_WHAT}: its code cannot be copied", str(exc)) from exc
