"""Which files a `python:` source was made of: known only by running it, and so recorded while it runs.

Counted are the user's own modules (and farm.zoo), and every file that Python code opens for reading meanwhile. The standard library and
installed packages count by their versions instead. Not seen are files that native code opens by itself, such as safetensors does.

Modules stay loaded in the process, so each carries a mark with what was read when it came: a later import of the same process adds that
to its own record, and sees whether any of it has changed since.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from farm.store import file_digest

_MARK = "__farm_read__"  # on modules: {path: digest} of what was read while they were imported
_FARM = Path(__file__).resolve().parent.parent
_SYSTEM = (Path("/proc"), Path("/sys"), Path("/dev"), *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "scripts")))
_INSTALLED = {"site-packages", "dist-packages", "__pycache__"}


class Recorder:
    """Inside its `with` block, hears which files are opened for reading. Afterwards `files` are those that count, sorted.

    A hook of sys.addaudithook stays for the life of the process; outside the block it does nothing.
    """

    def __init__(self) -> None:
        self.files: tuple[Path, ...] = ()
        self._opened: set[str] = set()
        self._before: set[str] = set()
        self._listening = False

    def __enter__(self) -> Recorder:
        self._before = set(sys.modules)
        self._listening = True
        sys.addaudithook(self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listening = False
        if error is None:
            self.files = tuple(sorted(self._read()))

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._listening and event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and flags & os.O_ACCMODE == os.O_RDONLY:
                self._opened.add(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100  (a Path here would be slow, and would open files)

    def _read(self) -> set[Path]:
        opened = {path for path in map(Path, self._opened) if counts(path)}
        modules = dict(_user_modules())
        read = {str(path): file_digest(path) for path in opened | set(modules.values())}
        for name in modules.keys() - self._before:
            setattr(sys.modules[name], _MARK, read)
        return {Path(path) for _, mark in _marked() for path in mark} | {Path(path) for path in read}


def forget_modules() -> None:
    """Unload the modules of earlier recordings if any file they were made of has changed since."""
    marked = list(_marked())
    if any(not _unchanged(Path(path), digest) for path, digest in {item for _, mark in marked for item in mark.items()}):
        for name, _ in marked:
            del sys.modules[name]


def counts(path: Path) -> bool:
    """Whether a file belongs to the model, rather than to Python, the system, an installed package or farm itself."""
    if path.is_relative_to(_FARM):
        return path.is_relative_to(_FARM / "zoo") and "__pycache__" not in path.parts and path.is_file()
    if _INSTALLED.intersection(path.parts) or any(path.is_relative_to(folder) for folder in _SYSTEM):
        return False
    return path.is_file() and path.resolve() != Path(sys.executable).resolve()


def _user_modules() -> Iterator[tuple[str, Path]]:
    for name, module in _modules():
        file = vars(module).get("__file__")
        if isinstance(file, str) and name != "__main__" and counts(Path(file).absolute()):
            yield name, Path(file).absolute()


def _marked() -> Iterator[tuple[str, dict[str, str]]]:
    for name, module in _modules():
        if _MARK in vars(module):
            yield name, vars(module)[_MARK]


def _modules() -> Iterable[tuple[str, ModuleType]]:
    return [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)]


def _unchanged(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest
