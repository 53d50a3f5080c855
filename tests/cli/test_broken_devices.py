"""Devices that die, freeze or fill up in the middle of a job: that job fails clearly, the others finish, and nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import DEVICES, DIGITS, QUICK
from farm_running import Done, Farm, kill_all, wait_until

from farm import process
from farm.deadline import Deadline
from farm.errors import BuildError
from farm.store import file_digest

# A board that stands still or dies does so in the slow model's inference, or while it is connected to.
DEPLOY = ("deploy", "--device", "pi3", "--device", "host", "--json", "slow.onnx")


def runs(done: Done) -> dict[str, dict]:
    return {run["device"]: run for run in done.json["runs"]}


def assert_only_pi3_failed(done: Done, kind: str) -> dict[str, str]:
    assert done.code == 1, done.err
    assert {device: run["failure"] is None for device, run in runs(done).items()} == {"pi3": False, "host": True}
    failure: dict[str, str] = runs(done)["pi3"]["failure"]
    assert failure["kind"] == kind, failure
    assert failure["what"] and failure["why"] and failure["fix"]
    assert "Traceback" not in done.err
    return failure


@pytest.mark.usefixtures("emulators")
@pytest.mark.parametrize("whom", ["agent", "session"])
def test_an_agent_that_is_killed_in_the_middle_of_a_run(farm: Farm, whom: str) -> None:
    running = farm.start(*DEPLOY)
    running.says("pi3 slow: running")
    agent, session = agent_and_session(farm)
    os.kill(agent if whom == "agent" else session, signal.SIGKILL)
    failure = assert_only_pi3_failed(running.end(), "DeviceError")
    assert "pi3" in failure["what"] and "ended" in failure["what"], failure
    assert ("ended with status -9" if whom == "agent" else "died of Killed") in failure["why"]
    farm.assert_nothing_is_left()
    assert farm.run("deploy", "--device", "pi3", "digits").code == 0, "the next job on it works"


@pytest.mark.usefixtures("emulators")
@pytest.mark.parametrize("whom", ["agent", "session", "both"])
def test_a_frozen_agent_is_given_up_at_the_deadline(farm: Farm, whom: str) -> None:
    running = farm.start(*DEPLOY, "--deadline", "7")
    running.says("pi3 slow: running")
    agent, session = agent_and_session(farm)
    kill_all({"agent": [agent], "session": [session], "both": [agent, session]}[whom], signal.SIGSTOP)
    failure = assert_only_pi3_failed(running.end(), "DeadlineError")
    assert "slow on pi3" in failure["what"] and "7 s" in failure["what"]
    assert "--deadline" in failure["fix"]
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
def test_an_input_that_takes_longer_than_the_deadline(farm: Farm) -> None:
    np.save(farm.folder / "x.npy", np.zeros((1, 64, 192, 192), "float32"))
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
    farm.configure(f'{DEVICES}{DIGITS}[devices.frozen]\nprofile = "x86"\nurl = "local:"\noptions = {{ launcher = "{launcher}" }}\n')
    done = farm.run("deploy", "--device", "frozen", "--device", "host", "digits", "--deadline", "4", "--json")
    assert done.code == 1
    assert runs(done)["host"]["failure"] is None
    assert runs(done)["frozen"]["failure"]["kind"] == "DeadlineError"
    farm.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("launcher", "words"),
    [("false", ("ended", "status 1")), ("no-such-program", ("no-such-program", "launcher")), ("taskset '", ("launcher", "quot"))],
)
def test_an_agent_that_cannot_be_started(farm: Farm, launcher: str, words: tuple[str, ...]) -> None:
    farm.configure(f'[devices.host]\nprofile = "x86"\nurl = "local:"\noptions = {{ launcher = "{launcher}" }}\n{DIGITS}')
    done = farm.run("deploy", "--device", "host", "digits")
    assert done.code == 5
    assert all(word in " ".join(done.error.values()) for word in words), done.error
    farm.assert_nothing_is_left()


@pytest.mark.parametrize("option", ["store", "work_dir"])
def test_a_device_whose_disk_is_full(farm: Farm, option: str) -> None:
    with disk(farm.folder / "full", "40k") as full:
        farm.configure(f'[devices.host]\nprofile = "x86"\nurl = "local:"\noptions = {{ {option} = "{full}" }}\n{DIGITS}{QUICK}')
        done = farm.run("deploy", "--device", "host", "slow.onnx")
        assert done.code == 5
        assert done.error["error"] == "the disk of host is full"
        assert "No space left" in done.error["why"]
        assert option in done.error["fix"]
        assert all(file_digest(path) == path.name for path in full.rglob("*") if path.is_file()), "what was half written is gone"
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


def agent_and_session(farm: Farm) -> tuple[int, int]:
    """Their process ids on pi3."""
    wait_until(lambda: len(farm.processes_like("^\\S*qemu-arm")) == 2, "a session on pi3")
    agent, session = farm.processes_like("^\\S*qemu-arm")
    return (agent, session) if parent(session) == agent else (session, agent)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """A small disk of its own."""
    folder.mkdir()
    with mounted("-t", "tmpfs", "-o", f"size={size}", "farm", folder):
        yield folder


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """The folder, in which nobody may write, not even root."""
    with mounted("--bind", folder, folder), mounted("-o", "remount,ro,bind", folder, unmount=False):
        yield folder


@contextlib.contextmanager
def mounted(*words: str | Path, unmount: bool = True) -> Iterator[None]:
    try:
        process.run(["mount", *words], deadline=Deadline(10), what="mounting")
    except BuildError as error:
        pytest.skip(f"no right to mount: {error.why}")
    try:
        yield
    finally:
        if unmount:
            process.run(["umount", words[-1]], deadline=Deadline(10), what="unmounting")
