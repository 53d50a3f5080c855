from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import BuildError
from farm.store import Store, digest_of_parts, file_digest, user_cache_dir, user_data_dir

SPAWN = multiprocessing.get_context("spawn")
DIGEST = "ab" * 32


def content(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def test_roots_come_from_our_variable_then_xdg_then_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("FARM_CACHE", "FARM_DATA", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (user_cache_dir(), user_data_dir()) == (
        tmp_path / ".cache/farm",
        tmp_path / ".local/share/farm",
    )
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert (user_cache_dir(), user_data_dir()) == (
        Path("/x/cache/farm"),
        tmp_path / ".local/share/farm",
    )
    monkeypatch.setenv("FARM_CACHE", "~/here")
    monkeypatch.setenv("FARM_DATA", "there")
    assert (user_cache_dir(), user_data_dir()) == (tmp_path / "here", Path.cwd() / "there")


def test_what_is_published_is_found_whole(store: Store) -> None:
    assert store.find("artifacts", DIGEST) is None
    with store.publish("artifacts", DIGEST) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "lib.so").write_bytes(b"code")
        assert store.find("artifacts", DIGEST) is None
    found = store.find("artifacts", DIGEST)
    assert found == store.root / "artifacts" / DIGEST
    assert (found / "deep" / "lib.so").read_bytes() == b"code"
    assert content(store.root) == [
        "artifacts",
        f"artifacts/{DIGEST}",
        f"artifacts/{DIGEST}/deep",
        f"artifacts/{DIGEST}/deep/lib.so",
        "tmp",
    ]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_while_publishing_leaves_nothing(store: Store, error: type[BaseException]) -> None:
    with pytest.raises(error), store.publish("artifacts", DIGEST) as folder:
        (folder / "half").write_bytes(b"...")
        raise error
    assert store.find("artifacts", DIGEST) is None
    assert content(store.root) == ["tmp"]


def test_the_first_of_two_publishers_wins_and_the_second_does_not_mind(store: Store) -> None:
    with store.publish("artifacts", DIGEST) as second:
        (second / "who").write_text("second")
        with store.publish("artifacts", DIGEST) as first:
            (first / "who").write_text("first")
    found = store.find("artifacts", DIGEST)
    assert found
    assert (found / "who").read_text() == "first"
    assert content(store.root / "tmp") == []


def publish_many(root: Path, name: str) -> None:
    for number in range(30):
        with Store(root).publish("artifacts", f"{number}") as folder:
            for part in ("a", "b"):
                (folder / part).write_text(name)
        Store(root).sweep()


def test_processes_publish_the_same_and_sweep_at_once(store: Store) -> None:
    children = [
        SPAWN.Process(target=publish_many, args=(store.root, str(number))) for number in range(3)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0, 0]
    for number in range(30):
        found = store.find("artifacts", f"{number}")
        assert found
        assert (found / "a").read_text() == (found / "b").read_text()
    assert content(store.root / "tmp") == []


def write_until_killed(root: Path, ready: Connection) -> None:
    with Store(root).publish("artifacts", DIGEST) as folder:
        (folder / "half").write_bytes(b"...")
        ready.send(folder.parent.name)
        signal.pause()


def test_sweep_removes_what_a_killed_process_left_and_nothing_of_a_living_one(store: Store) -> None:
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=write_until_killed, args=(store.root, theirs))
    child.start()
    name = ours.recv()
    assert name.startswith(f"{child.pid}-")
    with store.scratch() as scratch:
        assert store.sweep() == 0
        assert child.pid
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert (store.root / "tmp" / name).is_dir()
        assert store.sweep() == 1
        assert content(store.root / "tmp") == [scratch.name, f"{scratch.name}.lock"]
    assert content(store.root / "tmp") == []
    assert store.find("artifacts", DIGEST) is None


def test_sweep_of_a_store_that_is_not_there_is_nothing(store: Store) -> None:
    assert store.sweep() == 0
    assert not store.root.exists()


