"""Record the files that a `python:` source depends on while it runs.

Recorded are the user's own modules (and farm.zoo), and every file that Python code opens for
reading meanwhile. The standard library and installed packages are covered by their versions
instead. Files that native code opens directly, as safetensors does, are not seen.

Modules stay loaded in the process. Each module is therefore marked with the files that were read
during its import: a later import in the same process adds these to its own record, and detects
whether any of them has changed since.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import farm
from farm.store import file_digest

# Attribute of modules: {path: digest} of the files read while they were imported.
_MARK = "__farm_read__"
_FARM = Path(farm.__file__).resolve().parent
_SYSTEM = (
    Path("/proc"),
    Path("/sys"),
    Path("/dev"),
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "scripts")),
)
_INSTALLED = {"site-packages", "dist-packages", "__pycache__"}
_recorders: list[FileRecorder] = []  # those whose blocks are entered


class FileRecorder:
    """Context manager that records files opened for reading; afterwards `files` holds them, sorted.

    Only files that belong to the model are kept.
    """

    def __init__(self) -> None:
        self.files: tuple[Path, ...] = ()
        self._opened: set[str] = set()
        self._before: set[str] = set()

    def __enter__(self) -> FileRecorder:
        self._before = set(sys.modules)
        _install_hook()
        _recorders.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _recorders.remove(self)
        if error is None:
            self.files = tuple(sorted(self._read()))

    def add(self, path: str) -> None:
        """Record the path of a file that is opened for reading."""
        self._opened.add(path)

    def _read(self) -> set[Path]:
        """Return the files of this recording and of all marked modules; mark the new modules."""
        opened = {path for path in map(Path, self._opened) if is_model_dependency(path)}
        modules = dict(_user_modules())
        read = {str(path): file_digest(path) for path in opened | set(modules.values())}
        for name in modules.keys() - self._before:
            setattr(sys.modules[name], _MARK, read)
        return {Path(path) for _, mark in _marked() for path in mark} | {
            Path(path) for path in read
        }


@functools.cache
def _install_hook() -> None:
    """Have Python call `_hear` for the life of the process, as no hook can be removed.

    One hook is for all recorders: Python calls each of its hooks for every call of `id()`.
    """
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    """Tell the recorders of a file that is opened for reading."""
    if _recorders and event == "open":
        path, _, flags = arguments
        if isinstance(path, (str, bytes)) and flags & os.O_ACCMODE == os.O_RDONLY:
            # pathlib would be slow here, and would open files itself.
            opened = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
            for recorder in tuple(_recorders):
                recorder.add(opened)


def unload_changed_modules() -> None:
    """Unload the modules of earlier recordings if any file they depend on has changed since."""
    marked = list(_marked())
    if any(
        not _unchanged(Path(path), digest)
        for path, digest in {item for _, mark in marked for item in mark.items()}
    ):
        for name, _ in marked:
            del sys.modules[name]


def is_model_dependency(path: Path) -> bool:
    """Return whether a file belongs to the model.

    Files of Python, the system, installed packages and farm itself do not.
    """
    if path.is_relative_to(_FARM):
        return (
            path.is_relative_to(_FARM / "zoo")
            and "__pycache__" not in path.parts
            and path.is_file()
        )
    if _INSTALLED.intersection(path.parts) or any(
        path.is_relative_to(folder) for folder in _SYSTEM
    ):
        return False
    return path.is_file() and path.resolve() != Path(sys.executable).resolve()


def _user_modules() -> Iterator[tuple[str, Path]]:
    """Yield name and file of each loaded module that belongs to the model."""
    for name, module in _modules():
        file = vars(module).get("__file__")
        if (
            isinstance(file, str)
            and name != "__main__"
            and is_model_dependency(Path(file).absolute())
        ):
            yield name, Path(file).absolute()


def _marked() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield name and recorded digests of each marked module."""
    for name, module in _modules():
        if _MARK in vars(module):
            yield name, vars(module)[_MARK]


def _modules() -> Iterable[tuple[str, ModuleType]]:
    """Return all loaded modules by name."""
    return [
        (name, module)
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
    ]


def _unchanged(path: Path, digest: str) -> bool:
    """Return whether a file exists and has this digest."""
    return path.is_file() and file_digest(path) == digest
