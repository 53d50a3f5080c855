"""What one session may take: memory, files, and names that lie in its own folder. One that wants
more ends alone, or is refused.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_calls import (
    DOWNLOAD,
    LINK,
    LIST,
    LOAD,
    REMOVE_FILE,
    UPLOAD,
    WORKPATH,
    digest,
    in_session,
    in_sessions,
    put,
)
from agent_processes import Agent, begin_client, children_of, client
from timeouts import LIMIT_S, wait_until

Start = Callable[..., Agent]
MIB = 1 << 20
RPC_MAGIC, EXCEPTION = 0xFF271, 5


def test_a_session_that_wants_too_much_memory_is_told_and_ends_alone(start: Start) -> None:
    agent = start("x86_64", "--max-memory", str(100 * MIB))
    error = client("allocate", port=agent.port, mib=100)
    assert "bad_alloc" in error or "out of memory" in error
    assert in_session(agent, [UPLOAD, "a", {"zeros": 10 * MIB}], [LIST, "."]) == [None, "a"]
    assert agent.child.poll() is None


def test_a_file_that_does_not_fit_into_the_memory_ends_its_session_with_words(start: Start) -> None:
    agent = start("x86_64", "--max-memory", str(64 * MIB))
    too_large, small = in_sessions(agent, [[UPLOAD, "a", {"zeros": 80 * MIB}]], [[LIST, "."]])
    assert "out of memory: a message of" in too_large[0]
    assert small == [""]
    assert "its client was told why" in agent.log


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
@pytest.mark.parametrize("length", [1 << 30, 1 << 40, (1 << 63) + 4, (1 << 64) - 1, (1 << 32) + 4])
def test_a_message_of_an_absurd_length_is_refused_before_memory_is_taken(
    arch: str, length: int, start: Start
) -> None:
    agent = start(arch, "--max-memory", str(64 * MIB))
    with socket.create_connection(("127.0.0.1", agent.port), timeout=LIMIT_S) as connection:
        connection.sendall(struct.pack("<ii", RPC_MAGIC, len(b"client:board")) + b"client:board")
        magic, size = struct.unpack("<ii", connection.recv(8, socket.MSG_WAITALL))
        assert magic == RPC_MAGIC and connection.recv(size, socket.MSG_WAITALL) == b"server:board"
        connection.sendall(struct.pack("<Q", length))
        (_, code) = struct.unpack("<Qi", connection.recv(12, socket.MSG_WAITALL))
        words = (
            f"out of memory: a message of {length} bytes"
            if length == 1 << 30
            else "has no sense: its length"
        )
        assert code == EXCEPTION and words.encode() in connection.recv(4096)
    assert client("list_files", port=agent.port) == ""


def test_the_work_directory_holds_so_much_and_files_of_the_store_do_not_count(start: Start) -> None:
    agent = start("x86_64", "--max-work", "1000")
    results = in_session(
        agent,
        *put(5000),
        [LINK, digest(5000), "linked"],
        [UPLOAD, "a", {"zeros": 600}],
        [UPLOAD, "b/c", {"zeros": 300}],
        [UPLOAD, "d", {"zeros": 101}],
        [REMOVE_FILE, "a"],
        [UPLOAD, "d", {"zeros": 101}],
    )
    assert "may hold 1000 bytes (--max-work), and has 900 of them: no room for 101" in results[6]
    assert results[3:6] + results[7:] == [None] * 5


OUTSIDE = [
    "/etc/hostname",
    "../store",
    "a/../../x",
    "..",
    "a\nb",
    "/",
    "//etc/hostname",
    "folder/../..",
]


def test_names_that_lead_out_of_the_work_directory_are_refused(
    start: Start, tmp_path: Path
) -> None:
    agent = start()
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    calls = [
        [WORKPATH, ""],
        ["symlink", str(treasure), "link"],
        ["symlink", str(tmp_path), "folder"],
        ["symlink", "nowhere", "dangling"],
    ]
    names = [*OUTSIDE, "link", "folder/treasure", "folder/new", "dangling", str(treasure)]
    tried = [
        [call, name, *more]
        for name in names
        for call, more in ((UPLOAD, [{"zeros": 1}]), (DOWNLOAD, []), (LOAD, []), (LIST, []))
    ]
    tried += [[call, name] for name in names for call in (REMOVE_FILE, WORKPATH)]
    results = client("call_in_folder", port=agent.port, calls=calls + tried)
    for call, result in zip(tried, results[len(calls) :], strict=True):
        assert "not inside the session's work directory" in str(result), call
    assert treasure.read_text() == "gold" and not (tmp_path / "new").exists()


def test_names_inside_the_work_directory_may_be_paths_and_absolute(start: Start) -> None:
    agent = start()
    calls = [
        [UPLOAD, "a/b/c", {"zeros": 3}],
        [WORKPATH, "a/./b"],
        [LIST, {"result": 1}],
        ["symlink", "a/b", "inner"],
        [DOWNLOAD, "inner/c"],
    ]
    results = client(
        "call_in_folder",
        port=agent.port,
        calls=[*calls, [REMOVE_FILE, "inner/c"], [LIST, "a/b"], [REMOVE_FILE, "."], [LIST, ""]],
    )
    assert (
        results[2] == "c"
        and results[4] == "\0\0\0"
        and results[6] == ""
        and results[8] == "a,inner"
    )
    assert "cannot remove the session's work directory itself" in results[7]


def test_a_session_that_crashes_leaves_no_zombie_and_no_folder(
    start: Start, tmp_path: Path
) -> None:
    agent = start()
    started = tmp_path / "started"
    staying = begin_client("outlive", port=agent.port, session_s=60, kept_s=1, started=str(started))
    wait_until(started.exists, "the session")
    (session,) = children_of(agent.child.pid)
    os.kill(session, signal.SIGSEGV)
    assert staying.result(LIMIT_S), "the client meets an error"
    wait_until(
        lambda: not agent.session_folders and not children_of(agent.child.pid), "nothing is left"
    )
    assert "died of Segmentation fault" in agent.log