def test_nobody_else_looks_into_scratch_whatever_the_umask(store: Store) -> None:
    before = os.umask(0)
    try:
        with store.scratch() as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_scratch_goes_with_all_in_it(store: Store) -> None:
    with store.scratch() as scratch:
        (scratch / "deep" / "deeper").mkdir(parents=True)
    assert content(store.root) == ["tmp"]


def test_a_full_disk_says_so_and_leaves_nothing(store: Store) -> None:
    with (
        pytest.raises(BuildError) as caught,
        store.publish("artifacts", DIGEST),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"library")
    assert caught.value.what == "the disk is full"
    assert "FARM_CACHE" in caught.value.fix
    assert content(store.root) == ["tmp"]


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (
        tmp_path / "file",
        tmp_path / "file" / "cache",
        Path("/sys/farm"),
    ):  # not even root may write to sysfs
        with pytest.raises(BuildError) as caught, Store(root).publish("artifacts", DIGEST):
            pass
        assert caught.value.what == "the cache cannot be written"
        assert str(root) in caught.value.why + caught.value.fix


def test_errors_that_are_not_the_stores_pass_through_it(store: Store) -> None:
    with pytest.raises(FileNotFoundError), store.publish("artifacts", DIGEST):
        Path("/nowhere/at/all").read_bytes()
    with pytest.raises(OSError, match="denied") as caught, store.scratch():
        raise OSError(errno.EACCES, "denied", "/elsewhere")
    assert not isinstance(caught.value, BuildError)


@pytest.mark.parametrize(
    ("kind", "digest"),
    [("tmp", "a"), ("..", "a"), ("a", ".."), ("a/b", "c"), ("a", "b/c"), ("", "a"), ("a", "")],
)
def test_a_name_that_leaves_its_place_is_refused(store: Store, kind: str, digest: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        store.find(kind, digest)


PARTS = st.lists(
    st.one_of(
        st.binary(),
        st.text(),
        st.dictionaries(st.text(), st.one_of(st.none(), st.integers(), st.text())),
    ),
    max_size=4,
)


@given(PARTS, PARTS)
def test_digests_are_equal_exactly_when_the_parts_are(one: list[str], other: list[str]) -> None:
    assert (digest_of_parts(*one) == digest_of_parts(*other)) == (one == other)


def test_digests_tell_apart_how_parts_are_cut_and_of_what_kind_they_are(tmp_path: Path) -> None:
    file = tmp_path / "ab"
    file.write_bytes(b"ab")
    digests = [
        digest_of_parts(*parts)
        for parts in (
            ["ab"],
            [b"ab"],
            [file],
            ["a", "b"],
            ["", "ab"],
            ["ab", ""],
            [{"ab": 1}],
            ['{"ab":1}'],
        )
    ]
    assert len(set(digests)) == len(digests)


def test_a_mappings_digest_does_not_depend_on_its_order() -> None:
    assert digest_of_parts({"kind": "llvm", "keys": ["a", "b"]}) == digest_of_parts(
        {"keys": ("a", "b"), "kind": "llvm"}
    )
    assert digest_of_parts({"keys": ["a", "b"]}) != digest_of_parts({"keys": ["b", "a"]})
    with pytest.raises(TypeError, match="object"):
        digest_of_parts({"a": object()})


def test_a_files_digest_is_of_its_content(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.write_bytes(b"abc")
    assert (
        file_digest(one) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )  # FIPS 180-2, appendix B.1
    assert digest_of_parts(one) == digest_of_parts(other)
    other.write_bytes(b"abd")
    assert digest_of_parts(one) != digest_of_parts(other)


def test_a_cache_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agents are run: another user could have put one there under the digest that is looked
    for.
    """
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("FARM_CACHE", str(shared))
    shared.chmod(0o1777)
    with pytest.raises(BuildError, match="could have been filled by another user") as caught:
        user_cache_dir()
    assert f"every user may write to {shared}" in caught.value.why
    shared.chmod(0o775)
    assert user_cache_dir() == shared, "a team may share one"


def test_a_new_cache_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Store(tmp_path / "a" / "cache").scratch():
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "cache").stat().st_mode & 0o777 == 0o700
