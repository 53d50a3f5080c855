"""Numbers for Prometheus: the text format, of runs and of a tracker."""

from __future__ import annotations

import dataclasses
import re

from hypothesis import given
from hypothesis import strategies as st
from report_runs import failed, timed

from farm import metrics
from farm.tracker import format_summary_metrics
from farm.tracker.scheduler import KeyQueue, ServerInfo, Summary

LINE = re.compile(r'[a-z_0-9]+\{([a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)+\} (\S+)')


def samples(text: str) -> dict[str, float]:
    """The values by all that is before them; every line is one of the format."""
    lines = [line for line in text.split("\n")[:-1] if not line.startswith("#")]
    assert text.endswith("\n")
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_a_run_gives_its_verdict_its_percentiles_and_its_moment() -> None:
    run = timed("pi5", "net", 1)
    found = samples(metrics.metrics_of_runs([run, failed("pi4", "net", 1)]))
    of = 'device="pi5",model="net",profile="x86"'
    assert run.latency
    assert found[f"farm_latency_p50_seconds{{{of}}}"] == run.latency.p50_ms * 1e-3
    assert found[f'farm_run_verdict{{{of},verdict="STABLE"}}'] == 1.0
    assert found[f"farm_run_timestamp_seconds{{{of}}}"] == 1772452800.0
    assert found[f"farm_accuracy_ratio{{{of}}}"] == 0.9
    assert not any("p99" in name for name in found)
    assert [name for name in found if "pi4" in name and "latency" in name] == []


def test_an_emulated_device_has_no_latency() -> None:
    assert "latency" not in metrics.metrics_of_runs([timed("pi3", "net", 1, url="qemu:")])


@given(st.text())
def test_whatever_a_name_holds_a_line_stays_a_line(name: str) -> None:
    assert samples(
        metrics.metrics_of_runs(
            [dataclasses.replace(timed("a", "b", 1), device=name, model="models/\udcff.onnx")]
        )
    )


def test_a_bucket_of_a_histogram_counts_all_values_up_to_its_edge() -> None:
    waits = metrics.Histogram("waits_seconds", "Waits.", (1.0, 10.0))
    assert metrics.format_metrics([waits]) == ""
    for value in (0.5, 1.0, 2.0, 99.0):
        waits.observe(value, kind="pi5")
    waits.observe(10.0, kind="pi4")
    assert samples(metrics.format_metrics([waits])) == {
        'waits_seconds_bucket{kind="pi4",le="1"}': 0.0,
        'waits_seconds_bucket{kind="pi4",le="10"}': 1.0,
        'waits_seconds_bucket{kind="pi4",le="+Inf"}': 1.0,
        'waits_seconds_sum{kind="pi4"}': 10.0,
        'waits_seconds_count{kind="pi4"}': 1.0,
        'waits_seconds_bucket{kind="pi5",le="1"}': 2.0,
        'waits_seconds_bucket{kind="pi5",le="10"}': 3.0,
        'waits_seconds_bucket{kind="pi5",le="+Inf"}': 4.0,
        'waits_seconds_sum{kind="pi5"}': 102.5,
        'waits_seconds_count{kind="pi5"}': 4.0,
    }


def test_a_trackers_summary_counts_boards_by_their_key() -> None:
    servers = [ServerInfo("server:pi4", "10.0.0.1", 1), ServerInfo("server:pi4", "10.0.0.2", 1)]
    summary = Summary(
        {"pi4": KeyQueue(free=1, waiting=0), "jetson": KeyQueue(free=0, waiting=3)}, servers
    )
    assert samples(format_summary_metrics(summary)) == {
        'farm_tracker_boards{key="jetson"}': 0.0,
        'farm_tracker_boards{key="pi4"}': 2.0,
        'farm_tracker_boards_free{key="jetson"}': 0.0,
        'farm_tracker_boards_free{key="pi4"}': 1.0,
        'farm_tracker_requests_waiting{key="jetson"}': 3.0,
        'farm_tracker_requests_waiting{key="pi4"}': 0.0,
    }


def test_names_that_are_shown_alike_are_one_sample_and_the_rest_can_still_be_read() -> None:
    summary = Summary({"a": KeyQueue(0, 0), "a\x1b[31m": KeyQueue(1, 0), "b": KeyQueue(2, 0)}, [])
    lines = [
        line
        for line in format_summary_metrics(summary).splitlines()
        if line.startswith("farm_tracker_boards_free")
    ]
    assert len(lines) == len({line.partition("} ")[0] for line in lines}) == 2
