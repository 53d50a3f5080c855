"""Lossless conversion of runs to strict JSON and back.

Numbers that JSON lacks are the strings "inf", "-inf" and "nan".
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from farm import stats
from farm.errors import FarmError
from farm.types import Agreement, DeviceResults, Failure, Latency, Run, Verdict

SCHEMA = "farm/run/1"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_LONGEST = 10_000  # characters of a text, such as the reason of a failure
_LARGEST = 2**63 - 1  # what a database and other programs can hold
_WHOLE = ("count", "block")
_MEASURES = ("max_abs", "snr_db", "max_rel", "cosine", "top1", "top5")


def run_to_json(run: Run) -> dict[str, Any]:
    """Return a run as a JSON object in the shape of its dataclasses, with derived keys.

    `emulated`: if true, the seconds are an emulator's and are not a benchmark. `inferences_per_s`
    is set if a batch was requested; `power_w` and `inference_j` (joules per inference) if the
    device reports its power.
    """
    derived = {
        "schema": SCHEMA,
        "emulated": run.emulated,
        "inferences_per_s": stats.inferences_per_second(run),
        "power_w": stats.power_w(run),
        "inference_j": stats.energy_per_inference_j(run),
    }
    return {**as_strict_json(derived), **as_strict_json(run)}


def run_from_json(body: Mapping[str, Any]) -> Run:
    """Return the run that `run_to_json` encoded; ignore unknown keys.

    Raises FarmError if `body` is not a run, or is one of another schema.
    """
    if body.get("schema") != SCHEMA:
        raise FarmError(
            f"a run of schema {body.get('schema')!r} cannot be read",
            f"this farm reads {SCHEMA!r}",
            "install a newer farm",
        )
    try:
        return Run(
            **{
                **_known(Run, body),
                "verdict": Verdict(body["verdict"]),
                "samples": _samples(body["samples"]) if body["samples"] is not None else None,
                "latency": _latency(body["latency"]) if body["latency"] is not None else None,
                "failure": Failure(**_known(Failure, body["failure"]))
                if body["failure"] is not None
                else None,
            }
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as exc:
        raise FarmError("a run cannot be read", f"{type(exc).__name__}: {exc}", "") from exc


def parse_untrusted_run(line: str) -> Run:
    """Return the run in a line of JSON that anyone may have written.

    In addition to `run_from_json`, every value has the type of its field, names and texts have a
    length that tables and pages can show, and times are times: one run that is none of these would
    be met by every later `farm history`. Raises FarmError.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise FarmError("a run cannot be read", f"it is no JSON: {exc}", "") from exc
    if not isinstance(body, dict):
        raise FarmError("a run cannot be read", "it is no JSON object", "")
    run = run_from_json(body)
    try:
        # None of the values is converted: a text that holds a number is a mistake, too.
        TypeAdapter(Run).validate_json(json.dumps(dataclasses.asdict(run)), strict=True)
    except (ValidationError, RecursionError, TypeError) as exc:
        found = (
            exc.errors(include_url=False)[0]
            if isinstance(exc, ValidationError)
            else {"loc": (), "msg": type(exc).__name__}
        )
        raise FarmError(
            "a run cannot be read", f"{'.'.join(map(str, found['loc']))}: {found['msg']}", ""
        ) from exc
    if why := _unusable(run):
        raise FarmError("a run cannot be read", why, "")
    return run


def _unusable(run: Run) -> str:
    """Return why a run of the right types cannot be one of farm's; empty if it can."""
    for name in ("id", "artifact_digest", "model_digest"):
        if (value := getattr(run, name)) is not None and not _ID.fullmatch(value):
            return f"{name} is {value!r:.60}"
    leaves = list(_leaves(as_strict_json(run)))
    if long := [text for text in leaves if isinstance(text, str) and len(text) > _LONGEST]:
        return f"it has a text of {len(long[0])} characters"
    if any(isinstance(number, int) and abs(number) > _LARGEST for number in leaves):
        return "it has an integer beyond 64 bits"
    if not run.device or not run.model:
        return "it names no device or no model"
    try:
        if datetime.fromisoformat(run.started_at).utcoffset() is None:
            return f"started_at has no time zone: {run.started_at!r:.60}"
    except ValueError:
        return f"started_at is {run.started_at!r:.60}"
    times = run.samples.seconds if run.samples else ()
    if not all(0 < seconds < math.inf for seconds in times):
        return "its samples are no times above 0"
    return ""


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the keys and the values in a JSON value that hold no others."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _samples(body: Mapping[str, Any]) -> DeviceResults:
    agreement = _known(Agreement, body["agreement"])
    numbers = {name: _numbers(value) for name, value in agreement.items() if name in _MEASURES}
    return DeviceResults(
        **{
            **_known(DeviceResults, body),
            "seconds": tuple(float(s) for s in body["seconds"]),
            "first_s": float(body["first_s"]),
            "agreement": Agreement(**{**agreement, **numbers}),
            "ledger": {part: float(s) for part, s in body["ledger"].items()},
            **{
                name: _numbers(body.get(name))
                for name in ("held_up", "measured_s", "wall_s", "energy_j")
            },
            "facts_during": tuple(body.get("facts_during", ())),
        }
    )


def _latency(body: Mapping[str, Any]) -> Latency:
    return Latency(
        **{
            name: value if name in _WHOLE else _numbers(value)
            for name, value in _known(Latency, body).items()
        }
    )


def _numbers(value: Any) -> Any:
    """Return a number as float, an interval as a tuple of floats, or None."""
    if value is None or isinstance(value, float):
        return value
    return tuple(map(float, value)) if isinstance(value, (list, tuple)) else float(value)


def _known(kind: type, body: Mapping[str, Any]) -> dict[str, Any]:
    names = _names(kind)
    return {name: value for name, value in body.items() if name in names}


@functools.cache
def _names(kind: type) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(kind))


def as_strict_json(value: Any) -> Any:
    """Return dataclasses, enums, mappings and sequences as values that strict JSON can hold.

    Infinities and NaN become strings.
    """
    if dataclasses.is_dataclass(value):
        return {
            field.name: as_strict_json(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: as_strict_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_strict_json(item) for item in value]
    return value
