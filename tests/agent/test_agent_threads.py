"""With how many threads a session computes, and on which cores: by itself, as the agent was told,
and as the session asks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_calls import in_session, in_sessions
from agent_models import SmallModel
from agent_processes import Agent, client
from timeouts import wait_until

Start = Callable[..., Agent]
Models = Callable[[str], SmallModel]
THREADS, FACTS, COUNT = "farm.agent.threads", "farm.agent.facts", "runtime.NumThreads"
ALLOWED = sorted(os.sched_getaffinity(0))
several_cores = pytest.mark.skipif(len(ALLOWED) < 2, reason="this machine has one core")


def in_force(facts: str) -> tuple[int, str, bool]:
    told = json.loads(facts)
    return told["threads"], told["thread_cores"], told["threads_pinned"]


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "armv7"])
def test_a_session_asks_for_threads_and_cores_and_the_next_one_has_the_default_again(
    arch: str, start: Start
) -> None:
    agent, last = start(arch), str(ALLOWED[-1])
    asked, after = in_sessions(agent, [[THREADS, 1, last, False], [FACTS], [COUNT]], [[FACTS]])
    assert in_force(asked[1]) == (1, last, False)
    assert asked[2] == 1
    told = json.loads(after[0])
    assert told["thread_cores"] == told["big_cores"] and not told["threads_pinned"]
    assert told["cores"] == len(ALLOWED)


@several_cores
def test_threads_may_be_fewer_and_then_more_again_within_a_session(start: Start) -> None:
    numbers = f"{ALLOWED[0]},{ALLOWED[1]}"
    counts = in_session(
        start(), *(call for n in (2, 1, 2) for call in ([THREADS, n, numbers, False], [COUNT]))
    )[1::2]
    assert counts == [2, 1, 2]


@several_cores
@pytest.mark.parametrize(
    ("pinned", "expected"), [(False, "each on both"), (True, "each on its own")]
)
def test_threads_share_their_cores_or_have_one_each(
    pinned: bool, expected: str, start: Start
) -> None:
    agent, (first, second) = start(), ALLOWED[:2]
    both = f"{first}-{second}" if second == first + 1 else f"{first},{second}"
    seen: list[str] = client(
        "cores_of_threads",
        port=agent.port,
        agent=agent.child.pid,
        calls=[[THREADS, 2, f"{first},{second}", pinned]],
    )
    of_its_own = sorted([str(first), str(second)])
    assert set(seen) == set(of_its_own if pinned else [both]), expected


REFUSED = [
    (0, "little", "no little cores"),
    (99, "all", "a core takes one"),
    (2, "0", "a core takes one"),
    (1, "4000", "has no little|is not there, or not for this process|no range"),
    (1, "900", "core 900 is not there, or not for this process: it may use"),
    (1, "3-1", "no range"),
    (-1, "all", "a number above 0"),
    *(
        (1, text, "cores are big, little, all, or numbers such as 0,2-3")
        for text in ("Big", "x", ",", "1,", "-1", "1-", "0x1", "1 2")
    ),
]


def test_a_setting_that_has_no_sense_is_refused_in_words_and_changes_nothing(start: Start) -> None:
    calls: list[list[Any]] = [[THREADS, count, cores, False] for count, cores, _ in REFUSED]
    *errors, facts = in_session(start("x86_64", "--threads", "1"), *calls, [FACTS])
    for (count, cores, words), error in zip(REFUSED, errors, strict=True):
        assert error and any(part in error for part in words.split("|")), (count, cores, error)
    assert in_force(facts)[0] == 1


def test_an_agent_that_is_told_more_threads_than_it_has_cores_does_not_begin(start: Start) -> None:
    agent = start("x86_64", "--threads", "999")
    wait_until(lambda: agent.child.poll() is not None, "it ends")
    assert agent.child.returncode == 1 and "a core takes one" in agent.log


@several_cores
def test_a_model_gives_the_same_numbers_with_any_threads(start: Start, models: Models) -> None:
    agent, model = start(), models("x86_64")
    files = {name: str(getattr(model, name)) for name in ("library", "parameters", "x", "expected")}
    errors = client(
        "with_threads",
        port=agent.port,
        settings=[[2, "", False], [1, "", True], [2, "", True]],
        **files,
    )
    assert len(errors) == 3 and max(errors) < 1e-6


@pytest.fixture
def big_and_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that qemu lets the board see in place of /: its file system, as far as there
    is one.
    """
    root = tmp_path / "board"
    root.mkdir()
    monkeypatch.setenv("QEMU_LD_PREFIX", str(root))
    return root


def put(root: Path, file: str, *texts: object) -> None:
    for cpu, text in zip(ALLOWED, texts, strict=False):
        path = root / "sys/devices/system/cpu" / f"cpu{cpu}" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@several_cores
@pytest.mark.parametrize("arch", ["aarch64", "armv7"])
@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("cpu_capacity", (485, *[1024] * 200)),
        ("cpufreq/cpuinfo_max_freq", (1416000, *[1800000] * 200)),
    ],
)
def test_the_default_is_the_big_cores_by_capacity_or_clock(
    arch: str, file: str, values: tuple[int, ...], start: Start, big_and_little: Path
) -> None:
    put(big_and_little, "cpu_capacity", *[0] * 200)  # an old kernel does not tell
    put(big_and_little, file, *values)
    agent, little = start(arch), str(ALLOWED[0])
    facts, _, asked = in_session(agent, [FACTS], [THREADS, 0, "little", False], [FACTS])
    told = json.loads(facts)
    assert told["little_cores"] == little and little not in told["big_cores"].split(",")
    assert in_force(facts) == (len(ALLOWED) - 1, told["big_cores"], False)
    assert in_force(asked) == (1, little, False)


@several_cores
def test_little_cores_are_known_by_their_part_where_the_kernel_tells_no_more(
    start: Start, big_and_little: Path
) -> None:
    put(big_and_little, "cpu_capacity", *[0] * 200)
    parts = ["0xd03", *["0xd08"] * (len(ALLOWED) - 1)]  # Cortex-A53, Cortex-A72
    (big_and_little / "proc").mkdir()
    text = "\n\n".join(
        f"processor\t: {cpu}\nCPU part\t: {part}" for cpu, part in zip(ALLOWED, parts, strict=True)
    )
    (big_and_little / "proc/cpuinfo").write_text(text)
    assert json.loads(in_session(start("aarch64"), [FACTS])[0])["little_cores"] == str(ALLOWED[0])


@several_cores
def test_a_container_gets_as_many_threads_as_it_gets_time(
    start: Start, big_and_little: Path
) -> None:
    groups = big_and_little / "sys/fs/cgroup/farm/job"
    groups.mkdir(parents=True)
    (groups / "cpu.max").write_text("max 100000\n")
    (groups.parent / "cpu.max").write_text("60000 100000\n")
    (big_and_little / "proc/self").mkdir(parents=True)
    (big_and_little / "proc/self/cgroup").write_text("0::/farm/job\n")
    told = json.loads(in_session(start("aarch64"), [FACTS])[0])
    assert (told["cpu_quota"], told["threads"]) == (1, 1)
    assert told["cores"] == len(ALLOWED)
