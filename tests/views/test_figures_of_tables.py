"""The figures in tables of comparisons, accuracies, engines and profiles: of what they are, and in
which unit.
"""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from report_runs import timed
from rich.console import Console, Group
from rich.table import Table

from farm import comparison, stats
from farm.types import (
    Accuracy,
    Agreement,
    EngineComparison,
    EngineResult,
    Failure,
    KernelCall,
    ModelProfile,
    PairedSamples,
    Roofline,
    Run,
    Span,
)
from farm.views.accuracy import accuracy_table
from farm.views.comparison import comparison_table, history_lines
from farm.views.other_engines import engine_table, engines_to_json
from farm.views.profiling import profile_table, profile_to_json, trace_events
from farm.views.runs import finished_jobs_table

ANSWER = Agreement(max_abs=3e-6, snr_db=120.0, same_top1=True, right=True)


def shown(table: Table | Group, width: int = 200) -> list[str]:
    """The lines of a table, their words one space apart."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [" ".join(line.split()) for line in text.splitlines() if line.split()]


def run_of(p50_ms: float, number: int = 1, **changes: object) -> Run:
    run = timed("pi5", "net", number, **changes)  # type: ignore[arg-type]
    assert run.latency
    return dataclasses.replace(run, latency=dataclasses.replace(run.latency, p50_ms=p50_ms))


def test_accuracies_are_shares_of_what_was_answered_and_agreement_of_what_was_compared() -> None:
    gone = Failure("DeviceError", "pi3 hangs", "", "", 5)
    found = [
        Accuracy("pi5", 250, 200, 150, 190, 99, 120, 3, 0, {}, gone),
        Accuracy("onnxruntime", 250, 250, 200, 240, 250, 250, 0, 0, {}),
    ]
    _, _, device, reference = shown(accuracy_table(found, 10, 200))
    low, high = (100 * end for end in stats.wilson_interval(150, 200))
    least, most = (100 * end for end in stats.wilson_interval(190, 200))
    intervals = f"{low:.2f}–{high:.2f} 95.00 {least:.2f}–{most:.2f}"
    assert device == f"pi5 75.00 {intervals} 82.50 200 of 250 3 pi3 hangs"
    assert reference.startswith("onnxruntime 80.00 ") and reference.endswith(" 250")
    few = shown(accuracy_table(found, 5, 200))
    assert "top-5" not in few[0] and "95.00" not in few[2]


def test_a_comparison_shows_the_first_run_before_and_the_second_after() -> None:
    first, second = run_of(10.0), run_of(20.0, 2)
    found = stats.Comparison(2.0, (1.9, 2.1), 0.0012, stats.ChangeVerdict.SLOWER, "in words")
    pair = comparison.RunComparison(first, second, found, ())
    assert shown(comparison_table([pair], 200))[2] == "pi5 net 10.0 20.0 slower 0.0012 in words"
    turns = PairedSamples((0.001, 0.002, 0.009), (0.003, 0.004, 0.005), {})
    again = dataclasses.replace(pair, turns=turns)
    assert (
        shown(comparison_table([again], 200))[2]
        == "pi5 net 2.00 4.00 slower 0.0012 3 rounds in words"
    )


def test_a_history_goes_from_the_first_run_to_the_last_between_its_extremes() -> None:
    emulated = run_of(999.0, 9, url="qemu:")
    runs = [run_of(p50_ms, day) for day, p50_ms in enumerate((11.0, 9.0, 14.0, 12.0))]
    line, *steps = history_lines([*runs, emulated])
    assert line.endswith("  11.0 → 12.0 ms, 4 runs, 9.00 to 14.0") and steps == []
    assert history_lines([runs[0], emulated]) == []


def test_another_engines_time_is_told_as_a_multiple_of_farms() -> None:
    rival = EngineResult("torch", "2.9", (0.02, 0.04, 0.05), ANSWER)
    slower = EngineResult("litert", "2.1", (0.005, 0.005, 0.005), ANSWER)
    contest = EngineComparison("host", "net", 4, (0.01, 0.01, 0.01), (rival, slower), {})
    _, _, ours, theirs, other = shown(engine_table([contest], 200))
    assert ours == "net 4 farm 10.0"
    assert theirs == "torch 2.9 40.0 4.00x faster 2.00–5.00 3.0e-06"
    assert other == "litert 2.1 5.00 0.50x as fast 0.50–0.50 3.0e-06"
    told = json.loads(json.dumps(engines_to_json(contest)))["rivals"]
    assert [one["ratio"] for one in told] == pytest.approx([4.0, 0.5])
    assert told[0]["interval"] == pytest.approx([2.0, 5.0])


def test_runs_tell_inferences_per_second_watts_and_millijoules() -> None:
    run = run_of(4.0, batch=8)
    assert run.samples
    run = dataclasses.replace(
        run, samples=dataclasses.replace(run.samples, energy_j=300.0, measured_s=2.0)
    )
    title, _, line = shown(finished_jobs_table([run], 250), 250)[:3]
    assert " inf/s W mJ/inf samples " in title and " 2000 150 75.0 100 " in line


STEPS = (
    KernelCall("conv", 1e-3, 8_000_000, 4096, "conv1, relu1"),
    KernelCall("copy", 2e-3, 0, 20480),
)
PROFILE = ModelProfile(
    device="pi5",
    model="net",
    profile="x86",
    url="local:",
    artifact_digest="0" * 64,
    started_at="2026-11-27T00:00:00+00:00",
    agreement=ANSWER,
    steps=STEPS,
    runtime_s=0.5e-3,
    runtime_calls=7,
    plain_s=(4e-3, 5e-3, 9e-3),
    recorded_s=(7e-3, 8e-3, 9e-3),
    trace=(
        Span("alloc", 0.0, 1e-4),
        Span("conv", 1e-4, 1e-3),
        Span("alloc", 2e-3, 1e-4),
        Span("copy", 3e-3, 2e-3),
    ),
    roof=Roofline(gflops=20.0, gbytes_s=0.04, source="measured"),
)


def test_a_profile_tells_the_share_the_throughput_and_the_roof_of_each_kernel() -> None:
    lines = shown(profile_table(PROFILE, 100), 100)
    assert lines[2] == "copy 2000 40.0 20.0 26"
    assert lines[3] == "conv1 +1 1000 20.0 8.00 4.00 40"
    assert "2 kernels 3.00 ms + 7 calls of the runtime 0.500 ms = 70.0 % of 5.00 ms" in lines[4]
    assert "3.00 ms longer" in " ".join(lines)
    few = shown(profile_table(PROFILE, 100, most=1), 100)
    assert few[2].startswith("copy") and few[3] == "and 1 more, 20.0 %: -v shows all"
    conv, copy = profile_to_json(PROFILE)["steps"]
    assert (conv["share"], conv["gflops"]) == (pytest.approx(0.2), pytest.approx(8.0))
    assert (conv["roof_share"], conv["bound_by_memory"]) == (pytest.approx(0.4), False)
    assert (copy["roof_share"], copy["bound_by_memory"]) == (pytest.approx(0.256), True)


def test_a_trace_gives_each_kernel_the_layer_of_its_step() -> None:
    events = [event for event in trace_events(PROFILE)["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["cat"]) for event in events] == [
        ("net", "inference"),
        ("alloc", "runtime"),
        ("conv", "kernel"),
        ("alloc", "runtime"),
        ("copy", "kernel"),
    ]
    assert events[2]["args"]["layer"] == "conv1, relu1" and events[4]["args"]["bytes"] == 20480
    assert (events[2]["ts"], events[2]["dur"], events[0]["dur"]) == (100.0, 1000.0, 5000.0)
