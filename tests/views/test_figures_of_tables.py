"""The figures in tables of comparisons, accuracies, engines and profiles: of what they are, and in
which unit.
"""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from report_runs import profiled, timed
from rich.console import Console, Group
from rich.table import Table

from farm import comparison, formatting, stats, views
from farm.lab.durations import clock_time
from farm.types import (
    Accuracy,
    Agreement,
    BisectedLayer,
    EngineComparison,
    EngineResult,
    Failure,
    KernelBisection,
    KernelCall,
    PairedSamples,
    Roofline,
    Run,
    Span,
    TuningRecord,
)
from farm.views.accuracy import accuracy_table
from farm.views.bisection import describe_findings, layers_table
from farm.views.comparison import comparison_table, history_lines
from farm.views.lab import (
    lab_boards_table,
    lab_checks_table,
    lab_leases_table,
    lab_reservations_table,
)
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
    assert history_lines([runs[0], emulated]) == [] != history_lines(runs[:2])


def test_a_long_history_is_drawn_by_its_newest_runs() -> None:
    runs = [run_of(30.0 if number < 10 else 10.0, number) for number in range(70)]
    drawn, _, _ = history_lines(runs)[0].partition(" ")
    assert drawn == formatting.sparkline([10.0] * 60)


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
PROFILE = profiled(
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
    wide = shown(profile_table(PROFILE, 200), 200)
    assert "26 memory" in wide[2] and "40 arithmetic" in wide[3]
    assert "that is no good sum" in " ".join(lines)
    whole = dataclasses.replace(PROFILE, plain_s=(3.6e-3,))  # kernels and runtime: 3.5 ms
    assert "that is no good sum" not in " ".join(shown(profile_table(whole, 100), 100))
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


def test_a_record_tells_microseconds_and_how_much_faster_than_the_default_it_is() -> None:
    record = TuningRecord("znver4", "dense 1x8", {}, 2e-6, 5e-6, 9, "2026-01-02T03:04:05", "host")
    assert shown(views.records_table([record], 100))[2] == "znver4 dense 1x8 2.00 2.50x"
    assert shown(views.cache_table([views.CacheRow("here", 2, 3, 4_500_000)], 80))[2] == (
        "here 2 3 4.5"
    )


def test_the_peak_of_memory_is_in_megabytes_and_not_an_emulators() -> None:
    run = run_of(4.0)
    assert run.samples
    run = dataclasses.replace(
        run, samples=dataclasses.replace(run.samples, memory_peak_bytes=45_000_000)
    )
    assert " 45.0 " in shown(finished_jobs_table([run], 250), 250)[2]
    emulated = dataclasses.replace(run, url="qemu:")
    assert "45" not in shown(finished_jobs_table([emulated], 250), 250)[2]


def layer(snr_db: float, alone_db: float | None = None, **more: object) -> BisectedLayer:
    bad = alone_db is not None
    return BisectedLayer("conv", (1,), "float32", snr_db, 0.5, bad, "", alone_db, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "advice"),
    [
        (layer(20.0, 41.0), "small errors of the layers before it add up"),
        (layer(20.0, 39.0), "with the right inputs it is wrong too"),
        (layer(20.0, 60.0, damaged=True), "rm -r /a/build"),
    ],
)
def test_the_first_bad_layer_is_told_with_what_to_do(bad: BisectedLayer, advice: str) -> None:
    found = KernelBisection((layer(120.0), bad, layer(110.0), layer(9.0, 8.0)), ANSWER)
    first, second, *others = describe_findings(found, "net", "pi5", "/a/build")
    assert "is layer 1, kernel conv: it differs: signal to noise 20.0 dB" in first
    assert advice in second and len(others) == 1 and others[0].startswith("1 more layer is bad")
    lines = shown(layers_table(found, 80), 80)
    assert [line.startswith("→") for line in lines[2:]] == [False, True, False, False]


def test_a_layer_without_any_error_is_equal_and_one_of_no_signal_has_no_ratio() -> None:
    layers = (layer(float("inf")), layer(float("-inf")), layer(31.25))
    lines = shown(layers_table(KernelBisection(layers, ANSWER), 80), 80)[2:]
    assert [line.split()[1] for line in lines] == ["equal", "0.50", "31.2"]


def test_a_bisection_without_bad_layers_tells_whether_the_whole_answer_is_right() -> None:
    right = KernelBisection((layer(120.0, name="conv1"),), ANSWER)
    assert describe_findings(right, "net", "pi5", "")[0].endswith("the whole answer is right")
    wrong = dataclasses.replace(
        right,
        layers=(*right.layers, layer(120.0)),
        whole=dataclasses.replace(ANSWER, right=False, max_abs=0.25),
    )
    first, second = describe_findings(wrong, "net", "pi5", "")
    assert first.endswith("the whole answer does: largest difference 0.25")
    assert "layer 1, conv, is the first that the source engine does not know" in second


def test_a_lab_tells_how_long_boards_and_leases_last_and_when_reservations_are() -> None:
    now = 1_800_000_000.0
    board = {"name": "pi5-07", "kind": "pi5", "use": "leased", "barred": "", "owner": "ann",
             "lease": 7, "until": now + 5400, "tags": [], "address": ""}  # fmt: skip
    assert shown(lab_boards_table([board], now, 80))[2] == "pi5-07 pi5 leased ann 7 1h30m"
    lease = {"lease": 7, "owner": "ann", "count": 2, "kind": "pi5", "class": "ci",
             "state": "active", "ended_at": None, "ends_at": now + 90, "boards": ["a", "b"],
             "queue": None, "why": ""}  # fmt: skip
    waiting = {**lease, "lease": 8, "count": 1, "ends_at": None, "boards": [],
               "queue": {"place": 3, "reason": "all lent", "surely_by": now + 60}}  # fmt: skip
    ended = {**lease, "lease": 9, "state": "expired", "ended_at": now - 5, "why": "too long"}
    assert shown(lab_leases_table([lease, waiting, ended], now, 120))[2:] == [
        "7 ann 2 pi5 ci active 1m30s a b",
        "8 ann pi5 ci queued, 3. all lent; in 1m at the latest",
        "9 ann 2 pi5 ci expired a b too long",
    ]
    reserved = {"reservation": 4, "owner": "bob", "count": 2, "kind": "pi5", "tags": [],
                "starts_at": now + 3600, "until": now + 7200, "state": "planned", "missing": 1,
                "lease": None}  # fmt: skip
    since, until = (clock_time(now + seconds, now) for seconds in (3600, 7200))
    assert shown(lab_reservations_table([reserved], now, 120))[2] == (
        f"4 bob 2 pi5 {since} {until} planned, 1 of 2 boards missing"
    )
    checks = [
        {"at": now + day * 86400, "verdict": verdict, "median_s": 0.0105, "why": ""}
        for day, verdict in ((0, "right"), (1, "wrong"))
    ]
    lines = shown(lab_checks_table(checks, 80))[2:]
    assert [line.split()[2:] for line in lines] == [
        ["wrong", "10.5", "ms"],
        ["right", "10.5", "ms"],
    ]
