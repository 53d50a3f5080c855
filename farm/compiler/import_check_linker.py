"""Link the code that the check of an import generated, so that the check can load and run it.

The check may run in a sandbox, which starts no program, and its process is alive while its object
files are linked: whoever has taken it over could exchange them. They are copied first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.compiler.artifact import LIBRARY
from farm.compiler.build import OBJECTS, checked_object_files, link_objects
from farm.errors import BuildError
from farm.processes.worker_main import disk_full_error
from farm.types import Profile

_WHAT = "the process that checked the import"
_MOST_LIBRARIES = 2  # a model with an open batch is checked again with its example shapes


@dataclass(frozen=True, slots=True)
class ImportCheckLinker:
    """The helper of an import's check: called with names of object files, it returns a library.

    The object files lie in the folder `made`, to which the check writes. Each library, and the
    copies of the objects that it is made of, lie in a folder of its own in `folder`, which the
    check can only read: a library of the name of a loaded one would not be loaded.
    """

    profile: Profile
    made: Path
    folder: Path

    def __call__(self, names: Any) -> Path:
        """Return the path of the library of these object files. Raises BuildError."""
        if not isinstance(names, tuple) or not all(isinstance(one, str) for one in names):
            # Its text might be far longer than the request
            raise BuildError(f"{_WHAT} named no object files", f"but a {type(names).__name__}")
        try:
            checked_object_files(_WHAT, self.made, names)
            folder = self._new_folder()
            copies = folder / OBJECTS
            copies.mkdir()
            for name in names:
                self._copy(name, copies)
            link_objects(self.profile, folder / LIBRARY, checked_object_files(_WHAT, folder, names))
        except OSError as exc:
            unlinked = BuildError(f"{_WHAT}: its code cannot be linked", str(exc))
            raise disk_full_error(exc) or unlinked from exc
        return folder / LIBRARY

    def _new_folder(self) -> Path:
        for number in range(_MOST_LIBRARIES):
            with contextlib.suppress(FileExistsError):
                (folder := self.folder / str(number)).mkdir()
                return folder
        raise BuildError(f"{_WHAT} asked for more than {_MOST_LIBRARIES} libraries")

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
