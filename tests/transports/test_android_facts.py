"""What an Android board says of its battery, its screen and its heat, in the forms of dumpsys and
settings.
"""

from __future__ import annotations

import json

from farm.transports.adb.android_facts import facts_from_report

BATTERY = (
    "Current Battery Service state:;  AC powered: false;  USB powered: true;  Wireless powered: "
    "false;"
    "  status: 5;  level: 93;  scale: 100;  voltage: 4351;  temperature: 312;"
)
REPORT = {
    "board": "Google Pixel 6",
    "soc": "Google GS101",
    "platform": "gs101",
    "android": "14",
    "battery": BATTERY,
    "saver": "1;",
    "power": "  mWakefulness=Dozing;Display Power: state=OFF;",
    "thermal": "Thermal Status: 2;",
}


def test_every_fact_is_read() -> None:
    facts = facts_from_report(REPORT)
    texts = {name: facts.pop(name) for name in ("board_model", "soc", "android")}
    assert texts == {"board_model": "Google Pixel 6", "soc": "Google GS101", "android": "14"}
    assert {name: json.loads(value) for name, value in facts.items()} == {
        "battery_percent": 93,
        "battery_temperature_c": 31.2,
        "charging": False,
        "external_power": True,
        "battery_saver": True,
        "screen_on": False,
        "thermal_status": 2,
    }


def test_a_board_that_is_awake_charging_and_unplugged_is_told_from_one_that_is_not() -> None:
    told = {
        "battery": "AC powered: false;  USB powered: false;  status: 2;  level: 93;  scale: 200;",
        "saver": "0;",
        "power": "  mWakefulness=Awake;Display Power: state=OFF;",
        "thermal": "Thermal Status: 0;",
    }
    assert {name: json.loads(value) for name, value in facts_from_report(told).items()} == {
        "battery_percent": 46,
        "charging": True,
        "external_power": False,
        "battery_saver": False,
        "screen_on": True,
        "thermal_status": 0,
    }


def test_what_an_older_android_does_not_say_is_left_out() -> None:
    assert facts_from_report(
        {
            "board": " ",
            "soc": " ",
            "platform": "msm8998",
            "saver": "null;",
            "thermal": "",
            "power": "Display Power: state=ON;",
        }
    ) == {
        "soc": "msm8998",
        "screen_on": "true",
    }
    assert facts_from_report({}) == {}


def test_a_board_that_says_nonsense_gives_no_facts_of_it() -> None:
    wild = {
        "battery": "level: 99999999999; scale: 0; status: 9; temperature: x",
        "thermal": "Thermal Status: hot",
        "board": "\x1b[2J" * 200,
    }
    facts = facts_from_report(wild)
    assert "battery_percent" not in facts and "thermal_status" not in facts
    assert "\x1b" not in facts["board_model"] and len(facts["board_model"]) <= 200
