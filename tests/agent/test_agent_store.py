"""Files that stay on the device from one session to the next: they come in parts, whole or not at all, and within a budget."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_running import Agent, client, wait_until

from farm import process
from farm.deadline import Deadline
from farm.errors import BuildError

Start = Callable[..., Agent]
Call = list[Any]
ZEROS = 300_000
UPLOAD, LIST = "tvm.rpc.server.upload", "tvm.rpc.server.listdir"
HAS, BEGIN, WRITE, FINISH = "farm.store.has", "farm.store.begin", "farm.store.write", "farm.store.finish"
LINK, USAGE = "farm.store.link", "farm.store.usage"


def digest(size: int) -> str:
    """Of a file of so many zeros."""
    return hashlib.sha256(bytes(size)).hexdigest()


def put(size: int) -> list[Call]:
    """The calls that keep a file of so many zeros."""
    return [[BEGIN, digest(size), size], [WRITE, digest(size), 0, {"zeros": size}], [FINISH, digest(size)]]


def calls(agent: Agent, *wanted: Call) -> list[Any]:
    results: list[Any] = client("call_all", port=agent.port, calls=list(wanted))
    return results


def store_of(agent: Agent) -> Path:
    return agent.folder / "work" / "store"


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}


@pytest.mark.parametrize("arch", ["x86_64", "armv7", "aarch64"])
def test_a_kept_file_is_there_in_the_next_session(arch: str, start: Start) -> None:
    agent = start(arch)
    assert calls(agent, [HAS, digest(ZEROS)], *put(ZEROS), [HAS, digest(ZEROS)]) == [-1, 0, None, None, ZEROS]
    second = calls(
        agent, [HAS, digest(ZEROS)], [LINK, digest(ZEROS), "b"], [LIST, "."], [BEGIN, digest(ZEROS), ZEROS], [FINISH, digest(ZEROS)]
    )
    assert second == [ZEROS, None, "b", ZEROS, None]


def test_what_was_cut_off_goes_on_where_it_stopped(start: Start) -> None:
    agent = start()
    first = calls(agent, [BEGIN, digest(ZEROS), ZEROS], [WRITE, digest(ZEROS), 0, {"zeros": 100_000}])
    assert first == [0, None]
    second = calls(
        agent,
        [HAS, digest(ZEROS)],
        [BEGIN, digest(ZEROS), ZEROS],
        [WRITE, digest(ZEROS), 100_000, {"zeros": 200_000}],
        [FINISH, digest(ZEROS)],
    )
    assert second == [-1, 100_000, None, None]
    assert (store_of(agent) / digest(ZEROS)).read_bytes() == bytes(ZEROS)
    assert kept(store_of(agent)) == {digest(ZEROS)}


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_who_was_cut_off_and_writes_still_harms_nobody(arch: str, start: Start) -> None:
    agent = start(arch)
    calls(agent, [BEGIN, digest(ZEROS), ZEROS])
    part = store_of(agent) / f"{digest(ZEROS)}.part"
    with part.open("ab", buffering=0) as late:
        late.write(bytes(1000))
        assert calls(agent, [BEGIN, digest(ZEROS), ZEROS]) == [1000]
        late.write(b"late")
        with part.open("ab", buffering=0) as later:
            later.write(bytes(ZEROS - 1000))
            assert calls(agent, [FINISH, digest(ZEROS)]) == [None]
            later.write(b"later")
    assert (store_of(agent) / digest(ZEROS)).read_bytes() == bytes(ZEROS)


def test_a_digest_that_is_not_the_files_is_refused_and_nothing_kept(start: Start) -> None:
    agent = start()
    wrong = "0" * 64
    results = calls(agent, [BEGIN, wrong, ZEROS], [WRITE, wrong, 0, {"zeros": ZEROS}], [FINISH, wrong], [HAS, wrong], [HAS, digest(ZEROS)])
    assert "digest mismatch" in results[2] and digest(ZEROS) in results[2]
    assert results[3:] == [-1, -1]
    assert not kept(store_of(agent))


def test_what_has_not_come_whole_is_not_kept_and_can_still_come(start: Start) -> None:
    agent = start()
    begin, *rest = put(ZEROS)
    results = calls(agent, begin, [WRITE, digest(ZEROS), 0, {"zeros": 7}], [FINISH, digest(ZEROS)], *rest, [HAS, digest(ZEROS)])
    assert "incomplete" in results[2] and "7 of 300000" in results[2]
    assert results[3:] == [None, None, ZEROS]


def test_bytes_that_were_not_begun_or_lead_elsewhere_are_refused(start: Start) -> None:
    agent = start()
    name = digest(ZEROS)
    results = calls(
        agent,
        [WRITE, name, 0, {"zeros": 1}],
        [FINISH, name],
        [BEGIN, name, ZEROS],
        [WRITE, name, 1, {"zeros": 1}],
        [WRITE, name, -1, {"zeros": 1}],
        [WRITE, name, 0, {"zeros": ZEROS + 1}],
        [WRITE, name, 2**62, {"zeros": 1}],
        [BEGIN, name, -1],
        [BEGIN, name, 2**62],
    )
    words = ["nothing was begun", "nothing was begun", "", "leaves a gap", *["leads past"] * 3, "cannot have -1 bytes", "cannot have"]
    for result, word in zip(results, words, strict=True):
        assert word in str(result)
    assert results[2] == 0 and (store_of(agent) / f"{name}.part").stat().st_size == 0


def test_writing_over_a_linked_file_leaves_the_kept_one_as_it_is(start: Start) -> None:
    agent = start()
    results = calls(
        agent, *put(ZEROS), [LINK, digest(ZEROS), "a"], [UPLOAD, "a", {"zeros": 3}], [LINK, digest(ZEROS), "a"], [UPLOAD, "b", {"zeros": 4}]
    )
    assert results[3:] == [None] * 4
    assert (store_of(agent) / digest(ZEROS)).read_bytes() == bytes(ZEROS)


@pytest.mark.parametrize("wrong", ["", "a" * 63, "A" * 64, "../" + "a" * 61, "a" * 65])
def test_what_is_no_digest_is_refused(wrong: str, start: Start) -> None:
    results = calls(start(), [HAS, wrong], [LINK, wrong, "b"], [BEGIN, wrong, 1], [WRITE, wrong, 0, {"zeros": 1}], [FINISH, wrong])
    assert all("not a SHA-256 digest" in result for result in results)


def test_names_that_are_no_plain_file_names_are_refused(start: Start) -> None:
    names = ["", ".", "..", "../x", "/etc/x", "a/b", ".hidden", "a..b", "a" * 101, "a\nb"]
    assert all("not a plain file name" in result for result in calls(start(), *([LINK, digest(ZEROS), name] for name in names)))


def test_a_file_that_is_not_kept_cannot_be_linked(start: Start) -> None:
    (result,) = calls(start(), [LINK, digest(1), "a"])
    assert f"the store has no file {digest(1)}" in result


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_the_file_that_was_used_longest_ago_makes_room(arch: str, start: Start) -> None:
    agent = start(arch, "--store-budget", "1000")
    for size in (300, 301, 302):
        calls(agent, *put(size))
    calls(agent, [HAS, digest(300)])  # a use: now the second one is the oldest
    calls(agent, *put(303))
    assert kept(store_of(agent)) == {digest(300), digest(302), digest(303)}


def test_the_budget_counts_what_is_on_its_way_and_what_the_session_uses(start: Start) -> None:
    agent = start("x86_64", "--store-budget", "1000")
    results = calls(
        agent, *put(400), [BEGIN, digest(500), 500], [WRITE, digest(500), 0, {"zeros": 500}], [BEGIN, digest(200), 200], [USAGE]
    )
    assert "the store's budget of 1000 bytes has no room for 200: 900" in results[5]
    usage = json.loads(results[6])
    assert usage.pop("free_bytes") > 1_000_000
    assert usage == {"bytes": 900, "files": 1, "deployed_bytes": 0, "budget_bytes": 1000}


def test_a_file_larger_than_the_budget_is_refused_and_pushes_nothing_out(start: Start) -> None:
    agent = start("x86_64", "--store-budget", "1000")
    calls(agent, *put(900))
    (error,) = calls(agent, [BEGIN, digest(1001), 1001])
    assert "undeploy something, or raise `store_budget`" in error
    assert kept(store_of(agent)) == {digest(900)}


def test_a_session_keeps_the_file_it_has_linked_when_another_pushes_it_out(start: Start) -> None:
    agent = start("x86_64", "--store-budget", "1000")
    other = start("x86_64", "--store-budget", "1000", "--store", str(store_of(agent)))
    calls(agent, *put(900))
    results = client("linked_meanwhile", port=agent.port, digest=digest(900), other=other.port, calls=put(800))
    assert results == 900
    assert kept(store_of(agent)) == {digest(800)}


def test_parts_that_nobody_has_gone_on_with_for_a_day_are_swept_at_the_start(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    names = {"old": f"{digest(1)}.part", "older": f"{digest(2)}.0badcafe.part", "new": f"{digest(3)}.part", "whole": digest(4)}
    for age, name in names.items():
        (folder / name).write_bytes(b"x")
        if age != "new":
            os.utime(folder / name, (0, time.time() - 25 * 3600))
    assert start("x86_64", "--store", str(folder)).port
    assert kept(folder) == {names["new"], names["whole"]}


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
    results = calls(agent, [UPLOAD, "large", {"zeros": 2_000_000}], [LIST, "."], [UPLOAD, "fits", {"zeros": 700_000}])
    assert "No space left" in results[0]
    assert results[1:] == ["", None]
    wait_until(lambda: not list((small_disk / "work").glob("farm-session-*")), 5, "the work directory is gone")


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_a_store_on_a_full_disk_makes_room_and_else_says_so(arch: str, small_disk: Path, start: Start) -> None:
    agent = start(arch, "--store", str(small_disk / "store"))
    calls(agent, *put(600_000))
    assert calls(agent, *put(700_000)) == [0, None, None], "the file used longest ago went"
    (error,) = calls(agent, [BEGIN, digest(2_000_000), 2_000_000])
    assert "No space left on device: the store's disk has" in error
    assert kept(small_disk / "store") == {digest(700_000)}
