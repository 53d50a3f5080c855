"""Files that stay on the device from one session to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_running import Agent, client, wait_until

from farm import process
from farm.deadline import Deadline
from farm.errors import BuildError

Start = Callable[..., Agent]
ZEROS = 300_000
DIGEST = hashlib.sha256(bytes(ZEROS)).hexdigest()
UPLOAD, DOWNLOAD, LIST = "tvm.rpc.server.upload", "tvm.rpc.server.download", "tvm.rpc.server.listdir"
HAS, KEEP, LINK = "farm.store.has", "farm.store.keep", "farm.store.link"


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_a_kept_file_is_there_in_the_next_session(arch: str, start: Start) -> None:
    agent = start(arch)
    first = client("call_all", port=agent.port, calls=[[HAS, DIGEST], [UPLOAD, "a", {"zeros": ZEROS}], [KEEP, "a", DIGEST], [HAS, DIGEST]])
    assert first == [-1, None, None, ZEROS]
    second = client("call_all", port=agent.port, calls=[[HAS, DIGEST], [LINK, DIGEST, "b"], [LIST, "."], [KEEP, "b", DIGEST]])
    assert second == [ZEROS, None, "b", None]


def test_a_digest_that_is_not_the_files_is_refused_and_nothing_kept(start: Start) -> None:
    agent = start()
    wrong = "0" * 64
    results = client("call_all", port=agent.port, calls=[[UPLOAD, "a", {"zeros": ZEROS}], [KEEP, "a", wrong], [HAS, wrong], [HAS, DIGEST]])
    assert "digest mismatch" in results[1] and DIGEST in results[1]
    assert results[2:] == [-1, -1]
    assert not list((agent.folder / "work" / "store").glob("*"))


def test_writing_over_a_linked_file_leaves_the_kept_one_as_it_is(start: Start) -> None:
    agent = start()
    calls = [
        [UPLOAD, "a", {"zeros": ZEROS}],
        [KEEP, "a", DIGEST],
        [UPLOAD, "a", {"zeros": 3}],
        [LINK, DIGEST, "b"],
        [UPLOAD, "b", {"zeros": 4}],
    ]
    assert client("call_all", port=agent.port, calls=calls) == [None] * 5
    assert (agent.folder / "work" / "store" / DIGEST).read_bytes() == bytes(ZEROS)


@pytest.mark.parametrize("digest", ["", "a" * 63, "A" * 64, "../" + "a" * 61, "a" * 65])
def test_what_is_no_digest_is_refused(digest: str, start: Start) -> None:
    agent = start()
    results = client("call_all", port=agent.port, calls=[[HAS, digest], [LINK, digest, "b"], [KEEP, "b", digest]])
    assert all("not a SHA-256 digest" in result for result in results)


def test_names_that_lead_out_of_the_work_directory_are_refused(start: Start) -> None:
    agent = start()
    names = ["", ".", "..", "../x", "/etc/x", "a/b"]
    results = client("call_all", port=agent.port, calls=[[call, *order] for n in names for call, order in ((KEEP, (n, DIGEST)),)])
    results += client("call_all", port=agent.port, calls=[[LINK, DIGEST, n] for n in names])
    assert all("not a plain file name" in result for result in results)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        process.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], deadline=Deadline(10), what="mounting a small disk")
    except BuildError as error:
        pytest.skip(f"a small disk cannot be mounted here: {error.why}")
    yield folder
    process.run(["umount", "-l", folder], deadline=Deadline(10), what="unmounting")


def test_a_full_disk_is_named_and_leaves_no_half_file(small_disk: Path, start: Start) -> None:
    agent = start("x86_64", "--work-dir", str(small_disk / "work"))
    large = hashlib.sha256(bytes(700_000)).hexdigest()
    calls = [
        [UPLOAD, "large", {"zeros": 2_000_000}],
        [LIST, "."],
        [UPLOAD, "fits", {"zeros": 700_000}],
        [KEEP, "fits", large],
        [HAS, large],
    ]
    results = client("call_all", port=agent.port, calls=calls)
    assert "No space left" in results[0]
    assert results[1:] == ["", None, None, 700_000]
    wait_until(lambda: not list((small_disk / "work").glob("farm-session-*")), 5, "the work directory is gone")
    assert [path.name for path in (small_disk / "work" / "store").iterdir()] == [large]


def test_a_full_store_is_named_and_keeps_no_half_file(small_disk: Path, start: Start) -> None:
    agent = start("x86_64", "--store", str(small_disk / "store"))
    large = hashlib.sha256(bytes(2_000_000)).hexdigest()
    results = client("call_all", port=agent.port, calls=[[UPLOAD, "a", {"zeros": 2_000_000}], [KEEP, "a", large], [HAS, large]])
    assert "No space left" in results[1] and results[2] == -1
    assert not list((small_disk / "store").iterdir())
