"""The library that the check of an import runs: of the code that it left, and of no other file."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest
from host_profile import HOST

from farm.compiler import import_check_linker
from farm.compiler.build import OBJECTS
from farm.compiler.import_check_linker import ImportCheckLinker
from farm.errors import BuildError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline


@pytest.fixture(scope="module")
def object_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("object")
    (folder / "seven.c").write_text("int seven(void) { return 7; }")
    command = [sys.executable, "-P", "-m", "ziglang", "cc", "-c", "-fPIC", str(folder / "seven.c")]
    made = folder / "seven.o"
    subprocesses.run_program(
        [*command, "-o", str(made)], deadline=Deadline(120), what="compiling an object"
    )
    return made


@pytest.fixture
def linker(tmp_path: Path, object_file: Path) -> ImportCheckLinker:
    (tmp_path / "made" / OBJECTS).mkdir(parents=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "made" / OBJECTS / "lib0.o").write_bytes(object_file.read_bytes())
    return ImportCheckLinker(HOST, tmp_path / "made", tmp_path / "linked")


def test_the_objects_become_a_library_in_a_folder_of_its_own(linker: ImportCheckLinker) -> None:
    library = linker(("lib0.o",))
    assert library.is_relative_to(linker.folder)
    assert ctypes.CDLL(str(library)).seven() == 7


def test_a_model_that_is_checked_again_gets_a_second_library_and_no_third(
    linker: ImportCheckLinker,
) -> None:
    first, second = linker(("lib0.o",)), linker(("lib0.o",))
    assert first != second
    assert ctypes.CDLL(str(second)).seven() == 7
    with pytest.raises(BuildError, match="more than 2 libraries"):
        linker(("lib0.o",))


def test_a_request_of_which_the_text_is_endless_is_refused(linker: ImportCheckLinker) -> None:
    nested: tuple[object, ...] = ()
    for _ in range(60):
        nested = (nested, nested)
    with pytest.raises(BuildError, match="named no object files"):
        linker(nested)


@pytest.mark.parametrize("request_", [["lib0.o"], (1,), "lib0.o", None, ({"lib0.o": 1},)])
def test_a_request_of_another_form_is_refused(request_: object, linker: ImportCheckLinker) -> None:
    with pytest.raises(BuildError, match="named no object files"):
        linker(request_)


@pytest.mark.parametrize("name", ["../x.o", "/etc/passwd", "-T.o", "missing.o"])
def test_no_other_file_is_linked(name: str, linker: ImportCheckLinker) -> None:
    with pytest.raises(BuildError, match="left other files"):
        linker(("lib0.o", name))


def test_a_link_to_an_object_elsewhere_is_not_followed(
    linker: ImportCheckLinker, object_file: Path
) -> None:
    (linker.made / OBJECTS / "lib1.o").symlink_to(object_file)
    with pytest.raises(BuildError, match="left other files"):
        linker(("lib0.o", "lib1.o"))


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "gone", "script"])
def test_an_object_that_is_exchanged_after_it_was_checked_is_not_linked(
    kind: str, linker: ImportCheckLinker, object_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchanged(what: str, made: Path, names: tuple[str, ...]) -> list[Path]:
        found = checked(what, made, names)
        path = made / OBJECTS / names[0]
        if made != linker.made:
            return found
        if kind == "folder":
            path.parent.rename(made / "others")
            path.parent.symlink_to(object_file.parent)
            (object_file.parent / names[0]).write_bytes(object_file.read_bytes())
            return found
        path.unlink()
        if kind == "link":
            path.symlink_to(object_file)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "script":
            path.write_text(f"INPUT({object_file})")
        return found

    checked = import_check_linker.checked_object_files
    monkeypatch.setattr(import_check_linker, "checked_object_files", exchanged)
    with pytest.raises(BuildError):
        linker(("lib0.o",))
    assert not list(linker.folder.rglob("library.so"))
