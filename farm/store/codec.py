"""Runs as strict JSON and back, exactly. Numbers that JSON lacks are the strings "inf", "-inf" and "nan"."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from farm import stats
from farm.errors import FarmError
from farm.types import Agreement, Failure, Latency, Run, Samples, Verdict

SCHEMA = "farm/run/1"
_WHOLE = ("count", "block")
_MEASURES = ("max_abs", "snr_db", "max_rel", "cosine", "top1", "top5")


def run_to_json(run: Run) -> dict[str, Any]:
    """All of a run in the shape of its dataclasses; `emulated`: then its seconds are an emulator's, and no benchmark; and where a batch was
    asked for the inferences in a second, where the device tells its watts, and the joules of each inference."""
    derived = {"inferences_per_s": stats.per_second(run), "power_w": stats.power_w(run), "inference_j": stats.each_j(run)}
    return {"schema": SCHEMA, "emulated": run.emulated, **derived, **strict(run)}


def run_from_json(body: Mapping[str, Any]) -> Run:
    """What `run_to_json` was given. Unknown keys are ignored. Raises FarmError for what is no run, or one of another schema."""
    if body.get("schema") != SCHEMA:
        raise FarmError(f"a run of schema {body.get('schema')!r} cannot be read", f"this farm reads {SCHEMA!r}", "install a newer farm")
    try:
        return Run(
            **{
                **_known(Run, body),
                "verdict": Verdict(body["verdict"]),
                "samples": _samples(body["samples"]) if body["samples"] is not None else None,
                "latency": _latency(body["latency"]) if body["latency"] is not None else None,
                "failure": Failure(**_known(Failure, body["failure"])) if body["failure"] is not None else None,
            }
        )
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise FarmError("a run cannot be read", f"{type(exc).__name__}: {exc}", "") from exc


def _samples(body: Mapping[str, Any]) -> Samples:
    agreement = _known(Agreement, body["agreement"])
    numbers = {name: _numbers(value) for name, value in agreement.items() if name in _MEASURES}
    return Samples(
        **{
            **_known(Samples, body),
            "seconds": tuple(float(s) for s in body["seconds"]),
            "first_s": float(body["first_s"]),
            "agreement": Agreement(**{**agreement, **numbers}),
            "ledger": {part: float(s) for part, s in body["ledger"].items()},
            **{name: _numbers(body.get(name)) for name in ("held_up", "measured_s", "wall_s", "energy_j")},
            "facts_during": tuple(body.get("facts_during", ())),
        }
    )


def _latency(body: Mapping[str, Any]) -> Latency:
    return Latency(**{name: value if name in _WHOLE else _numbers(value) for name, value in _known(Latency, body).items()})


def _numbers(value: Any) -> Any:
    """A number, an interval, or None."""
    if value is None or isinstance(value, float):
        return value
    return tuple(map(float, value)) if isinstance(value, (list, tuple)) else float(value)


def _known(kind: type, body: Mapping[str, Any]) -> dict[str, Any]:
    names = _names(kind)
    return {name: value for name, value in body.items() if name in names}


@functools.cache
def _names(kind: type) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(kind))


def strict(value: Any) -> Any:
    """Dataclasses, enums, mappings and sequences as what strict JSON can hold: infinities and NaN are texts."""
    if dataclasses.is_dataclass(value):
        return {field.name: strict(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value
