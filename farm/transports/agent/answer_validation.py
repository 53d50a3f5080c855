"""Validate the documents and numbers that an agent returns; the agent is not trusted.

Values that pass have the types that the rest of farm relies on. Any other value raises an
AgentAnswerError, which farm.transports.rpc_errors translates into a DeviceError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

_MOST_FACTS_CHARACTERS = 1 << 20
_MOST_TEXT_CHARACTERS = 1 << 16
_MOST_NUMBER = 1e18
_LEAST_S, _MOST_S = 1e-12, 1e9  # no clock tells less, and no session lasts longer
_MOST_DEPTH = 32  # of a document, as in farm/agent/src/store/manifest.cc
_MOST_CORE = 1 << 16
_CORES = re.compile(r"(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?")


class AgentAnswerError(ValueError):
    """Raised for an answer that no agent gives; the message names the function and the fault."""


def check_number(name: str, answer: object, least: int, most: int) -> int:
    """Return an integer answer within bounds. `name` is the function that returned it."""
    if isinstance(answer, bool) or not isinstance(answer, int) or not least <= answer <= most:
        raise AgentAnswerError(f"{name} gives no number from {least} to {most}")
    return answer


def check_durations(name: str, answers: list[float], count: int) -> list[float]:
    """Return the durations if there are `count` of them and all are valid."""
    if len(answers) != count or not all(_LEAST_S <= each < _MOST_S for each in answers):
        raise AgentAnswerError(f"{name} gives times that are none")
    return answers


def check_bytes(name: str, answer: object) -> bytes:
    """Return the bytes of an answer."""
    if not isinstance(answer, (bytes, bytearray)):
        raise AgentAnswerError(f"{name} gives no bytes")
    return bytes(answer)


def parse_document(name: str, answer: object) -> Any:
    """Return the content of a JSON document; numbers must be finite and texts valid Unicode."""
    if not isinstance(answer, str):
        raise AgentAnswerError(f"{name} gives no text")
    try:
        found = json.loads(answer, parse_float=_finite, parse_constant=_finite)
        _check_depth(found, _MOST_DEPTH)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as exc:  # UnicodeError is a subclass of ValueError
        kind = type(exc).__name__
        raise AgentAnswerError(f"{name} gives a document that is none: {kind}") from exc
    return found


def check_facts(answer: object) -> dict[str, str]:
    """Return the facts that an agent reports about itself and its board, each as a string.

    Facts that farm computes with must have the expected form
    (farm/agent/src/execution/device_facts.cc). Facts whose value is null are left out.
    """
    found = parse_document("farm.agent.facts", answer)
    if not isinstance(found, dict) or len(str(answer)) > _MOST_FACTS_CHARACTERS:
        raise AgentAnswerError("farm.agent.facts gives no table of a modest size")
    for name, value in found.items():
        if value is not None and not _FORMS.get(name, _is_modest)(value):
            raise AgentAnswerError(f"farm.agent.facts gives {name[:100]!r} in no form that it has")
    told = {name: value for name, value in found.items() if value is not None}
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in told.items()
    }


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number without bounds")
    return value


def _check_depth(value: object, left: int) -> None:
    if left == 0:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            _check_depth(inner, left - 1)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT_CHARACTERS


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= _MOST_NUMBER


def _is_count(value: object) -> bool:
    return _is_number(value) and isinstance(value, int) and value >= 0


def _is_flags(value: object) -> bool:
    """Return whether a number can hold the firmware's 32 flag bits; it may be written as 1e+06."""
    return _is_number(value) and 0 <= value < 1 << 32  # type: ignore[operator]


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_scalar(value: object) -> bool:
    return _is_text(value) or _is_number(value) or _is_flag(value)


def _is_modest(value: object) -> bool:
    """Return whether the value of any other fact is small and simple enough to keep and show."""
    if isinstance(value, dict):
        return all(each is None or _is_scalar(each) for each in value.values())
    if isinstance(value, list):
        return all(each is None or _is_scalar(each) for each in value)
    return _is_scalar(value)


def _are_numbers(value: object) -> bool:
    """Return whether a value is a list of numbers, one for each core; unknown ones are None."""
    return isinstance(value, list) and all(each is None or _is_number(each) for each in value)


def _are_numbers_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(_is_number(each) for each in value.values())


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(_is_text(each) for each in value)


def _are_cores(value: object) -> bool:
    """Return whether a value is a list of CPU numbers such as 0,2-3."""
    if not isinstance(value, str) or not _is_text(value) or not _CORES.fullmatch(value):
        return False
    ranges = [[int(end) for end in part.split("-")] for part in value.split(",") if part]
    return all(ends[0] <= ends[-1] < _MOST_CORE for ends in ranges)


_FORMS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(
        (
            *("agent", "tvm", "machine", "hostname", "kernel", "cpu", "governor"),
            *("gpu_cuda", "gpu_driver", "gpu_launches"),
        ),
        _is_text,
    ),
    **dict.fromkeys(("big_cores", "little_cores", "thread_cores"), _are_cores),
    "throttled": _is_flags,
    **dict.fromkeys(
        (
            *("protocol", "cores", "threads", "gpu_multiprocessors"),
            *("gpu_memory_free_bytes", "gpu_memory_total_bytes"),
        ),
        _is_count,
    ),
    **dict.fromkeys(
        (
            *("memory_total_bytes", "memory_available_bytes", "memory_peak_bytes"),
            *("cpu_quota", "cpu_wait_s", "load_1m", "time_s", "uptime_s"),
            *("gpu_clock_khz", "gpu_max_clock_khz", "gpu_memory_clock_khz", "gpu_temperature_c"),
            *("gpu_power_w", "gpu_power_limit_w", "gpu_energy_j"),
        ),
        _is_number,
    ),
    **dict.fromkeys(("frequency_khz", "max_frequency_khz"), _are_numbers),
    "threads_pinned": _is_flag,
    "temperatures_c": _are_numbers_by_name,
    "gpu_slowed_by": _are_texts,
}
