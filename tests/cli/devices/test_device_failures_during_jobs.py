"""Devices that die, freeze or fill up in the middle of a job: that job fails clearly, the others
finish, and nothing stays behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from farm_processes import DEVICES, DIGITS, QUICK, Done, Farm, Running, kill_all
from ssh_board_checks import assert_failed
from timeouts import LIMIT_S, patient, wait_until

from farm.errors import BuildError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.store import file_digest


def boards(*names: str) -> str:
    """Emulated boards, each busy with the slow model for half a minute, and this machine, which is
    not.
    """
    return DEVICES + "".join(
        f'[devices.{name}]\nprofile = "rasp3b"\nurl = "qemu:"\ntags = ["victim"]\n'
        for name in names
    )


def start_on(farm: Farm, *names: str, deadline_s: float = LIMIT_S) -> Running:
    farm.configure(boards(*names))
    running = farm.start(
        "deploy",
        "--tag",
        "victim",
        "--device",
        "host",
        "--json",
        "slow.onnx",
        "--deadline",
        str(deadline_s),
    )
    for name in names:
        running.says(f"{name} slow: running")
    return running


def failures(done: Done) -> dict[str, dict[str, str] | None]:
    assert done.code == 1, done.err
    assert "Traceback" not in done.err
    return {run["device"]: run["failure"] for run in done.json["runs"]}


@pytest.mark.usefixtures("emulators")
def test_agents_and_sessions_that_are_killed_in_the_middle_of_a_run(farm: Farm) -> None:
    running = start_on(farm, "agent", "session")
    os.kill(agent_and_session(farm, "agent")[0], signal.SIGKILL)
    os.kill(agent_and_session(farm, "session")[1], signal.SIGKILL)
    found = failures(running.end())
    assert found.pop("host") is None, "the others finish"
    for name, how in (("agent", "ended with status -9"), ("session", "died of Killed")):
        failure = found.pop(name)
        assert failure and failure["kind"] == "LinkError"
        assert failure["what"] == f"the agent of {name}, or its session, ended"
        assert how in failure["why"] and failure["fix"]
    farm.assert_nothing_is_left()
    farm.configure(boards("agent", "session") + DIGITS)
    assert farm.run("deploy", "--tag", "victim", "digits").code == 0, "the next jobs on them work"


@pytest.mark.usefixtures("emulators")
def test_code_for_another_core_than_the_board_has(farm: Farm) -> None:
    farm.configure(
        (
            '[devices.old]\nprofile = "x86-v4"\nurl = "qemu:"\noptions = { launcher = '
            '"qemu-x86_64 -cpu Nehalem" }\n'
        )
        + DIGITS
    )
    error = assert_failed(
        farm.run("deploy", "--device", "old", "digits"),
        5,
        "the agent of old, or its session, ended",
    )
    assert (
        "died of Illegal instruction" in error["why"] and "correct `profile` of old" in error["fix"]
    )
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
def test_frozen_agents_and_sessions_are_given_up_at_the_deadline(farm: Farm) -> None:
    deadline_s = patient(12)
    running = start_on(farm, "agent", "session", "both", deadline_s=deadline_s)
    agents = {name: agent_and_session(farm, name) for name in ("agent", "session", "both")}
    kill_all([agents["agent"][0], agents["session"][1], *agents["both"]], signal.SIGSTOP)
    found = failures(running.end())
    assert found.pop("host") is None, "the others finish"
    for name, failure in found.items():
        assert failure and failure["kind"] == "DeadlineError"
        assert failure["what"] == f"slow on {name}: no end after {deadline_s:.0f} s"
        assert "--deadline" in failure["fix"]
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
def test_an_input_that_takes_longer_than_the_deadline(farm: Farm) -> None:
    np.save(farm.folder / "x.npy", np.zeros((1, 64, 384, 384), "float32"))
    done = farm.run("run", "--device", "pi3", "slow.onnx", "--input", "x.npy", "--deadline", "5")
    assert done.code == 6
    assert "slow on pi3" in done.error["error"]
    assert "--deadline" in done.error["fix"]
    farm.assert_nothing_is_left()


FREEZER = """#!{python}
# Starts the agent, stops it when its port is open, and only then shows the port.
import os, signal, subprocess, sys, time
at = sys.argv.index("--port-file") + 1
shown, hidden = sys.argv[at], sys.argv[at] + ".hidden"
sys.argv[at] = hidden
child = subprocess.Popen(sys.argv[1:])
while not os.path.exists(hidden):
    time.sleep(0.01)
