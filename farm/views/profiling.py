"""A model's profile as a table, as JSON, and as a trace for Perfetto and speedscope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from farm import formatting
from farm.store import as_strict_json
from farm.types import KernelCall, ModelProfile, Roofline
from farm.views.tables import Column, build_table, table_with_note

_AGREED_WITHIN = 0.05
_WIDE = 120


@dataclass(frozen=True, slots=True)
class _Row:
    step: KernelCall
    share: float
    roof: Roofline | None


def profile_table(profiled: ModelProfile, width: int, most: int | None = None) -> Group:
    """Return a table of a model's steps by layer, the longest first, at most `most` of them.

    Below it are the sum of the steps and the roof.
    """
    latency = profiled.latency_s
    rows = [
        _Row(step, step.seconds / latency, profiled.roof)
        for step in sorted(profiled.steps, key=lambda step: -step.seconds)
    ]
    columns: list[Column[_Row]] = [
        Column("layer", lambda row: _shortened(row.step.layer) or row.step.kernel, style="bold"),
        Column("kernel", lambda row: row.step.kernel if row.step.layer else "", _WIDE),
        Column("us", lambda row: formatting.format_number(1e6 * row.step.seconds), right=True),
        Column("share %", lambda row: f"{100 * row.share:.1f}", right=True),
        Column(
            "GFLOP/s",
            lambda row: formatting.format_number(row.step.gflops) if row.step.operations else "",
            right=True,
        ),
        Column(
            "KiB",
            lambda row: formatting.format_number(row.step.nbytes / 1024) if row.step.nbytes else "",
            90,
            right=True,
        ),
        Column("roof %", _of_roof, right=True),
        Column("bound by", _bound, 110, style="bright_black"),
        Column("rule", lambda row: row.step.rule, 130, style="bright_black"),
    ]
    table = build_table(columns, rows[:most], width)
    left = rows[most:] if most is not None else []
    lines = (
        [f"and {len(left)} more, {100 * sum(row.share for row in left):.1f} %: -v shows all"]
        if left
        else []
    )
    return table_with_note(
        table, Text("\n".join([*lines, *map(formatting.sanitized_line, profile_summary(profiled))]))
    )


def profile_summary(profiled: ModelProfile) -> list[str]:
    """Return lines of text: how the steps add up to the latency, and the roof of the device."""
    kernels, latency, runtime, recording = (
        formatting.format_number(1e3 * seconds)
        for seconds in (
            profiled.kernels_s,
            profiled.latency_s,
            profiled.runtime_s,
            profiled.recording_s,
        )
    )
    lines = [
        f"{len(profiled.steps)} kernels {kernels} ms + {profiled.runtime_calls} calls of the "
        f"runtime {runtime} ms = "
        f"{100 * profiled.accounted:.1f} % of {latency} ms, the median of {len(profiled.plain_s)} "
        "inferences that were not recorded",
        f"as many were recorded, in turns with them, which made them {recording} ms longer",
    ]
    if abs(profiled.accounted - 1) > _AGREED_WITHIN:
        lines.append(
            "that is no good sum: other work disturbed the device, or too few inferences were "
            "recorded (--seconds)"
        )
    if profiled.roof:
        roof = profiled.roof
        threads = (
            f", {profiled.threads} thread{'s' if profiled.threads != 1 else ''}"
            if profiled.threads
            else ""
        )
        peak = (
            f"{formatting.format_number(roof.gflops)} GFLOP/s, "
            f"{formatting.format_number(roof.gbytes_s)} GB/s"
        )
        lines.append(
            f"roof: {peak}{threads}, {roof.source}; above 100 %, caches or Winograd's "
            "arithmetic have helped"
        )
    if profiled.emulated:
        lines.append("emulated: the times are an emulator's, and no roof is measured")
    return lines


def _shortened(layers: str) -> str:
    """Return the first of several layers, and the number of the others."""
    first, *more = layers.split(", ")
    return f"{first} +{len(more)}" if more else first


def _of_roof(row: _Row) -> str:
    share = row.roof.share(row.step) if row.roof else None
    return "" if share is None else f"{100 * share:.0f}"


def _bound(row: _Row) -> str:
    if row.roof is None or not (row.step.operations or row.step.nbytes):
        return ""
    return "memory" if row.roof.is_bound_by_memory(row.step) else "arithmetic"


def profile_to_json(profiled: ModelProfile) -> dict[str, Any]:
    """Return a profile in the shape of its dataclass, with the derived figures."""
    roof = profiled.roof
    steps = [
        {
            **as_strict_json(step),
            "share": step.seconds / profiled.latency_s,
            "gflops": step.gflops,
            "roof_share": roof.share(step) if roof else None,
            "bound_by_memory": roof.is_bound_by_memory(step) if roof else None,
        }
        for step in profiled.steps
    ]
    derived = {
        name: getattr(profiled, name)
        for name in ("latency_s", "kernels_s", "between_s", "accounted", "recording_s")
    }
    return {**as_strict_json(profiled), "steps": steps, **derived}


def trace_events(profiled: ModelProfile) -> dict[str, Any]:
    """Return one recorded inference in the Trace Event Format, as complete events in microseconds.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    named: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "args": {"name": f"{profiled.device} ({profiled.url})"},
        },
        {
            "name": "thread_name",
            "ph": "M",
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "args": {"name": "virtual machine"},
        },
    ]
    whole = max((span.begin_s + span.seconds for span in profiled.trace), default=0.0)
    events = [_event(profiled.model, "inference", 0.0, whole, {})]
    steps = iter(profiled.steps)
    kernels = {step.kernel for step in profiled.steps}
    for span in profiled.trace:
        step = next(steps, None) if span.name in kernels else None
        events.append(
            _event(
                span.name,
                "kernel" if step else "runtime",
                span.begin_s,
                span.seconds,
                _arguments(step, profiled.roof),
            )
        )
    other = {
        "model": profiled.model,
        "device": profiled.device,
        "artifact": profiled.artifact_digest,
        "started_at": profiled.started_at,
    }
    return {"traceEvents": [*named, *events], "displayTimeUnit": "ms", "otherData": other}


def _event(
    name: str, category: str, begin_s: float, seconds: float, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    begin, end = (
        round(1e6 * moment, 3) for moment in (begin_s, begin_s + seconds)
    )  # a rounded length could overlap the next
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": begin,
        "dur": round(end - begin, 3),
        "pid": 1,
        "tid": 1,
        "args": dict(arguments),
    }


def _arguments(step: KernelCall | None, roof: Roofline | None) -> dict[str, Any]:
    if step is None:
        return {}
    share = roof.share(step) if roof else None
    known = {
        "layer": step.layer,
        "operations": step.operations,
        "bytes": step.nbytes,
        "GFLOP/s": step.gflops,
        "share of the roof": share,
    }
    return {name: value for name, value in known.items() if value}
