"""farm add of an Android board: found in adb's list, found out by getprop and /proc/cpuinfo,
proved, and written.
"""

from __future__ import annotations

import tomllib

from android_board import AdbServer, AndroidBoard, android_board
from android_board_checks import assert_nothing_is_left
from farm_processes import Farm
from timeouts import wait_until


def test_the_only_phone_is_found_out_proved_and_written(farm: Farm, phone: AndroidBoard) -> None:
    (farm.folder / "devices.toml").unlink()
    done = farm.run("add", "mine", "adb:", "-t", "phones")
    assert done.code == 0, done.err
    assert "Stand-in Board One, QTI SM8350" in done.out + done.err
    assert "digits is right" in done.out
    device = tomllib.loads((farm.folder / "devices.toml").read_text())["devices"]["mine"]
    assert (
        device["url"] == "adb:"
        and device["tags"] == ["phones"]
        and device["profile"] in ("mine", "x86-v3", "x86-v4")
    )
    again = farm.run("bench", "--device", "mine", "digits", "--json")
    assert again.json["runs"][0]["samples"]["agreement"]["right"] is True
    assert_nothing_is_left(farm, phone)


def test_phones_that_are_plugged_in_are_listed(
    farm: Farm, adb: AdbServer, phone: AndroidBoard
) -> None:
    with android_board(adb, farm.mark, "locked", options=("--state", "unauthorized")) as locked:
        found = {one["url"]: one for one in farm.run("add", "--json").json["candidates"]}
        assert (
            found[phone.url]["name"] == "stand-in" and found[phone.url]["source"] == "adb devices"
        )
        assert "not authorized yet" in found[locked.url]["source"]
        shown = farm.run("add", "mine", locked.url)
        assert (
            shown.code == 5
            and "is unauthorized" in shown.error["error"]
            and "allow USB debugging" in shown.error["fix"]
        )


def test_a_listing_starts_no_server(farm: Farm, adb: AdbServer) -> None:
    farm.environment = adb.env
    adb.kill()
    wait_until(lambda: not adb.is_up(), "the end of the server")
    assert farm.run("add").code == 0
    assert not adb.is_up()
