"""Android boards by adb: the real client and server, a stand-in for the board's adbd, the real
agent.
"""

from __future__ import annotations

import os

import pytest
from android_board import AdbServer, AndroidBoard
from android_board_checks import assert_nothing_is_left, configure, deploy
from farm_processes import Farm

ARM = [("rasp3b", "qemu-arm"), ("pixel2", "qemu-aarch64")]


@pytest.fixture(autouse=True)
def board(farm: Farm, phone: AndroidBoard) -> AndroidBoard:
    configure(farm, phone.url)
    return phone


def test_a_board_is_benched_and_agrees_with_the_reference(farm: Farm, board: AndroidBoard) -> None:
    done = farm.run("bench", "--device", "board", "digits", "--json")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["verdict"] in ("STABLE", "NOISY")
    assert run["samples"]["agreement"]["right"] is True
    assert run["samples"]["correct"] >= 19
    assert_nothing_is_left(farm, board)


def test_what_is_on_the_board_is_not_sent_again(farm: Farm, board: AndroidBoard) -> None:
    assert "MB sent" in deploy(farm).out
    (agent,) = board.agents()
    before = agent.stat()
    again = farm.run("deploy", "--device", "board", "digits", "--json")
    assert again.json["runs"][0]["samples"]["uploaded"] == 0
    assert board.agents() == [agent]
    assert (agent.stat().st_ino, agent.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_agent_that_is_not_whole_is_replaced(farm: Farm, board: AndroidBoard) -> None:
    assert deploy(farm).code == 0
    (agent,) = board.agents()
    size = agent.stat().st_size
    os.truncate(agent, 1000)
    assert deploy(farm).code == 0
    assert agent.stat().st_size == size


def test_the_only_board_needs_no_serial_number(farm: Farm, board: AndroidBoard) -> None:
    configure(farm, "adb:")
    assert deploy(farm).code == 0
    assert board.agents()


@pytest.mark.parametrize(("profile", "launcher"), ARM)
def test_arm_boards_get_agents_of_their_own(
    farm: Farm, board: AndroidBoard, emulators: None, profile: str, launcher: str
) -> None:
    configure(farm, board.url, profile, f'launcher = "{launcher}", threads = 1')
    done = deploy(farm)
    assert done.code == 0, done.err
    assert "right" in done.out
    assert farm.run("devices", "-v").code == 0
    assert_nothing_is_left(farm, board)


def test_folders_on_the_board_can_be_chosen(farm: Farm, board: AndroidBoard) -> None:
    configure(
        farm,
        board.url,
        options=f'store = "{board.folder}/a b/store", work_dir = "{board.folder}/a b/work"',
    )
    assert deploy(farm).code == 0
    assert len(list((board.folder / "a b" / "store").glob("agents/*/farm-agent"))) == 1
    assert not board.kept.exists()
    assert list((board.folder / "a b" / "work").glob("farm-session-*")) == []


def test_a_server_that_does_not_run_is_started(farm: Farm, adb: AdbServer) -> None:
    adb.kill()
    assert not adb.is_up()
    done = farm.run("devices")
    assert adb.is_up()
    assert "adb lists no" in done.out + done.err  # a device by TCP is not found again by itself


def test_a_phone_says_how_it_is(farm: Farm, board: AndroidBoard) -> None:
    board.power(level=42, usb=False, awake=False)
    facts = farm.run("devices", "-v", "--json").json["devices"][0]["facts"]
    assert (
        facts["board_model"] == "Stand-in Board One"
        and facts["soc"] == "QTI SM8350"
        and facts["android"] == "13"
    )
    assert (
        facts["battery_percent"] == "42"
        and facts["external_power"] == facts["screen_on"] == facts["battery_saver"] == "false"
    )
    said = farm.run("doctor", "--device", "board").out
    assert "battery: 42 %, not on external power" in said and "screen: off" in said


def test_figures_of_a_phone_on_battery_saver_are_throttled(farm: Farm, board: AndroidBoard) -> None:
    board.power(saver=True)
    (run,) = farm.run("bench", "--device", "board", "digits", "--json").json["runs"]
    assert run["verdict"] == "THROTTLED" and run["reason"] == "its battery saver is on"
    assert all("battery_saver" not in facts for facts in run["samples"]["facts_during"]), (
        "dumpsys would disturb the samples"
    )