os.kill(child.pid, signal.SIGSTOP)
os.rename(hidden, shown)
child.wait()
"""


def test_an_agent_that_is_frozen_before_its_first_session(farm: Farm) -> None:
    launcher = farm.folder / "launcher"
    launcher.write_text(FREEZER.format(python=sys.executable))
    launcher.chmod(0o755)
    farm.configure(
        f'{DEVICES}{DIGITS}[devices.frozen]\nprofile = "x86"\nurl = "local:"\noptions = {{ '
        f'launcher = "{launcher}", deadline_s = 4 }}\n'
    )
    done = farm.run("deploy", "--device", "frozen", "--device", "host", "digits", "--json")
    found = failures(done)
    assert found["host"] is None
    assert found["frozen"] and found["frozen"]["kind"] == "DeadlineError"
    farm.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("false", ("ended", "status 1")),
        ("no-such-program", ("no-such-program", "launcher")),
        ("taskset '", ("launcher", "quot")),
    ],
)
def test_an_agent_that_cannot_be_started(farm: Farm, launcher: str, words: tuple[str, ...]) -> None:
    farm.configure(
        f'[devices.host]\nprofile = "x86"\nurl = "local:"\noptions = {{ launcher = '
        f'"{launcher}" }}\n{DIGITS}'
    )
    done = farm.run("deploy", "--device", "host", "digits")
    assert done.code == 5
    assert all(word in " ".join(done.error.values()) for word in words), done.error
    farm.assert_nothing_is_left()


@pytest.mark.parametrize("option", ["store", "work_dir"])
def test_a_device_whose_disk_is_full(farm: Farm, option: str) -> None:
    with disk(farm.folder / "full", "40k") as full:
        farm.configure(
            f'[devices.host]\nprofile = "x86"\nurl = "local:"\noptions = {{ {option} = '
            f'"{full}" }}\n{DIGITS}{QUICK}'
        )
        done = farm.run("deploy", "--device", "host", "slow.onnx")
        assert done.code == 5
        assert done.error["error"] == "the disk of host is full"
        assert "No space left" in done.error["why"] and "\n" not in done.error["why"], (
            "the agent itself is well"
        )
        assert option in done.error["fix"]
        assert all(
            file_digest(path) == path.name
            for path in full.rglob("*")
            if path.is_file() and path.name != ".lock"
        ), "what was half written is gone"
    farm.assert_nothing_is_left()


def test_a_full_disk_of_the_cache_leaves_no_half_artifact(fresh: Farm) -> None:
    with disk(fresh.folder / "small", "300k") as small:
        (small / "agents").symlink_to((fresh.cache / "agents").readlink())
        fresh.cache = small
        done = fresh.run("compile", "slow.onnx")
        assert done.code == 4
        assert "disk is full" in done.error["error"]
        assert "FARM_CACHE" in done.error["fix"]
        fresh.assert_nothing_is_left()
        assert list((small / "models").glob("*")) == []


def test_a_read_only_cache(farm: Farm) -> None:
    with read_only(farm.cache) as cache:
        farm.cache = cache
        done = farm.run("deploy", "--device", "host", "digits")
        assert done.code == 4
        assert "cache cannot be written" in done.error["error"]
        assert "FARM_CACHE" in done.error["fix"]
        farm.assert_nothing_is_left()


def test_a_read_only_record_of_runs(farm: Farm) -> None:
    farm.data.mkdir()
    with read_only(farm.data):
        done = farm.run("deploy", "--device", "host", "digits")
        assert done.code == 1
        assert "record of runs" in done.error["error"]
        assert "FARM_DATA" in done.error["fix"]
    farm.assert_nothing_is_left()


def agent_and_session(farm: Farm, name: str) -> tuple[int, int]:
    """Their process ids on an emulated board."""
    wait_until(
        lambda: len(farm.processes_like(f"qemu-arm.*device-{name}-")) == 2, f"a session on {name}"
    )
    agent, session = farm.processes_like(f"qemu-arm.*device-{name}-")
    return (agent, session) if parent(session) == agent else (session, agent)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """A small disk of its own."""
    folder.mkdir()
    with mounted("-t", "tmpfs", "-o", f"size={size},mode=700", "farm", folder):
        yield folder


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """The folder, in which nobody may write, not even root."""
    with mounted("--bind", folder, folder), mounted("-o", "remount,ro,bind", folder, unmount=False):
        yield folder


@contextlib.contextmanager
def mounted(*words: str | Path, unmount: bool = True) -> Iterator[None]:
    try:
        subprocesses.run_program(["mount", *words], deadline=Deadline(10), what="mounting")
    except BuildError as error:
        pytest.skip(f"no right to mount: {error.why}")
    try:
        yield
    finally:
        if unmount:
            subprocesses.run_program(
                ["umount", words[-1]], deadline=Deadline(10), what="unmounting"
            )
