"""The events of a trace lie within the inference, and none begins before the one before it ends."""

from __future__ import annotations

from report_runs import profiled

from farm.types import Span
from farm.views.profiling import trace_events

# Each begins where the one before it ends, in seconds that are no multiples of a nanosecond
LENGTHS = [1.0000004e-6, 2.0000004e-6, 3.3333337e-6, 1e-6 / 3, 0.0000123456789] * 20


def test_rounded_times_do_not_overlap():
    spans, now = [], 0.0
    for index, seconds in enumerate(LENGTHS):
        spans.append(Span(f"call{index}", now, seconds, 0))
        now += seconds
    events = [
        event
        for event in trace_events(profiled(trace=tuple(spans)))["traceEvents"]
        if event["ph"] == "X"
    ]
    whole, *calls = events
    for one, after in zip(calls, calls[1:], strict=False):
        assert round(one["ts"] + one["dur"], 3) == after["ts"]
    assert round(calls[-1]["ts"] + calls[-1]["dur"], 3) == whole["dur"]
    assert [call["name"] for call in calls] == [span.name for span in spans]
