"""The sources that all zigs of one version compile, in whatever Python they are installed."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from farm.agent import zig_cache
from farm.agent.zig_cache import zig_environment


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The sources in a Python's package of zig."""
    package = tmp_path / "python"
    for name, content in (("libc/start.c", "int start;"), ("libcxx/new.cpp", "int new_;")):
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text(content)
    monkeypatch.setattr(zig_cache, "_installed_sources", lambda: package)
    return package


def sources(cache: Path) -> Path:
    environment = zig_environment(cache)
    assert environment.keys() == {"ZIG_GLOBAL_CACHE_DIR", "ZIG_LIB_DIR"}
    assert environment["ZIG_GLOBAL_CACHE_DIR"] == str(cache)
    return Path(environment["ZIG_LIB_DIR"])


def test_another_python_compiles_the_same_files_at_the_same_place(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sources(tmp_path / "zig")
    before = {path: path.stat() for path in first.rglob("*.c*")}
    assert {path.read_text() for path in before} == {"int start;", "int new_;"}
    another = shutil.copytree(installed, tmp_path / "another")
    shutil.rmtree(installed)
    monkeypatch.setattr(zig_cache, "_installed_sources", lambda: another)
    assert sources(tmp_path / "zig") == first
    after = {path: path.stat() for path in first.rglob("*.c*")}
    assert after.keys() == before.keys()
    for path, stat in after.items():
        assert (stat.st_ino, stat.st_mtime_ns) == (before[path].st_ino, before[path].st_mtime_ns)


def test_kept_sources_take_no_room_beside_those_of_the_package(
    installed: Path, tmp_path: Path
) -> None:
    assert (sources(tmp_path / "zig") / "libc" / "start.c").samefile(installed / "libc" / "start.c")


def test_on_another_file_system_sources_are_copied(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", no_link)
    kept = sources(tmp_path / "zig") / "libcxx" / "new.cpp"
    assert kept.read_text() == "int new_;"
    assert not kept.samefile(installed / "libcxx" / "new.cpp")


def test_where_keeping_is_interrupted_no_part_is_taken_for_the_whole(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, linked = os.link, []

    def interrupted(source: str, target: str) -> None:
        if linked:
            raise KeyboardInterrupt
        linked.append(target)
        link(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "link", interrupted)
        sources(tmp_path / "zig")
    assert list((tmp_path / "zig").iterdir()) == []
    assert len(list(sources(tmp_path / "zig").rglob("*.c*"))) == 2


def test_of_two_processes_that_keep_sources_at_once_the_first_wins(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def overtaken(source: str, target: str) -> None:
        monkeypatch.setattr(os, "link", link)
        sources(tmp_path / "zig")
        link(source, target)

    monkeypatch.setattr(os, "link", overtaken)
    kept = sources(tmp_path / "zig")
    assert len(list(kept.rglob("*.c*"))) == 2
    assert list((tmp_path / "zig").iterdir()) == [kept]
