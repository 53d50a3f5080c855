"""The events of a trace: their times, which do not overlap, and the layers that they belong to."""

from __future__ import annotations

from report_runs import profiled

from farm.types import KernelCall, Span
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


def test_each_call_of_a_kernel_that_serves_several_layers_has_the_figures_of_its_own():
    layers = ("conv1", "conv2", "conv3")
    steps = tuple(
        KernelCall("conv", 1e-3, 10**number, 4096, layer)
        for number, layer in enumerate(layers, start=6)
    )
    spans = tuple(Span("conv", 2e-3 * number, 1e-3) for number in range(len(layers)))
    events = trace_events(profiled(steps=steps, trace=spans))["traceEvents"]
    calls = [event["args"] for event in events if event.get("cat") == "kernel"]
    assert [call["layer"] for call in calls] == [*layers]
    assert [call["operations"] for call in calls] == [10**6, 10**7, 10**8]
