"""Ctrl-C, SIGTERM, SIGHUP and SIGKILL at every stage: the right exit code, one line, and nothing
left behind.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from farm_processes import DEVICES, DIGITS, HIDE_CURSOR, SHOW_CURSOR, Done, Farm, Running
from timeouts import LIMIT_S, patient, wait_until

from farm.agent.build import PREBUILT

LONG = "[bench]\nmodels = ['digits']\nminimum_s = 60.0\nmaximum_s = 60.0\ndataset_limit = 20\n"
CTRL_C = "\x03"


@pytest.fixture
def unbuilt(fresh: Farm) -> Farm:
    """A farm without agents."""
    if PREBUILT.exists():
        pytest.skip("this farm came with its agents")
    (fresh.cache / "agents").unlink()
    return fresh


def assert_interrupted(done: Done, code: int = 130) -> None:
    assert done.code == code, done.err
    assert re.findall(r"^\S*(?:error|why|fix)\S*: .*", done.err, re.MULTILINE) == [
        "error: interrupted"
    ], done.err
    assert "Traceback" not in done.err


def assert_interrupted_on_terminal(done: Done) -> None:
    assert done.code == 130, done.err
    assert HIDE_CURSOR in done.err, "the live display was on"
    assert done.err.rindex(SHOW_CURSOR) > done.err.rindex(HIDE_CURSOR)
    assert len(re.findall("interrupted", done.err)) == 1
    assert "Traceback" not in done.err


def stop(running: Running, number: signal.Signals = signal.SIGINT) -> Done:
    """Once, and again while it cleans up."""
    running.send(number)
    time.sleep(0.15)
    if running.child.poll() is None:
        running.send(number)
    return running.end()


@pytest.mark.parametrize("command", [("bench", "--device", "host"), ("compile", "digits")])
def test_ctrl_c_while_importing(fresh: Farm, command: tuple[str, ...]) -> None:
    running = fresh.start(*command)
    running.says("importing")
    assert_interrupted(stop(running))
    fresh.assert_nothing_is_left()
    assert list((fresh.cache / "models").glob("*")) == []


def test_ctrl_c_while_compiling(fresh: Farm) -> None:
    """For another CPU: for this one, the check of the import compiles."""
    fresh.configure(f'[devices.board]\nprofile = "x86-v3"\nurl = "local:"\n{DIGITS}')
    running = fresh.start("bench", "--device", "board")
    running.says("board digits: compiling")
    assert_interrupted(stop(running))
    fresh.assert_nothing_is_left()
    assert list((fresh.cache / "artifacts").glob("*")) == []
    assert len(list((fresh.cache / "models").glob("*"))) == 1, "what was done stays"


def test_ctrl_c_while_building_an_agent(unbuilt: Farm) -> None:
    running = unbuilt.start("deploy", "--device", "host", "digits")
    wait_until(lambda: len(unbuilt.processes_like("clang .*tvm.cc")) >= 1, "the compiler runs")
    assert_interrupted(stop(running))
    unbuilt.assert_nothing_is_left()
    assert list((unbuilt.cache / "agents").rglob("*farm-agent*")) == []


def test_ctrl_c_while_connecting(farm: Farm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"rpc://127.0.0.1:{mute.getsockname()[1]}"
        farm.configure(f'[devices.mute]\nprofile = "x86"\nurl = "{url}"\n{DIGITS}')
        running = farm.start("deploy", "--device", "mute", "digits")
        running.says("connecting")
        wait_until(lambda: mute.accept(), "the probe")
        assert_interrupted(stop(running))
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
def test_ctrl_c_while_running(farm: Farm) -> None:
    running = farm.start("deploy", "--device", "pi3", "slow.onnx")
    running.says("pi3 slow: running")
    assert len(farm.processes_like("qemu-arm")) == 2, "the agent and its session"
    assert_interrupted(stop(running))
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
def test_ctrl_c_while_measuring_with_the_others_paused(farm: Farm) -> None:
    farm.configure(DEVICES + DIGITS + LONG)
    running = farm.start("bench", "--all")
    running.says(r"host digits: measuring")
    wait_until(lambda: paused(farm), "the others are paused")
    assert_interrupted(stop(running))
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
def test_ctrl_c_while_accuracy_is_measured(farm: Farm) -> None:
    farm.configure(DEVICES + DIGITS)
    running = farm.start("bench", "--device", "rk3399", "digits")
    running.says("rk3399 digits: accuracy")
    assert_interrupted(stop(running))
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
def test_ctrl_c_while_devices_are_asked(farm: Farm) -> None:
    running = farm.start("devices", "-v")
    wait_until(lambda: farm.processes_like("qemu-"), "an agent runs")
    assert_interrupted(stop(running))
    farm.assert_nothing_is_left()


def test_ctrl_c_while_an_input_keeps_it_waiting(farm: Farm) -> None:
    os.mkfifo(farm.folder / "x.png")
    running = farm.start("run", "--device", "host", "digits", "--input", "x.png")
    writer = wait_until(lambda: open_for_writing(farm.folder / "x.png"), "somebody reads the fifo")
    try:
        assert_interrupted(stop(running))
    finally:
        os.close(writer)
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_clean_up_too(farm: Farm, number: signal.Signals, code: int) -> None:
    running = farm.start("deploy", "--device", "pi3", "slow.onnx")
    running.says("pi3 slow: running")
    assert_interrupted(stop(running, number), code)
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
def test_an_interrupted_command_still_prints_its_one_json_document(farm: Farm) -> None:
    running = farm.start("deploy", "--device", "pi3", "slow.onnx", "--json")
    running.says("pi3 slow: running")
    done = stop(running)
    assert_interrupted(done)
    assert done.json["error"]["exit_code"] == 130


def test_ctrl_c_that_is_ignored_by_the_shell_stays_ignored(farm: Farm) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    running = farm.start("deploy", "--device", "host", "digits", preexec_fn=ignore)
    running.says("connecting")
    running.send(signal.SIGINT)
    assert running.end().code == 0


@pytest.mark.usefixtures("emulators")
@pytest.mark.parametrize("stage", ["importing", "measuring"])
def test_ctrl_c_on_a_terminal_restores_it(farm: Farm, fresh: Farm, stage: str) -> None:
    one = fresh if stage == "importing" else farm
    one.configure(DEVICES + DIGITS + LONG)
    running = one.start_on_terminal("bench", "--all")
    running.says(stage)
    running.type(CTRL_C)
    running.type(CTRL_C)
    assert_interrupted_on_terminal(running.end())
    one.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
def test_ctrl_c_on_a_terminal_stops_a_spinner(farm: Farm) -> None:
    running = farm.start_on_terminal("devices", "-v")
    running.says("asking the devices")
    running.type(CTRL_C)
    assert_interrupted_on_terminal(running.end())
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
def test_a_terminal_that_is_closed_ends_the_command(farm: Farm) -> None:
    running = farm.start_on_terminal("deploy", "--device", "pi3", "slow.onnx")
    running.says("running")
    running.hang_up()
    assert running.child.wait(LIMIT_S) == 129
    farm.assert_nothing_is_left()


@pytest.mark.usefixtures("emulators")
@pytest.mark.parametrize("stage", ["running", "measuring"])
def test_a_farm_that_is_killed_takes_everything_with_it(farm: Farm, stage: str) -> None:
    if stage == "running":
        running = farm.start("deploy", "--device", "pi3", "slow.onnx")
        running.says("pi3 slow: running")
    else:
        farm.configure(DEVICES + DIGITS + LONG)
        running = farm.start("bench", "--all")
        wait_until(lambda: paused(farm), "the others are paused")
    running.send(signal.SIGKILL)
    assert running.end().code == -signal.SIGKILL
    wait_until(lambda: not farm.processes(), f"the end of {farm.processes()}", patient(5))
    assert farm.scratch(), "what the next command is to sweep"
    assert farm.run("compile", "digits").code == 0
    farm.assert_nothing_is_left()


def test_a_farm_that_is_killed_while_it_builds_an_agent_takes_the_compilers_with_it(
    unbuilt: Farm,
) -> None:
    running = unbuilt.start("deploy", "--device", "host", "digits")
    wait_until(lambda: len(unbuilt.processes_like("clang .*tvm.cc")) >= 1, "the compiler runs")
    running.send(signal.SIGKILL)
    running.end()
    wait_until(lambda: not unbuilt.processes(), f"the end of {unbuilt.processes()}", patient(5))
    assert list((unbuilt.cache / "agents").rglob("*farm-agent*")) == []


def open_for_writing(fifo: Path) -> int | None:
    """A descriptor, once there is a reader, who then waits for what we never write."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def paused(farm: Farm) -> bool:
    """Whether some of the farm's processes are stopped."""
    return any(state(pid) == "T" for pid in farm.processes())


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
