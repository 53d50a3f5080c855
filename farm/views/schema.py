"""JSON Schemas of the documents of `--json` and of exported runs and records.

https://json-schema.org/draft/2020-12

A shape is a type (str, int, float, bool), a dataclass, a list of one shape, a dict of shapes by
key, or a `Map`, `Nullable` or `OptionalKey` of one. Adding keys to an object does not change the
schema's version: readers must ignore unknown keys, and the schemas allow them.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from farm.store import RECORD_SCHEMA, RUN_SCHEMA
from farm.types import (
    Agreement,
    BisectedLayer,
    Failure,
    Kernel,
    KernelCall,
    ModelProfile,
    QuantizationComparison,
    Run,
    TensorSpec,
    TuningRecord,
    Verdict,
)

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {str: "string", int: "integer", bool: "boolean"}
# Values that are no JSON numbers are stored as text, see `farm.store.run_json`.
_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}


@dataclass(frozen=True, slots=True)
class Map:
    """An object whose keys are names given by the user: devices, models, parts."""

    of: Any


@dataclass(frozen=True, slots=True)
class Nullable:
    """A shape or null."""

    of: Any


@dataclass(frozen=True, slots=True)
class OptionalKey:
    """A key that may be absent."""

    of: Any


@dataclass(frozen=True, slots=True)
class Document:
    """A dataclass as a document of its own: with its schema's name, and further keys."""

    schema: str
    of: type
    beside: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _fields(kind: type) -> dict[str, Any]:
    """Return a dataclass's fields and types as a dict, to which keys may be added."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


RUN = Document(
    RUN_SCHEMA,
    Run,
    {
        "emulated": bool,
        **dict.fromkeys(("inferences_per_s", "power_w", "inference_j"), Nullable(float)),
    },
)
RECORD = Document(RECORD_SCHEMA, TuningRecord)
_TENSOR = {"name": str, "shape": [Nullable(int)], "dtype": str}
_PAIR = {
    "device": str,
    "model": str,
    "first": str,
    "second": str,
    "ratio": Nullable(float),
    "interval": Nullable([float]),
    "p": Nullable(float),
    "change": str,
    "reason": str,
    "differences": [str],
    "in_turns": Nullable({"before_s": [float], "after_s": [float], "loads": [int]}),
    "failure": Nullable(Failure),
}
_OUTCOME = {
    "runs": [RUN],
    "builds": [
        {"model": str, "profile": str, "digest": str, "cached": bool, "seconds": Map(float)}
    ],
    "ledger": {"wall_s": float, "builds_s": float, "devices_s": Map(float)},
}
_RELEASE = {
    "name": str,
    "release": int,
    "current": bool,
    "artifact": str,
    "profile": str,
    "files": Map(str),
    "installed_at": str,
    "versions": Map(str),
}
_LAYERS = [
    {
        "name": str,
        "layers": [
            {"layer": str, "holds": bool, "detail": str, "advice": str, "error": Nullable(Map(str))}
        ],
    }
]
_DEVICE = {
    "name": str,
    "profile": str,
    "url": str,
    "tags": [str],
    "state": str,
    "usable": bool,
    "why": str,
    "fix": str,
    "facts": Any,
}
_JOB = {
    "device": str,
    "model": str,
    "profile": str,
    "url": str,
    "threads": Nullable(int),
    "cores": str,
    "pinned": bool,
    "batch": Nullable(int),
}
_KERNEL = {
    "workload": str,
    "calls": int,
    "share": float,
    "choice": Map(Any),
    "seconds": Nullable(float),
    "default_s": Nullable(float),
    "tried": int,
    "candidates": Nullable(int),
    "skipped": Any,
}
_LAB_LEASE = {
    "lease": int,
    **dict.fromkeys(("owner", "kind", "class", "state", "why"), str),
    "count": int,
    "boards": [str],
    "lost": Map(str),
    "labels": Map(str),
    "implicit": bool,
    "for_s": float,
    "asked_at": float,
    **dict.fromkeys(("granted_at", "ends_at", "ended_at", "heartbeat_s"), Nullable(float)),
    "queue": Nullable({"place": int, "reason": str, "surely_by": Nullable(float)}),
    "reservation": Nullable(int),
    "key": OptionalKey(str),
}
_LAB_RESERVATION = {
    "reservation": int,
    **dict.fromkeys(("owner", "kind", "class", "state", "why"), str),
    "count": int,
    "tags": [str],
    "labels": Map(str),
    **dict.fromkeys(("made_at", "starts_at", "until"), float),
    "missing": int,
    "lease": Nullable(int),
}
_LAB_BOARD = {
    **dict.fromkeys(("name", "kind", "use", "owner", "address", "agent"), str),
    **dict.fromkeys(("health", "barred"), str),
    "tags": [str],
    "lease": Nullable(int),
    "throttled": Nullable(int),
    "free_bytes": Nullable(int),
    **dict.fromkeys(("until", "heard_s", "temperature_c", "load_1m"), Nullable(float)),
}
_LAB_HEALTH = {
    **dict.fromkeys(("board", "kind", "state", "why", "out"), str),
    **dict.fromkeys(("since", "due_at", "usual_s"), Nullable(float)),
    "failed_recoveries": int,
    "reduced_stability": bool,
    "power_cycles": [float],
    "checks": [
        {
            "at": float,
            "verdict": str,
            "why": str,
            "median_s": Nullable(float),
            "facts": Map(str),
        }
    ],
    "faults": [{"at": float, "owner": str, "what": str}],
}
_LAB_EVENT = {
    "number": int,
    "at": float,
    **dict.fromkeys(("what", "who", "board", "detail"), str),
    "lease": Nullable(int),
}
_KEPT: dict[str, Any] = {"models": int, "builds": int, "nbytes": int}
_NEWEST = {
    "device": str,
    "model": str,
    "run": str,
    "verdict": Verdict,
    "reason": str,
    "p50_ms": Nullable(float),
}

DOCUMENTS: Mapping[str, Mapping[str, Any]] = {
    "devices": {"devices": [_DEVICE]},
    "jobs": {"jobs": [_JOB]},
    "deploy": _OUTCOME,
    "bench": {**_OUTCOME, "comparison": OptionalKey([_PAIR]), "against": OptionalKey([Map(Any)])},
    "outputs": {
        "device": str,
        "model": str,
        "release": Nullable(int),
        "outputs": [_TENSOR],
        "path": str,
        "top": [{"index": int, "label": str, "score": float}],
    },
    "check": {
        "model": str,
        "profile": str,
        "format": Nullable({"format": str, "program": bool, "note": str}),
        "external_weights": [str],
        "builds": bool,
        "outline": Nullable(Map(Any)),
        "operations": Nullable(int),
        "stored_bytes": Nullable(int),
        "loaded_bytes": Nullable(int),
        "working_bytes": Nullable(int),
        "batch": str,
        "failure": Nullable(Failure),
        "guard": Nullable(
            {
                "kernels": int,
                "faulty": [
                    {
                        **dict.fromkeys(("kernel", "layer", "guard", "what"), str),
                        "number": int,
                        "threads": int,
                    }
                ],
                "engine": str,
                "agreement": Nullable(Agreement),
            }
        ),
    },
    "artifact": {
        **dict.fromkeys(
            ("model", "profile", "digest", "library_digest", "parameters_digest", "path", "engine"),
            str,
        ),
        "inputs": [TensorSpec],
        "outputs": [TensorSpec],
        "kernels": [Kernel],
        "target": Map(Any),
        "versions": Map(str),
        "seconds": Map(float),
        "nbytes": int,
        "cached": bool,
    },
    "export": {"artifact": str, "profile": str, "paths": [str]},
    "tune": {
        "model": str,
        "core": str,
        "records": int,
        "boards": Map(int),
        "kernels": [_KERNEL],
        "before": str,
        "after": str,
        "verdict": str,
        "paired": Nullable(
            {"before_s": [float], "after_s": [float], "speedup": float, "low": float, "high": float}
        ),
    },
    "profile": {
        **_fields(ModelProfile),
        "steps": [
            {
                **_fields(KernelCall),
                "share": float,
                "gflops": float,
                "roof_share": Nullable(float),
                "bound_by_memory": Nullable(bool),
            }
        ],
        **dict.fromkeys(("latency_s", "kernels_s", "between_s", "accounted", "recording_s"), float),
    },
    "bisect": {
        "device": str,
        "model": str,
        "artifact": str,
        "reference": str,
        "first_bad": Nullable(int),
        "layers": [BisectedLayer],
        "whole": Agreement,
        "findings": [str],
    },
    "quantize": {
        "path": str,
        "profile": str,
        "float_bytes": int,
        "bytes": int,
        **_fields(QuantizationComparison),
    },
    "accuracy": {
        "model": str,
        "devices": [Map(Any)],
        "reference": Any,
        "note": str,
        "below": [str],
    },
    "records": {"records": [RECORD]},
    "exported": {"records": int, "file": str},
    "imported": {"new": int, "faster": int, "left": int},
    "removed": {"records": int},
    "cache": {"places": [{"place": str, **_KEPT}]},
    "fetched": _KEPT,
    "pruned": {**_KEPT, "dry_run": bool},
    "history": {"runs": [RUN]},
    "report": {
        "path": str,
        "title": str,
        "made_at": str,
        "runs": int,
        "newest": [_NEWEST],
        "steps": [{"device": str, "model": str, "run": str, "ratio": float}],
        "comparison": [_PAIR],
    },
    "comparison": {"pairs": [_PAIR]},
    "baseline": {"name": str, "runs": [str]},
    "baselines": {"baselines": Map(int)},
    "import": {"runs": int, "new": int},
    "deployments": {
        "devices": [
            {"device": str, "error": Nullable(Failure), "releases": OptionalKey([_RELEASE])}
        ]
    },
    "deployed": {
        "devices": [{"device": str, "error": Nullable(Failure), "release": OptionalKey(_RELEASE)}]
    },
    "doctor": {"examined": _LAYERS},
    "provision": {"provisioned": _LAYERS},
    "added": {
        **dict.fromkeys(("name", "file", "profile", "reason", "toml"), str),
        "written": bool,
        "notes": [str],
        "board": Nullable(str),
        "layers": _LAYERS[0]["layers"],
    },
    "candidates": {"candidates": [{"name": str, "url": str, "source": str}]},
    "removal": {"file": str, "tables": [str]},
    "lab_boards": {"boards": [_LAB_BOARD]},
    "lab_board": {"board": _LAB_BOARD},
    "lab_leases": {"leases": [_LAB_LEASE]},
    "lab_lease": {"lease": _LAB_LEASE, "tracker": {"host": str, "port": int}},
    "lab_reservations": {"reservations": [_LAB_RESERVATION]},
    "lab_reservation": {"reservation": _LAB_RESERVATION},
    "lab_events": {"events": [_LAB_EVENT]},
    "lab_health": {"health": _LAB_HEALTH},
    "lab_users": {
        "file": str,
        "users": [
            {
                **dict.fromkeys(("user", "type", "fingerprint", "comment"), str),
                "port": Nullable(int),
            }
        ],
    },
    "error": {"error": {"kind": str, "what": str, "why": str, "fix": str, "exit_code": int}},
}
_LINES = {"run": RUN, "record": RECORD}  # of JSON lines
NAMES = (*DOCUMENTS, *_LINES)


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one of `NAMES`."""
    made = (
        _made(_LINES[name])
        if name in _LINES
        else _made({"schema": f"farm/{name}/1", **DOCUMENTS[name]})
    )
    return {"$schema": _DRAFT, "title": f"farm/{name}/1", **made}


