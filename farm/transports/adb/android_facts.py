"""Facts of the Android system that the agent, which reads the kernel's files, does not see.

They are read by getprop, dumpsys and settings. What a board does not tell, or tells in no form
known here, is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from farm import sanitize
from farm.errors import DeviceError
from farm.processes.deadline import Deadline
from farm.prompts import answer_nothing
from farm.transports.adb.board import reach_board
from farm.types import Device

_READ_S = 10.0
_MOST_TEXT = 200
_CHARGING = "2"  # BatteryManager.BATTERY_STATUS_CHARGING
_SCRIPT = """
one() { "$@" 2>/dev/null | head -c 4096 | tr "\\n" ";"; }
tell board "$(getprop ro.product.manufacturer) $(getprop ro.product.model)"
tell soc "$(getprop ro.soc.manufacturer) $(getprop ro.soc.model)"
tell platform "$(getprop ro.board.platform)"
tell android "$(getprop ro.build.version.release)"
tell battery "$(one dumpsys battery)"
tell saver "$(one settings get global low_power)"
tell power "$(dumpsys power 2>/dev/null | grep -E "mWakefulness=|Display Power: state=" | one cat)"
tell thermal "$(dumpsys thermalservice 2>/dev/null | grep "Thermal Status:" | one cat)"
"""


def read_android_facts(device: Device) -> dict[str, str]:
    """Return what the Android of a board says, as texts by name.

    Empty if it does not answer in time: an agent that is there answers for itself.
    """
    try:
        with reach_board(device, Deadline(_READ_S), answer_nothing) as board:
            return facts_from_report(board.ask(_SCRIPT, []))
    except DeviceError:
        return {}


def facts_from_report(report: Mapping[str, str]) -> dict[str, str]:
    """Return the facts in what the script reported.

    Texts are `board_model`, `soc` and `android`; numbers `battery_percent`, `battery_temperature_c`
    and `thermal_status` (0 is none); `charging`, `external_power`, `battery_saver` and `screen_on`
    are true or false.
    """
    battery, power = report.get("battery", ""), report.get("power", "")
    level, scale, tenths = (
        _number(rf"\b{name}: (-?\d+)", battery) for name in ("level", "scale", "temperature")
    )
    status, awake = (
        re.search(r"\bstatus: (\d)", battery),
        re.search(r"mWakefulness=(\w+)", power) or re.search(r"state=(\w+)", power),
    )
    found: dict[str, object] = {
        "board_model": _text(report.get("board", "")),
        "soc": _text(report.get("soc", "")) or _text(report.get("platform", "")),
        "android": _text(report.get("android", "")),
        "battery_percent": round(100 * level / scale) if level is not None and scale else level,
        "battery_temperature_c": None if tenths is None else tenths / 10,
        "charging": status[1] == _CHARGING if status else None,
        "external_power": "powered: true" in battery if "powered:" in battery else None,
        "battery_saver": {"1": True, "0": False}.get(report.get("saver", "").strip("; ")),
        "screen_on": awake[1] in ("Awake", "ON") if awake else None,
        "thermal_status": _number(r"Thermal Status: (\d)", report.get("thermal", "")),
    }
    told = {name: value for name, value in found.items() if value not in (None, "")}
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in told.items()
    }


def _text(text: str) -> str:
    return sanitize.sanitized_line(text.strip())[:_MOST_TEXT]


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found and len(found[1]) <= 6 else None
