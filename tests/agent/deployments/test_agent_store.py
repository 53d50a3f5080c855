"""Files that stay on the device from one session to the next: they come in parts, whole or not at
all, and within a budget.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_calls import (
    BEGIN,
    FINISH,
    HAS,
    LINK,
    LIST,
    UPLOAD,
    USAGE,
    WRITE,
    digest,
    in_session,
    in_sessions,
    put,
)
from agent_processes import Agent, client
from timeouts import wait_until

from farm.errors import BuildError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline

Start = Callable[..., Agent]
ZEROS = 300_000


def store_of(agent: Agent) -> Path:
    return agent.folder / "work" / "store"


def kept(folder: Path) -> set[str]:
    return {
        path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")
    }


@pytest.mark.parametrize("arch", ["x86_64", "armv7", "aarch64"])
def test_a_kept_file_is_there_in_the_next_session(arch: str, start: Start) -> None:
    agent = start(arch)
    name = digest(ZEROS)
    first, second = in_sessions(
        agent,
        [[HAS, name], *put(ZEROS), [HAS, name]],
        [[HAS, name], [LINK, name, "b"], [LIST, "."], [BEGIN, name, ZEROS], [FINISH, name]],
    )
    assert first == [-1, 0, None, None, ZEROS]
    assert second == [ZEROS, None, "b", ZEROS, None]


def test_what_was_cut_off_goes_on_where_it_stopped(start: Start) -> None:
    agent = start()
    name = digest(ZEROS)
    first, second = in_sessions(
        agent,
        [[BEGIN, name, ZEROS], [WRITE, name, 0, {"zeros": 100_000}]],
        [
            [HAS, name],
            [BEGIN, name, ZEROS],
            [WRITE, name, 100_000, {"zeros": 200_000}],
            [FINISH, name],
        ],
    )
    assert first == [0, None]
    assert second == [-1, 100_000, None, None]
    assert (store_of(agent) / name).read_bytes() == bytes(ZEROS)
    assert kept(store_of(agent)) == {name}


def test_who_sends_what_another_session_is_verifying_waits_and_has_it(start: Start) -> None:
    agent = start()
    assert (
        client(
            "send_while_verified",
            port=agent.port,
            store=str(store_of(agent)),
            name=digest(ZEROS),
            size=ZEROS,
        )
        == ZEROS
    )
    assert kept(store_of(agent)) == {digest(ZEROS)}


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_who_was_cut_off_and_writes_still_harms_nobody(arch: str, start: Start) -> None:
    agent = start(arch)
    in_session(agent, [BEGIN, digest(ZEROS), ZEROS])
    part = store_of(agent) / f"{digest(ZEROS)}.part"
    with part.open("ab", buffering=0) as late:
        late.write(bytes(1000))
        assert in_session(agent, [BEGIN, digest(ZEROS), ZEROS]) == [1000]
        late.write(b"late")
        with part.open("ab", buffering=0) as later:
            later.write(bytes(ZEROS - 1000))
            assert in_session(agent, [FINISH, digest(ZEROS)]) == [None]
            later.write(b"later")
    assert (store_of(agent) / digest(ZEROS)).read_bytes() == bytes(ZEROS)


def test_a_digest_that_is_not_the_files_is_refused_and_nothing_kept(start: Start) -> None:
    agent = start()
    wrong = "0" * 64
    results = in_session(
        agent,
        [BEGIN, wrong, ZEROS],
        [WRITE, wrong, 0, {"zeros": ZEROS}],
        [FINISH, wrong],
        [HAS, wrong],
        [HAS, digest(ZEROS)],
    )
    assert "digest mismatch" in results[2] and digest(ZEROS) in results[2]
    assert results[3:] == [-1, -1]
    assert not kept(store_of(agent))


def test_what_has_not_come_whole_is_not_kept_and_can_still_come(start: Start) -> None:
    agent = start()
    begin, *rest = put(ZEROS)
    results = in_session(
        agent,
        begin,
        [WRITE, digest(ZEROS), 0, {"zeros": 7}],
        [FINISH, digest(ZEROS)],
        *rest,
        [HAS, digest(ZEROS)],
    )
    assert "incomplete" in results[2] and "7 of 300000" in results[2]
    assert results[3:] == [None, None, ZEROS]


def test_bytes_that_were_not_begun_or_lead_elsewhere_are_refused(start: Start) -> None:
    agent = start()
    name = digest(ZEROS)
    results = in_session(
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
    words = [
        "nothing was begun",
        "nothing was begun",
        "",
        "leaves a gap",
        *["leads past"] * 3,
        "cannot have -1 bytes",
        "cannot have",
    ]
    for result, word in zip(results, words, strict=True):
        assert word in str(result)
    assert results[2] == 0 and (store_of(agent) / f"{name}.part").stat().st_size == 0


def test_writing_over_a_linked_file_leaves_the_kept_one_as_it_is(start: Start) -> None:
    agent = start()
    results = in_session(
        agent,
        *put(ZEROS),
        [LINK, digest(ZEROS), "a"],
        [UPLOAD, "a", {"zeros": 3}],
        [LINK, digest(ZEROS), "a"],
        [UPLOAD, "b", {"zeros": 4}],
    )
    assert results[3:] == [None] * 4
    assert (store_of(agent) / digest(ZEROS)).read_bytes() == bytes(ZEROS)


def test_what_is_no_digest_is_refused(start: Start) -> None:
    wrong = ["", "a" * 63, "A" * 64, "../" + "a" * 61, "a" * 65]
    functions = [(HAS, []), (LINK, ["b"]), (BEGIN, [1]), (WRITE, [0, {"zeros": 1}]), (FINISH, [])]
    results = in_session(
        start(), *([function, name, *more] for name in wrong for function, more in functions)
    )
    assert all("not a SHA-256 digest" in result for result in results)


def test_names_that_are_no_plain_file_names_are_refused(start: Start) -> None:
    names = ["", ".", "..", "../x", "/etc/x", "a/b", ".hidden", "a..b", "a" * 101, "a\nb"]
    assert all(
        "not a plain file name" in result
        for result in in_session(start(), *([LINK, digest(ZEROS), name] for name in names))
    )


def test_a_file_that_is_not_kept_cannot_be_linked(start: Start) -> None:
    (result,) = in_session(start(), [LINK, digest(1), "a"])
    assert f"the store has no file {digest(1)}" in result


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_the_file_that_was_used_longest_ago_makes_room(arch: str, start: Start) -> None:
    agent = start(arch, "--store-budget", "1000")
    again = [[HAS, digest(300)]]  # a use: now the second one is the oldest
    in_sessions(agent, put(300), put(301), put(302), again, put(303))
    assert kept(store_of(agent)) == {digest(300), digest(302), digest(303)}


def test_the_budget_counts_what_is_on_its_way_and_what_the_session_uses(start: Start) -> None:
    agent = start("x86_64", "--store-budget", "1000")
    results = in_session(
        agent,
        *put(400),
        [BEGIN, digest(500), 500],
        [WRITE, digest(500), 0, {"zeros": 500}],
        [BEGIN, digest(200), 200],
        [USAGE],
    )
    assert "the store's budget of 1000 bytes has no room for 200: 900" in results[5]
    usage = json.loads(results[6])
    assert usage.pop("free_bytes") > 1_000_000
    assert usage == {"bytes": 900, "files": 1, "deployed_bytes": 0, "budget_bytes": 1000}


def test_what_has_stopped_coming_for_an_hour_makes_room_too(start: Start) -> None:
    agent = start("x86_64", "--store-budget", "1000")
    in_session(agent, [BEGIN, digest(500), 500], [WRITE, digest(500), 0, {"zeros": 400}])
    part = store_of(agent) / f"{digest(500)}.part"
    full, *_ = in_session(agent, [BEGIN, digest(700), 700])
    os.utime(part, (0, time.time() - 3700))
    room = in_session(agent, *put(700))
    assert "no room for 700: 400" in full and room == [0, None, None]
    assert kept(store_of(agent)) == {digest(700)}


def test_a_file_larger_than_the_budget_is_refused_and_pushes_nothing_out(start: Start) -> None:
    agent = start("x86_64", "--store-budget", "1000")
    _, (error,) = in_sessions(agent, put(900), [[BEGIN, digest(1001), 1001]])
    assert "undeploy something, or raise the budget" in error
    assert kept(store_of(agent)) == {digest(900)}


def test_a_session_keeps_the_file_it_has_linked_when_another_pushes_it_out(start: Start) -> None:
    agent = start("x86_64", "--store-budget", "1000")
    other = start("x86_64", "--store-budget", "1000", "--store", str(store_of(agent)))
    in_session(agent, *put(900))
    results = client(
        "linked_meanwhile", port=agent.port, digest=digest(900), other=other.port, calls=put(800)
    )
    assert results == 900
    assert kept(store_of(agent)) == {digest(800)}


def test_parts_that_nobody_has_gone_on_with_for_a_day_are_swept_at_the_start(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    names = {
        "old": f"{digest(1)}.part",
        "older": f"{digest(2)}.0badcafe.part",
        "new": f"{digest(3)}.part",
        "whole": digest(4),
    }
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
        subprocesses.run_program(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],
            deadline=Deadline(10),
            what="mounting a small disk",
        )
    except BuildError as error:
        pytest.skip(f"a small disk cannot be mounted here: {error.why}")
    yield folder
    subprocesses.run_program(["umount", "-l", folder], deadline=Deadline(10), what="unmounting")


def test_a_full_disk_is_named_and_leaves_no_half_file(small_disk: Path, start: Start) -> None:
    agent = start("x86_64", "--work-dir", str(small_disk / "work"))
    results = in_session(
        agent,
        [UPLOAD, "large", {"zeros": 2_000_000}],
        [LIST, "."],
        [UPLOAD, "fits", {"zeros": 700_000}],
    )
    assert "No space left" in results[0]
    assert results[1:] == ["", None]
    wait_until(
        lambda: not list((small_disk / "work").glob("farm-session-*")), "the work directory is gone"
    )


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_a_store_on_a_full_disk_makes_room_and_else_says_so(
    arch: str, small_disk: Path, start: Start
) -> None:
    agent = start(arch, "--store", str(small_disk / "store"))
    _, second, (error,) = in_sessions(
        agent, put(600_000), put(700_000), [[BEGIN, digest(2_000_000), 2_000_000]]
    )
    assert second == [0, None, None], "the file used longest ago went"
    assert "No space left on device: the store's disk has" in error
    assert kept(small_disk / "store") == {digest(700_000)}