def _made(shape: Any) -> dict[str, Any]:
    if isinstance(shape, str):
        return {"const": shape}
    if isinstance(shape, Nullable):
        return {"anyOf": [_made(shape.of), {"type": "null"}]}
    if isinstance(shape, Map):
        return {"type": "object", "additionalProperties": _made(shape.of)}
    if isinstance(shape, Document):
        fields = _made(shape.of)
        more = {
            "schema": {"const": shape.schema},
            **{key: _made(of) for key, of in shape.beside.items()},
        }
        return {
            **fields,
            "properties": {**more, **fields["properties"]},
            "required": [*more, *fields["required"]],
        }
    if isinstance(shape, list):
        return {"type": "array", "items": _made(shape[0])}
    if isinstance(shape, dict):
        required = [key for key, of in shape.items() if not isinstance(of, OptionalKey)]
        properties = {
            key: _made(of.of if isinstance(of, OptionalKey) else of) for key, of in shape.items()
        }
        return {"type": "object", "properties": properties, "required": required}
    return _typed(shape)


def _typed(hint: Any) -> dict[str, Any]:
    """Return the schema of a type, or of the annotation of a dataclass's field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return {}
    if hint is float:
        return dict(_NUMBER)
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _made(_fields(hint))
    if origin is tuple:
        several = (
            {}
            if arguments[-1] is Ellipsis
            else {"minItems": len(arguments), "maxItems": len(arguments)}
        )
        return {"type": "array", "items": _typed(arguments[0]), **several}
    if origin in (types.UnionType, typing.Union):
        return {
            "anyOf": [{"type": "null"} if one is type(None) else _typed(one) for one in arguments]
        }
    return {"type": "object", "additionalProperties": _typed(arguments[1])}  # a Mapping
